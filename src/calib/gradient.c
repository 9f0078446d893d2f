/* gradient.c - see gradient.h. */
#include "calib/gradient.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/emit.h"
#include "calib/store.h"
#include "model/backward.h"
#include "model/moe.h"

struct run {
    struct gradient *g;
    struct store s;
    struct state state;
    struct region
        *in; /* [layers]: residual stream before the layer, all rows */
    struct region *mid; /* [layers]: residual stream behind attention */
    float *grad;        /* [rows, H]: gradient of the residual stream */
    struct buffer out;  /* a sequence's gradients in the model's dtype */
    size_t row;         /* bytes of H elements */
};

/* ---- forward ---- */

static void keep(struct run *r, const struct region *to, const struct span *b)
{
    memcpy((char *)to->p + (size_t)b->row * r->row, r->state.x,
           (size_t)b->rows * r->row);
}

/* Run a batch through a layer; keeps the residual stream before it and behind
 * attention. */
static int pass_batch(struct run *r, int64_t layer, struct layer *w,
                      struct mixture *x, const struct span *b, struct err *e)
{
    if (store_load(&r->s, b, POINT_IN, &r->state, e) < 0)
        return e->code;
    keep(r, &r->in[layer], b);
    if (layer_run(w, &r->state, POINT_MLP_IN, NULL, e) < 0)
        return e->code;
    keep(r, &r->mid[layer], b);
    if (x->m && mixture_take(x, &r->state, b->row, e) < 0)
        return e->code;
    if (layer_run(w, &r->state, POINT_OUT, NULL, e) < 0)
        return e->code;
    progress_step(r->g->progress, NULL, (size_t)b->rows * r->row);
    return 0;
}

static int pass_layer(struct run *r, int64_t layer, struct err *e)
{
    struct model *m = r->g->m;
    struct mixture x = { 0 };
    struct layer *w = NULL;
    int rc = 0;

    region_init(&r->in[layer], r->g->dir);
    region_init(&r->mid[layer], r->g->dir);
    if (region_reserve(&r->in[layer], (size_t)r->s.rows * r->row, e) < 0 ||
        region_reserve(&r->mid[layer], (size_t)r->s.rows * r->row, e) < 0)
        return e->code;
    if (model_layer_experts(model_config(m), layer))
        rc = mixture_open(&x, m, layer, r->s.rows, r->g->dir, e);
    if (rc >= 0)
        rc = model_load_layer(m, layer, POINT_IN, POINT_OUT, NULL, &w, e);
    for (int64_t i = 0; i < r->s.n_batches && rc >= 0; i++)
        rc = pass_batch(r, layer, w, &x, &r->s.batch[i], e);
    layer_release(w);
    if (rc >= 0 && x.m) {
        rc = mixture_run(&x, NULL, NULL, NULL, e);
        if (rc >= 0)
            rc = mixture_add(&x, store_x(&r->s, 0), 0, r->s.rows, e);
    }
    mixture_close(&x);
    return rc;
}

/* ---- backward ---- */

/* The linears that read point p and write into the residual stream, separated
 * by newlines; experts' included, although the router scales their outputs
 * first.  free() it. */
static char *writers(const struct model_config *c, int64_t layer, enum point p,
                     struct err *e)
{
    enum input_class expert = p == POINT_MLP_MID ? IN_EXPERT_MID : IN_COUNT;
    size_t n = (size_t)model_linear_count(c, layer), at = 0;
    char *text = mem_alloc(n * (MODULE_PATH_MAX + 1), "gradients", e);
    struct linear l;

    for (size_t i = 0; i < n && text; i++) {
        model_linear(c, layer, (int64_t)i, &l);
        if (l.input == point_input(p) || l.input == expert)
            at += (size_t)snprintf(text + at, MODULE_PATH_MAX + 1, "%s%s",
                                   at ? "\n" : "", l.module);
    }
    return text;
}

/* Write the gradients g[rows, width] of sequences first..first+n-1, a frame
 * each. */
static int put_rows(struct run *r, struct frame *f, int64_t first, int64_t n,
                    const float *g, int64_t width, struct err *e)
{
    f->role = ROLE_ACTIVATION;
    f->dtype = model_dtype(r->g->m);
    f->ndim = 2;
    f->dims[1] = (uint64_t)width;
    for (int64_t i = first; i < first + n; i++) {
        int64_t count = r->s.sequence[i].length * width;

        if (buffer_reserve(&r->out, count, 1, sizeof(float), f->name, e) < 0)
            return e->code;
        if (!from_f32(r->out.p, f->dtype, g, (size_t)count))
            return err_set(e, E_BUG, "gradients are no float");
        g += count;
        f->sequence = r->s.sequence[i].number;
        f->last = i == r->s.n_sequences - 1;
        f->dims[0] = f->samples = (uint64_t)r->s.sequence[i].length;
        f->len = (size_t)count * dtype_bits(f->dtype) / 8;
        f->data = r->out.p;
        if (stream_write(r->g->out, f, e) < 0)
            return e->code;
    }
    return 0;
}

static int put(struct run *r, int64_t layer, enum point p, struct err *e)
{
    const struct model_config *c = model_config(r->g->m);
    char *modules = writers(c, layer, p, e);
    struct frame f = { .modules = modules };
    int rc;

    if (!modules)
        return e->code;
    emit_name(layer, p, f.name);
    strcat(f.name, companion_suffix(COMPANION_GRADIENT));
    rc = put_rows(r, &f, 0, r->s.n_sequences, r->grad, c->hidden_size, e);
    free(modules);
    return rc;
}

/* Write a batch's gradients of the outputs of linears in front of attention. */
static int put_keys(struct run *r, int64_t layer, const struct span *b,
                    const struct attention_back *a, struct err *e)
{
    const struct model_config *c = model_config(r->g->m);
    int64_t n = model_linear_common(c, layer);
    struct linear l;

    for (int64_t i = 0; i < n; i++) {
        const float *g;
        struct frame f = { .modules = l.module };

        model_linear(c, layer, i, &l);
        if (!(g = backward_attention_of(a, &l)))
            continue;
        snprintf(f.name, sizeof(f.name), "%s%s", l.module,
                 companion_suffix(COMPANION_GRADIENT));
        if (put_rows(r, &f, b->first, b->n, g, l.rows, e) < 0)
            return e->code;
    }
    return 0;
}

static int back_attention(struct run *r, int64_t layer, struct err *e)
{
    int64_t h = model_config(r->g->m)->hidden_size;
    struct attention_back *a = NULL;
    int rc = backward_attention_open(r->g->m, layer, &a, e);

    for (int64_t i = 0; i < r->s.n_batches && rc >= 0; i++) {
        const struct span *b = &r->s.batch[i];

        rc = store_load(&r->s, b, POINT_IN, &r->state, e);
        if (rc >= 0)
            rc = backward_attention(
                a, (char *)r->in[layer].p + (size_t)b->row * r->row,
                r->state.first, b->n, r->grad + b->row * h, e);
        if (rc >= 0)
            rc = put_keys(r, layer, b, a, e);
    }
    backward_attention_close(a);
    return rc;
}

static void drop(struct region *r)
{
    region_release(r);
    *r = (struct region){ 0 };
}

static int back_layer(struct run *r, int64_t layer, struct err *e)
{
    if (put(r, layer, POINT_MLP_MID, e) < 0 ||
        backward_mlp(r->g->m, layer, r->mid[layer].p, r->s.rows, r->grad, e) <
            0 ||
        put(r, layer, POINT_ATTN_OUT, e) < 0)
        return e->code;
    drop(&r->mid[layer]);
    if (back_attention(r, layer, e) < 0)
        return e->code;
    drop(&r->in[layer]);
    return 0;
}

/* ---- gradient_run() ---- */

/* Cut the store to the batches that gradient.tokens asks for. */
static void limit(struct store *s, int64_t tokens)
{
    int64_t rows = 0, i = 0;

    while (i < s->n_batches && (!tokens || rows < tokens))
        rows += s->batch[i++].rows;
    s->n_batches = i;
    s->rows = rows;
    s->n_sequences = i ? s->batch[i - 1].first + s->batch[i - 1].n : 0;
}

static int run_all(struct run *r, struct err *e)
{
    struct gradient *g = r->g;
    const struct model_config *c = model_config(g->m);
    size_t n;

    if (store_fill(&r->s, g->batches, e) < 0)
        return e->code;
    model_release_embedding(g->m);
    limit(&r->s, g->tokens);
    g->progress->total = (uint64_t)(r->s.n_batches * c->n_layers);
    for (int64_t i = 0; i < c->n_layers; i++)
        if (pass_layer(r, i, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    n = (size_t)(r->s.rows * c->hidden_size);
    r->grad = mem_pages(n * sizeof(float), "gradients", e);
    if (!r->grad ||
        backward_head(g->m, store_x(&r->s, 0), r->s.rows, 0, r->grad, e) < 0)
        return e->code;
    for (int64_t i = c->n_layers; i-- > 0;)
        if (back_layer(r, i, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    return 0;
}

int gradient_run(struct gradient *g, struct err *e)
{
    const struct model_config *c = model_config(g->m);
    struct run r = { .g = g,
                     .row = (size_t)c->hidden_size *
                            (model_dtype(g->m) == DT_BF16 ? 2 : 4) };
    int rc;

    if (!batch_reader_is_tokens(g->batches))
        return err_set(e, E_DATA, "the input has no tokens");
    store_init(&r.s, g->m, g->dir);
    r.in = mem_zero(2 * (size_t)c->n_layers, sizeof(*r.in), "gradients", e);
    r.mid = r.in + c->n_layers;
    rc = r.in ? run_all(&r, e) : e->code;
    for (int64_t i = 0; r.in && i < 2 * c->n_layers; i++)
        region_release(&r.in[i]);
    free(r.in);
    free(r.grad);
    buffer_release(&r.out);
    state_release(&r.state);
    store_release(&r.s);
    return rc;
}
