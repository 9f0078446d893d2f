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

/* Background task.  Only the calling thread may use the device, so on a device
 * the linears are only read here. */
static void read_ahead(void *arg)
{
    struct reader *r = arg;
    struct pass *x = r->x;
    int64_t expert = pass_expert(x, r->turn);
    int (*load)(struct pass *, const struct quantized *, int64_t, int, int,
                struct expert *, struct err *) =
        x->m->on ? read_expert : load_expert;

    r->rc = 0;
    if (r->turn < x->turns && pass_tokens_of(x, expert))
        r->rc = load(x, r->codes, expert, GATE, THREE, &r->w, &r->err);
}

static void reader_start(struct reader *r, int64_t turn)
{
    r->turn = turn;
    threads_start(&r->task, read_ahead, r);
}

void readers_start(struct readers *s, struct pass *x,
                   const struct quantized *codes)
{
    int n = threads_count() / THREADS_OF_A_READER;

    *s = (struct readers){ .n = x->m->on || n < 2 ? 2 :
                                n > READERS       ? READERS :
                                                    n };
    for (int i = 0; i < s->n; i++) {
        s->r[i] = (struct reader){ .x = x, .codes = codes };
        reader_start(&s->r[i], i);
    }
}

int readers_next(struct readers *s, int64_t turn, struct reader **out,
                 struct err *e)
{
    struct reader *r = &s->r[turn % s->n];
    struct pass *x = r->x;

    *out = r;
    threads_join(&r->task);
    if (r->rc < 0) {
        *e = r->err;
        return r->rc;
    }
    return x->m->on && pass_tokens_of(x, pass_expert(x, turn)) ?
               place_expert(x, GATE, THREE, &r->w, e) :
               0;
}

void readers_go_on(struct readers *s, struct reader *r)
{
    release_expert(&r->w);
    reader_start(r, r->turn + s->n);
}

void readers_end(struct readers *s)
{
    for (int i = 0; i < s->n; i++) {
        threads_join(&s->r[i].task);
        release_expert(&s->r[i].w);
    }
}
