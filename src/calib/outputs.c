/* outputs.c - see outputs.h. */
#include "calib/outputs.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"

static void name_of(const struct model_config *c, int64_t layer, int64_t expert,
                    enum companion companion, char to[FRAME_NAME_MAX + 1])
{
    const struct tensor_name n = { .layer = layer,
                                   .expert = expert,
                                   .experts = { c->family->experts,
                                                strlen(c->family->experts) },
                                   .part = { "out", 3 },
                                   .companion = companion };

    tensor_name_format(&n, to, FRAME_NAME_MAX + 1);
}

/* ---- writing ---- */

/* Rows of one part of the tokens. */
static int write_piece(const struct outputs_stream *s, int64_t part, int64_t n,
                       const void *rows, struct err *e)
{
    const struct outputs_writer *o = s->of;
    const struct model_config *c = model_config(o->m);
    struct frame f = { .role = ROLE_ACTIVATION,
                       .dtype = model_dtype(o->m),
                       .ndim = 2,
                       .dims = { (uint64_t)n, (uint64_t)c->hidden_size },
                       .sequence = (uint64_t)(1 + part + o->parts * s->piece),
                       .data = rows };

    f.len = (size_t)(n * c->hidden_size) * dtype_bits(f.dtype) / 8;
    name_of(c, o->layer, s->expert, s->companion, f.name);
    return stream_write(o->w, &f, e);
}

static int put(void *arg, const struct expert_rows *r, struct err *e)
{
    struct outputs_stream *s = arg;
    struct outputs_writer *o = s->of;
    size_t row = (size_t)model_config(o->m)->hidden_size *
                 dtype_bits(model_dtype(o->m)) / 8;
    const char *rows = r->rows;
    int64_t part = 0, i = 0, k;

    s->piece = s->expert == r->expert ? s->piece + 1 : 0;
    s->expert = r->expert;
    if (model_on_device(o->m)) {
        if (mem_grow(&o->host, (size_t)r->n * row + 1, "outputs", e) < 0 ||
            model_get(o->m, o->host, rows, (size_t)r->n * row, e) < 0)
            return e->code;
        rows = o->host;
    }
    for (; i < r->n; i = k) { /* tokens are in the order of parts */
        while (r->slot[i] / o->top_k >= o->first[part + 1])
            part++;
        for (k = i + 1; k < r->n && r->slot[k] / o->top_k < o->first[part + 1];
             k++)
            ;
        if (write_piece(s, part, k - i, rows + (size_t)i * row, e) < 0)
            return e->code;
    }
    return 0;
}

int outputs_create(struct outputs_writer *o, const struct stream_output *out,
                   struct calib_experts *ex, struct err *e)
{
    static const enum companion of[] = { COMPANION_NONE, COMPANION_ORIGINAL };

    o->top_k = model_config(o->m)->moe.top_k;
    for (int i = 0; i < 2; i++) {
        o->stream[i] = (struct outputs_stream){ .of = o,
                                                .companion = of[i],
                                                .expert = -1 };
        o->stream[i].hooks =
            (struct expert_outputs){ .put = put, .arg = &o->stream[i] };
    }
    ex->mix.outputs = &o->stream[0].hooks;
    ex->reference.outputs = &o->stream[1].hooks;
    return stream_create(&o->w, out, e);
}

int outputs_finish(struct outputs_writer *o, struct err *e)
{
    free(o->host);
    o->host = NULL;
    return stream_finish(o->w, e);
}

/* ---- reading ---- */

/* Of another stream or part. */
static bool unwanted(const void *ctx, const struct frame *f)
{
    const struct outputs_source *s = ctx;
    const struct batch_part *p = &s->of->c->part;
    size_t len;

    return f->role != ROLE_ACTIVATION || !f->sequence ||
           companion_of(f->name, &len) != s->companion ||
           (int64_t)(f->sequence - 1) % p->parts != p->part;
}

/* Read the next frame of file k, which must be of this expert. */
static int read_next(struct outputs_source *s, int64_t k, int64_t expert,
                     struct err *e)
{
    const struct outputs *o = s->of;
    const char *path = o->c->outputs.item[k];
    char name[FRAME_NAME_MAX + 1];
    struct frame f;
    int rc;

    name_of(o->config, o->layer, expert, s->companion, name);
    do
        rc = stream_next(s->in[k], &f, e);
    while (rc > 0 && unwanted(s, &f));
    if (rc < 0)
        return rc;
    if (!rc || strcmp(f.name, name) != 0 || f.ndim != 2 || !f.dims[0] ||
        f.dtype != model_dtype(o->c->m) ||
        f.dims[1] != (uint64_t)o->config->hidden_size)
        return err_set(e, E_DATA, "'%s': want rows of '%s' of part %lld", path,
                       name, (long long)o->c->part.part);
    s->left[k] = (struct outputs_left){ f.data, (int64_t)f.dims[0], expert };
    return 0;
}

static int get(void *arg, int64_t expert, int64_t n, void *to, struct err *e)
{
    struct outputs_source *s = arg;
    const struct outputs *o = s->of;
    int64_t k = expert % o->c->outputs.count, some;
    struct outputs_left *left = &s->left[k];
    size_t row =
        (size_t)o->config->hidden_size * dtype_bits(model_dtype(o->c->m)) / 8;

    for (; n; n -= some) {
        if (!left->n && read_next(s, k, expert, e) < 0)
            return e->code;
        if (left->expert != expert)
            return err_set(e, E_DATA,
                           "'%s': %lld more rows of expert %lld of "
                           "part %lld than it has tokens",
                           o->c->outputs.item[k], (long long)left->n,
                           (long long)left->expert, (long long)o->c->part.part);
        some = left->n < n ? left->n : n;
        memcpy(to, left->row, (size_t)some * row);
        to = (char *)to + (size_t)some * row;
        left->row += (size_t)some * row;
        left->n -= some;
    }
    return 0;
}

static int open_source(struct outputs_source *s, struct err *e)
{
    const struct opt_list *files = &s->of->c->outputs;
    const struct stream_expect expect = { .key = s->of->c->key };
    size_t n = (size_t)files->count;

    s->in = mem_zero(n, sizeof(struct stream_reader *), "outputs", e);
    s->left = s->in ? mem_zero(n, sizeof(*s->left), "outputs", e) : NULL;
    if (!s->left)
        return e->code;
    for (size_t i = 0; i < n; i++) {
        if (stream_open(&s->in[i], files->item[i], &expect, e) < 0)
            return e->code;
        stream_leave_out(s->in[i], unwanted, s);
    }
    return 0;
}

int outputs_give(struct outputs *o, const struct run *r,
                 struct calib_experts *ex, struct err *e)
{
    static const enum companion of[] = { COMPANION_NONE, COMPANION_ORIGINAL };
    struct mixture *to[] = { &ex->mix, &ex->reference };

    o->c = r->c;
    o->config = model_config(r->c->m);
    o->layer = ex->layer;
    for (int i = 0; i < (r->reference ? 2 : 1); i++) {
        struct outputs_source *s = &o->source[i];

        s->of = o;
        s->companion = of[i];
        s->hooks = (struct expert_outputs){ .get = get, .arg = s };
        to[i]->outputs = &s->hooks;
        if (open_source(s, e) < 0)
            return e->code;
    }
    return 0;
}

void outputs_close(struct outputs *o)
{
    for (int i = 0; i < 2; i++) {
        struct outputs_source *s = &o->source[i];

        for (int k = 0; s->in && k < o->c->outputs.count; k++)
            stream_close(s->in[k]);
        free(s->in);
        free(s->left);
    }
    *o = (struct outputs){ 0 };
}
