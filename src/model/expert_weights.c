/* expert_weights.c - see expert_weights.h. */
#include "model/expert_weights.h"

/* ---- weights ---- */

static int read_expert(struct pass *x, const struct quantized *codes,
                       int64_t expert, int from, int to, struct expert *w,
                       struct err *e)
{
    const struct model_config *c = &x->m->config;
    int64_t common = model_linear_common(c, x->p->layer);

    for (int i = from; i < to; i++) {
        model_linear(c, x->p->layer, common + THREE * expert + i, &w->of[i].of);
        if (model_read_linear(x->m, codes, &w->of[i], e) < 0)
            return e->code;
    }
    return 0;
}

static int place_expert(struct pass *x, int from, int to, struct expert *w,
                        struct err *e)
{
    for (int i = from; i < to; i++)
        if (loaded_place(x->m, &w->of[i], e) < 0)
            return e->code;
    return 0;
}

int load_expert(struct pass *x, const struct quantized *codes, int64_t expert,
                int from, int to, struct expert *w, struct err *e)
{
    return read_expert(x, codes, expert, from, to, w, e) < 0 ?
               e->code :
               place_expert(x, from, to, w, e);
}

void release_expert(struct expert *w)
{
    for (int i = 0; i < THREE; i++)
        loaded_release(&w->of[i]);
}

/* ---- experts that are read ahead ---- */

/* Only the calling thread may use the device, so on a device the linears are only read
 * here. */
static int read_turn(void *ctx, int64_t turn, void *item, struct err *e)
{
    const struct expert_readers *s = ctx;
    struct pass *x = s->x;
    int64_t expert = pass_expert(x, turn);

    if (!pass_tokens_of(x, expert))
        return 0;
    return (x->m->on ? read_expert : load_expert)(x, s->codes, expert, GATE,
                                                  THREE, item, e);
}

static void release_item(void *item)
{
    release_expert(item);
}

void expert_readers_start(struct expert_readers *s, struct pass *x,
                          const struct quantized *codes)
{
    *s = (struct expert_readers){ .ahead = { .read = read_turn,
                                             .release = release_item,
                                             .turns = x->turns,
                                             .size = sizeof(s->item[0]) },
                                  .x = x,
                                  .codes = codes };
    s->ahead.ctx = s;
    s->ahead.item = s->item;
    readers_start(&s->ahead, x->m);
}

int expert_readers_next(struct expert_readers *s, int64_t turn,
                        struct expert **w, struct err *e)
{
    struct pass *x = s->x;
    int rc = readers_next(&s->ahead, turn, (void *)w, e);

    if (rc < 0 || !x->m->on || !pass_tokens_of(x, pass_expert(x, turn)))
        return rc;
    return place_expert(x, GATE, THREE, *w, e);
}
