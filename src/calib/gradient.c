/* gradient.c - see gradient.h. */
#include "calib/gradient.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/lacks.h"
#include "calib/emit.h"
#include "calib/store.h"
#include "device/device.h"
#include "model/backward.h"
#include "model/moe.h"

struct run {
    struct gradient *g;
    struct store s; /* the embedded tokens */
    struct state state;
    struct region states;      /* [2 * layers, rows]: the residual stream behind
                           * each layer's attention, and behind the layer */
    struct region outputs;     /* [2 * layers, rows]: what o and down put out
                           * in front of the norms behind them, if there are any */
    struct buffer output;      /* of a batch, where layers run */
    struct token_rows grad;    /* [rows, H]: gradient of the residual stream */
    struct token_rows outer;   /* [rows, H]: with respect to what attention or
                           * MLP puts out, if it is another one */
    struct buffer narrow, out; /* gradients in the model's dtype, on a device
                                * and on the host */
    size_t row;                /* bytes of H elements */
};

/* ---- the residual stream ---- */

/* Row `row` of the stream in front of a layer, behind the layer's attention. */
static size_t state_at(const struct run *r, int64_t number, int64_t row)
{
    return (size_t)(number * r->s.rows + row) * r->row;
}

static char *before(const struct run *r, int64_t layer, int64_t row)
{
    return layer ? (char *)r->states.p + state_at(r, 2 * layer - 1, row) :
                   store_x(&r->s, row);
}

static char *between(const struct run *r, int64_t layer, int64_t row)
{
    return (char *)r->states.p + state_at(r, 2 * layer, row);
}

/* Rows of the stream, from row `row` of before(layer) on or of between(), are
 * not needed soon. */
static void leave(const struct run *r, int64_t number, int64_t row, int64_t n)
{
    if (number >= 0)
        region_leave(&r->states, state_at(r, number, row), (size_t)n * r->row);
    else
        region_leave(&r->s.x, (size_t)row * r->row, (size_t)n * r->row);
}

/* Set up the state for a batch at POINT_IN of a layer. */
static int load(struct run *r, int64_t layer, const struct span *b,
                struct err *e)
{
    struct state *s = &r->state;
    int64_t length[BATCH_SEQUENCES];

    for (int64_t i = 0; i < b->n; i++)
        length[i] = r->s.sequence[b->first + i].length;
    if (state_prepare(s, r->g->m, POINT_IN, length, b->n, e) < 0)
        return e->code;
    return model_put(r->g->m, s->x, before(r, layer, b->row),
                     (size_t)b->rows * r->row, e);
}

static int keep(struct run *r, char *to, const struct span *b, struct err *e)
{
    return model_get(r->g->m, to, r->state.x, (size_t)b->rows * r->row, e);
}

/* ---- forward ---- */

/* What linear 2 * layer (o) or 2 * layer + 1 (down) put out for a row; NULL:
 * there are no norms behind. */
static char *output_of(const struct run *r, int64_t number, int64_t row)
{
    return r->outputs.p ? (char *)r->outputs.p + state_at(r, number, row) :
                          NULL;
}

static int keep_output(struct run *r, int64_t number, const struct span *b,
                       struct err *e)
{
    char *to = output_of(r, number, b->row);
    size_t n = (size_t)b->rows * r->row;

    if (!to)
        return 0;
    if (model_get(r->g->m, to, r->output.p, n, e) < 0)
        return e->code;
    region_leave(&r->outputs, state_at(r, number, b->row), n);
    return 0;
}

/* Run a batch through a layer, its experts excepted; keeps the residual stream
 * behind attention and behind the layer. */
static int pass_batch(struct run *r, int64_t layer, struct layer *w,
                      struct mixture *x, const struct span *b, struct err *e)
{
    if (load(r, layer, b, e) < 0)
        return e->code;
    if (r->outputs.p && model_reserve_rows(r->g->m, &r->output, b->rows, e) < 0)
        return e->code;
    r->state.output = r->output.p;
    if (layer_run(w, &r->state, POINT_MLP_IN, NULL, e) < 0 ||
        keep(r, between(r, layer, b->row), b, e) < 0 ||
        keep_output(r, 2 * layer, b, e) < 0 ||
        (x->m && mixture_take(x, &r->state, b->row, e) < 0) ||
        layer_run(w, &r->state, POINT_OUT, NULL, e) < 0 ||
        keep_output(r, 2 * layer + 1, b, e) < 0 ||
        keep(r, before(r, layer + 1, b->row), b, e) < 0)
        return e->code;
    leave(r, 2 * layer - 1, b->row, b->rows);
    leave(r, 2 * layer, b->row, b->rows);
    if (!x->m)
        leave(r, 2 * layer + 1, b->row, b->rows);
    progress_step(r->g->progress, NULL, (size_t)b->rows * r->row);
    return 0;
}

/* Add what the experts put out for a batch to the stream behind the layer. */
static int add_experts(struct run *r, int64_t layer, const struct mixture *x,
                       const struct span *b, struct err *e)
{
    if (load(r, layer + 1, b, e) < 0 ||
        mixture_add(x, r->state.x, b->row, b->rows, e) < 0 ||
        keep(r, before(r, layer + 1, b->row), b, e) < 0)
        return e->code;
    leave(r, 2 * layer + 1, b->row, b->rows);
    return 0;
}

static int pass_layer(struct run *r, int64_t layer, struct err *e)
{
    struct model *m = r->g->m;
    struct mixture x = { 0 };
    struct layer *w = NULL;
    int rc = 0;

    if (model_layer_experts(model_config(m), layer))
        rc = mixture_open(&x, m, layer, r->s.rows, true, r->g->dir, e);
    if (rc >= 0)
        rc = model_load_layer(m, layer, POINT_IN, POINT_OUT, NULL, &w, e);
    for (int64_t i = 0; i < r->s.n_batches && rc >= 0; i++)
        rc = pass_batch(r, layer, w, &x, &r->s.batch[i], e);
    layer_release(w);
    if (rc >= 0 && x.m)
        rc = mixture_run(&x, NULL, NULL, NULL, e);
    for (int64_t i = 0; x.m && i < r->s.n_batches && rc >= 0; i++)
        rc = add_experts(r, layer, &x, &r->s.batch[i], e);
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

/* Write a batch's gradients g[rows, width], a frame for each sequence. */
static int put_rows(struct run *r, struct frame *f, const struct span *b,
                    const float *g, int64_t width, struct err *e)
{
    const struct model *m = r->g->m;
    size_t row = (size_t)width * dtype_bits(model_dtype(m)) / 8;
    const char *data;

    f->role = ROLE_ACTIVATION;
    f->dtype = model_dtype(m);
    f->ndim = 2;
    f->dims[1] = (uint64_t)width;
    if (buffer_reserve(&r->out, b->rows, (int64_t)row, 1, f->name, e) < 0 ||
        backward_get(m, g, b->rows * width, &r->narrow, r->out.p, e) < 0)
        return e->code;
    data = r->out.p;
    for (int64_t i = b->first; i < b->first + b->n; i++) {
        f->sequence = r->s.sequence[i].number;
        f->last = i == r->s.n_sequences - 1;
        f->dims[0] = f->samples = (uint64_t)r->s.sequence[i].length;
        f->len = (size_t)f->dims[0] * row;
        f->data = data;
        data += f->len;
        if (stream_write(r->g->out, f, e) < 0)
            return e->code;
    }
    return 0;
}

static int put(struct run *r, int64_t layer, enum point p, const float *g,
               struct err *e)
{
    const struct model_config *c = model_config(r->g->m);
    char *modules = writers(c, layer, p, e);
    struct frame f = { .modules = modules };
    int rc = modules ? 0 : e->code;

    emit_name(layer, p, f.name);
    strcat(f.name, companion_suffix(COMPANION_GRADIENT));
    for (int64_t i = 0; i < r->s.n_batches && rc >= 0; i++) {
        const struct span *b = &r->s.batch[i];

        rc = put_rows(r, &f, b, g + b->row * c->hidden_size, c->hidden_size, e);
    }
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
        if (put_rows(r, &f, b, g, l.rows, e) < 0)
            return e->code;
    }
    return 0;
}

/* *out: the gradients with respect to what attention or MLP puts out. */
static int back_output(struct run *r, int64_t layer, bool attention,
                       const float **out, struct err *e)
{
    struct backward_output o = { .layer = layer,
                                 .attention = attention,
                                 .n = r->s.rows,
                                 .g = r->grad.p,
                                 .to = r->outer.p };
    int64_t number = 2 * layer + !attention;

    *out = r->grad.p;
    if (!r->outer.p)
        return 0;
    o.y = output_of(r, number, 0);
    *out = r->outer.p;
    if (backward_output(r->g->m, &o, e) < 0)
        return e->code;
    if (o.y)
        region_leave(&r->outputs, state_at(r, number, 0),
                     (size_t)r->s.rows * r->row);
    return 0;
}

static int back_attention(struct run *r, int64_t layer, const float *out,
                          struct err *e)
{
    int64_t h = model_config(r->g->m)->hidden_size;
    struct attention_back *a = NULL;
    int rc = backward_attention_open(r->g->m, layer, &a, e);

    for (int64_t i = 0; i < r->s.n_batches && rc >= 0; i++) {
        const struct span *b = &r->s.batch[i];
        const struct sequence *s = &r->s.sequence[b->first];
        int64_t first[BATCH_SEQUENCES + 1] = { 0 };

        for (int64_t k = 0; k < b->n; k++)
            first[k + 1] = first[k] + s[k].length;
        rc = backward_attention(a, before(r, layer, b->row), first, b->n,
                                out + b->row * h, r->grad.p + b->row * h, e);
        if (rc >= 0)
            rc = put_keys(r, layer, b, a, e);
        leave(r, 2 * layer - 1, b->row, b->rows);
    }
    backward_attention_close(a);
    return rc;
}

static int back_layer(struct run *r, int64_t layer, struct err *e)
{
    const float *out;

    if (back_output(r, layer, false, &out, e) < 0 ||
        put(r, layer, POINT_MLP_MID, out, e) < 0 ||
        backward_mlp(r->g->m, layer, between(r, layer, 0), r->s.rows, r->g->dir,
                     out, r->grad.p, e) < 0)
        return e->code;
    leave(r, 2 * layer, 0, r->s.rows);
    return back_output(r, layer, true, &out, e) < 0 ||
                   put(r, layer, POINT_ATTN_OUT, out, e) < 0 ?
               e->code :
               back_attention(r, layer, out, e);
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

/* Open the device, and the memory of all tokens. */
static int open_all(struct run *r, struct err *e)
{
    struct gradient *g = r->g;
    const struct model_config *c = model_config(g->m);
    const char *lacks;
    size_t n;

    if (store_fill(&r->s, g->batches, e) < 0)
        return e->code;
    lacks = model_lacks(c, store_longest(&r->s));
    if (lacks)
        return err_set(e, E_CONFIG,
                       "%s has %s: its gradients are not supported",
                       c->family->model_type, lacks);
    limit(&r->s, g->tokens);
    if (store_embed(&r->s, e) < 0)
        return e->code;
    model_release_embedding(g->m);
    if (size_mul((size_t)(2 * c->n_layers), (size_t)r->s.rows * r->row, &n))
        return err_set(e, E_TEMP, "states: too many tokens");
    if (device_open(g->device, &forward_plugin, e) < 0 ||
        backward_use_device(g->m, e) < 0 ||
        region_reserve(&r->states, n, e) < 0 ||
        (model_norms(c)->attn_out && region_reserve(&r->outputs, n, e) < 0) ||
        token_rows_open(&r->grad, g->m, g->dir, r->s.rows * c->hidden_size, e) <
            0)
        return e->code;
    return model_adds_scaled(c) ?
               token_rows_open(&r->outer, g->m, g->dir,
                               r->s.rows * c->hidden_size, e) :
               0;
}

static int run_all(struct run *r, struct err *e)
{
    struct gradient *g = r->g;
    int64_t n = model_config(g->m)->n_layers;

    if (open_all(r, e) < 0)
        return e->code;
    g->progress->total = (uint64_t)(r->s.n_batches * n);
    for (int64_t i = 0; i < n; i++)
        if (pass_layer(r, i, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    if (backward_head(g->m, before(r, n, 0), r->s.rows, 0, r->grad.p, e) < 0)
        return e->code;
    leave(r, 2 * n - 1, 0, r->s.rows);
    for (int64_t i = n; i-- > 0;)
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
    region_init(&r.states, g->dir);
    region_init(&r.outputs, g->dir);
    rc = run_all(&r, e);
    token_rows_close(&r.grad);
    token_rows_close(&r.outer);
    model_buffer_release(g->m, &r.output);
    region_release(&r.outputs);
    model_buffer_release(g->m, &r.narrow);
    buffer_release(&r.out);
    state_release(&r.state);
    region_release(&r.states);
    store_release(&r.s);
    return rc;
}
