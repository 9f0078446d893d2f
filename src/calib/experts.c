/* routed.c - see routed.h. */
#include "calib/experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/emit.h"
#include "common/math/threads.h"

int routed_open(struct routed *r, struct loop *l, int64_t layer, struct err *e)
{
    const struct model_config *c = model_config(l->c->m);
    size_t n = (size_t)model_layer_experts(c, layer);

    *r = (struct routed){ .l = l, .layer = layer, .experts = (int64_t)n };
    if (!n)
        return 0;
    r->stats = mem_zero(n * EXPERT_STATS, sizeof(*r->stats), "experts", e);
    r->mark = r->stats ? mem_zero(n * 2, sizeof(*r->mark), "experts", e) : NULL;
    if (!r->mark ||
        mixture_open(&r->mix, l->c->m, layer, l->s->rows, l->c->dir, e) < 0 ||
        (l->original && mixture_open(&r->original, l->c->m, layer, l->s->rows,
                                     l->c->dir, e) < 0)) {
        routed_close(r);
        return e->code;
    }
    return 0;
}

void routed_close(struct routed *r)
{
    mixture_close(&r->mix);
    mixture_close(&r->original);
    free(r->stats);
    free(r->mark);
    free(r->buffer);
    *r = (struct routed){ 0 };
}

bool routed_wanted(const struct routed *r)
{
    const struct model_config *c = model_config(r->l->c->m);
    int64_t n = r->experts ? model_linear_count(c, r->layer) : 0;
    struct linear k;

    if (r->l->c->skip_experts)
        return false;
    for (int64_t i = model_linear_common(c, r->layer); i < n; i++) {
        model_linear(c, r->layer, i, &k);
        if (!codes_has(r->l->c->codes, k.module))
            return true;
    }
    return false;
}

int routed_take(struct routed *r, const struct span *b, const struct state *s,
                bool original, struct err *e)
{
    if (!r->experts)
        return 0;
    return mixture_take(original ? &r->original : &r->mix, s, b->row, e);
}

/* ---- activations ---- */

/* The linears of an expert that read `in`, a line each; false: all of them
 * have codes. */
static bool readers(const struct routed *r, int64_t expert, enum input_class in,
                    char *to, size_t cap)
{
    const struct model_config *c = model_config(r->l->c->m);
    int64_t n = model_linear_count(c, r->layer), at = 0;
    bool wanted = false;
    struct linear k;

    *to = 0;
    for (int64_t i = model_linear_common(c, r->layer); i < n; i++) {
        model_linear(c, r->layer, i, &k);
        if (k.expert != expert || k.input != in)
            continue;
        at += snprintf(to + at, cap - (size_t)at, "%s%s", at ? "\n" : "",
                       k.module);
        wanted |= !codes_has(r->l->c->codes, k.module);
    }
    return wanted;
}

/* ---- in front of an activation ---- */

struct owed {
    const struct routed *r;
    const struct expert_rows *x;
    char *to; /* [n, H] elements */
};

/* The experts e of a token are added to it with weights g_e: shares of
 * g_e / sum of g² make up for all that it lacks, and are the smallest that do. */
static float share(const struct routing *g, int64_t slot)
{
    const float *w = g->weights + slot / g->top_k * g->top_k;
    double squares = 0;

    for (int64_t k = 0; k < g->top_k; k++)
        squares += (double)w[k] * (double)w[k];
    return squares > 0 ? (float)((double)g->weights[slot] / squares) : 0;
}

/* What an expert's output lacks by its input, and its share of what the
 * residual stream lacks before experts are added. */
static void owe_rows(void *ctx, size_t begin, size_t end)
{
    const struct owed *j = ctx;
    const struct loop *l = j->r->l;
    const struct routing *g = &j->r->mix.routing;
    enum dtype t = model_dtype(l->c->m);
    size_t h = (size_t)model_config(l->c->m)->hidden_size;
    enum { PIECE = 256 };

    for (size_t i = begin; i < end; i++) {
        size_t item = dtype_bits(t) / 8, row = h * item;
        int64_t token = j->x->slot[i] / g->top_k;
        const char *from[] = { (const char *)j->x->there + i * row,
                               store_x(l->original, token),
                               store_x(l->s, token) };
        float s = share(g, j->x->slot[i]), v[3][PIECE];

        for (size_t c = 0; c < h; c += PIECE) {
            size_t n = h - c < PIECE ? h - c : PIECE;

            for (int k = 0; k < 3; k++)
                (void)!to_f32(v[k], from[k] + c * item, t, n);
            for (size_t k = 0; k < n; k++)
                v[0][k] += s * (v[1][k] - v[2][k]);
            (void)!from_f32(j->to + i * row + c * item, t, v[0], n);
        }
    }
}

/* How far the input of gate and up drifts; by how much the output of down
 * falls short. */
static int put_beside(struct routed *r, const struct expert_rows *x,
                      enum input_class in, const struct frame *f, struct err *e)
{
    size_t h = (size_t)model_config(r->l->c->m)->hidden_size;
    size_t n = f->dims[0] * h;
    struct owed owed = { .r = r, .x = x };

    if (mem_grow(&r->buffer, (n + 1) * dtype_bits(f->dtype) / 8, f->name, e) <
        0)
        return e->code;
    owed.to = r->buffer;
    if (in == IN_EXPERT)
        emit_subtract(r->buffer, x->there, x->rows, NULL, n, f->dtype);
    else
        threads_for((size_t)x->n, 64, owe_rows, &owed);
    return emit_beside(r->l->c->out, f, in == IN_EXPERT ? ".drift" : ".gap", h,
                       r->buffer, e);
}

static int put(struct routed *r, const struct expert_rows *x,
               enum input_class in, struct err *e)
{
    struct calib *c = r->l->c;
    const struct model_config *m = model_config(c->m);
    int64_t width = in == IN_EXPERT ? m->hidden_size : m->moe.width;
    char modules[3 * MODULE_PATH_MAX], name[MODULE_PATH_MAX];
    struct frame f = { .role = ROLE_ACTIVATION,
                       .dtype = model_dtype(c->m),
                       .ndim = 2,
                       .dims = { (uint64_t)x->n, (uint64_t)width },
                       .modules = modules,
                       .samples = (uint64_t)x->n,
                       .sequence = ++r->part,
                       .last = x->last,
                       .data = x->rows };

    if (x->last)
        r->part = 0;
    if (!readers(r, x->expert, in, modules, sizeof(modules)) && c->feedback)
        return 0;
    f.len = (size_t)(x->n * width) * (f.dtype == DT_BF16 ? 2 : 4);
    model_activation_name(m, r->layer, in, x->expert, name);
    snprintf(f.name, sizeof(f.name), "%s", name);
    if ((x->there && put_beside(r, x, in, &f, e) < 0) ||
        stream_write(c->out, &f, e) < 0)
        return e->code;
    if (!x->last || !c->feedback)
        return 0;
    if (loop_mark(r->l, name, e) < 0)
        return e->code;
    r->mark[2 * x->expert + (in == IN_EXPERT_MID)] = r->l->marks;
    return 0;
}

static int put_in(void *arg, const struct expert_rows *x, struct err *e)
{
    return put(arg, x, IN_EXPERT, e);
}

static int put_mid(void *arg, const struct expert_rows *x, struct err *e)
{
    return put(arg, x, IN_EXPERT_MID, e);
}

/* Codes of an expert are kept while they are used, not longer. */
static int take_codes(void *arg, const struct linear *l, int n,
                      const struct codes **codes, struct err *e)
{
    struct routed *r = arg;
    struct calib *c = r->l->c;
    bool mid = l->input == IN_EXPERT_MID;

    *codes = c->codes;
    if (!c->feedback)
        return 0;
    for (int i = 0; i < r->n_old; i++)
        codes_remove(c->codes, r->old[i].module);
    r->n_old = n < (int)ARRAY_LEN(r->old) ? n : (int)ARRAY_LEN(r->old);
    memcpy(r->old, l, (size_t)r->n_old * sizeof(*l));
    return feedback_wait(c->feedback, r->mark[2 * l->expert + mid], c->codes,
                         e);
}

/* ---- the whole ---- */

static int put_hitmap(struct routed *r, struct err *e)
{
    size_t n = (size_t)r->experts * EXPERT_STATS;
    float *value = mem_alloc(n * sizeof(*value), "hit map", e);
    struct frame f = { .role = ROLE_HITMAP,
                       .dtype = DT_F32,
                       .ndim = 2,
                       .dims = { (uint64_t)r->experts, EXPERT_STATS },
                       .data = value,
                       .len = n * sizeof(*value) };
    int rc;

    if (!value)
        return e->code;
    for (size_t i = 0; i < n; i++)
        value[i] = (float)r->stats[i];
    snprintf(f.name, sizeof(f.name), "model.layers.%lld.mlp",
             (long long)r->layer);
    rc = stream_write(r->l->c->out, &f, e);
    free(value);
    return rc;
}

static int add(struct routed *r, const struct mixture *x, const struct store *s,
               struct err *e)
{
    for (int64_t i = 0; i < s->n_batches; i++) {
        const struct span *b = &s->batch[i];

        mixture_add(x, store_x(s, b->row), b->row, b->rows);
        if (s == r->l->s && loop_check(r->l, b, r->layer + 1, e) < 0)
            return e->code;
        store_leave(s, b);
    }
    return 0;
}

/* What leaves the layer, in both streams. */
static int add_all(struct routed *r, struct err *e)
{
    const struct loop *l = r->l;

    if (add(r, &r->mix, l->s, e) < 0)
        return e->code;
    if (!l->original)
        return 0;
    if (mixture_run(&r->original, NULL, NULL, NULL, e) < 0)
        return e->code;
    return add(r, &r->original, l->original, e);
}

int routed_run(struct routed *r, bool emit, bool add_out, struct err *e)
{
    struct expert_hooks hooks = {
        .in = put_in, .mid = put_mid, .codes = take_codes, .arg = r
    };
    struct calib *c = r->l->c;
    bool hook = emit && (!c->feedback || routed_wanted(r));

    if (hook && r->l->original)
        r->mix.other = r->original.in.p;
    if (!r->experts)
        return 0;
    if (c->skip_experts)
        experts_count(&r->mix.routing, r->experts, r->stats);
    else if (mixture_run(&r->mix, c->codes, hook ? &hooks : NULL, r->stats, e) <
             0)
        return e->code;
    if ((emit || c->output == CALIB_HITMAP) && put_hitmap(r, e) < 0)
        return e->code;
    return add_out && !c->skip_experts ? add_all(r, e) : 0;
}
