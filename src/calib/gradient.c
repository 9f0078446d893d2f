/* gradient.c - see gradient.h. */
#include "calib/gradient.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/lacks.h"
#include "calib/choice_cost.h"
#include "calib/emit.h"
#include "calib/gradient_frames.h"
#include "calib/gradient_weights.h"
#include "calib/store.h"
#include "common/math/threads.h"
#include "device/device.h"
#include "model/backward.h"
#include "model/moe.h"

/* Of the batches that go forward and backward together. */
struct window {
    const struct span *batch;
    int64_t n_batches, row, rows; /* rows row..row+rows-1 of all */
    bool writes;                  /* gradients; not weights alone */
};

struct run {
    struct gradient *g;
    struct store s; /* the embedded tokens */
    struct window w;
    struct state state;
    struct region states;    /* [2 * layers, rows]: the residual stream behind
                           * each layer's attention, and behind the layer */
    struct region outputs;   /* [2 * layers, rows]: what o and down put out
                           * in front of the norms behind them, if there are any */
    struct buffer output;    /* of a batch, where layers run */
    struct token_rows grad;  /* [rows, H]: gradient of the residual stream */
    struct token_rows outer; /* [rows, H]: with respect to what attention or MLP
                              * puts out, if it is another one */
    struct gradient_frames frames;
    /* choice_cost() of the last mixture and the first batch; 0: not yet. */
    double choice;
    size_t row; /* bytes of H elements */
};

/* ---- the residual stream ---- */

/* Row `row` of all: of the stream in front of a layer, behind the layer's
 * attention. */
static size_t state_at(const struct run *r, int64_t number, int64_t row)
{
    return (size_t)(number * r->w.rows + row - r->w.row) * r->row;
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
        (x->m && mixture_take(x, &r->state, b->row - r->w.row, e) < 0) ||
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
        mixture_add(x, r->state.x, b->row - r->w.row, b->rows, e) < 0 ||
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
        rc = mixture_open(&x, m, layer, r->w.rows, r->w.rows, r->g->dir, e);
    if (rc >= 0)
        rc = model_load_layer(m, layer, POINT_IN, POINT_OUT, NULL, &w, e);
    for (int64_t i = 0; i < r->w.n_batches && rc >= 0; i++)
        rc = pass_batch(r, layer, w, &x, &r->w.batch[i], e);
    layer_release(w);
    if (rc >= 0 && x.m)
        rc = mixture_run(&x, NULL, NULL, NULL, e);
    for (int64_t i = 0; x.m && i < r->w.n_batches && rc >= 0; i++)
        rc = add_experts(r, layer, &x, &r->w.batch[i], e);
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

/* Write the gradients g[rows, width] of n batches from b on. */
static int put_rows(struct run *r, const struct frame *f, const struct span *b,
                    int64_t n, const float *g, int64_t width, struct err *e)
{
    const struct span *end = &r->w.batch[r->w.n_batches - 1];

    return gradient_frames_put(&r->frames, f, b, n, g, width,
                               end->first + end->n - 1, e);
}

static int put(struct run *r, int64_t layer, enum point p, const float *g,
               struct err *e)
{
    const struct model_config *c = model_config(r->g->m);
    struct frame f = { 0 };
    char *modules;
    int rc;

    if (!r->w.writes)
        return 0;
    f.modules = modules = writers(c, layer, p, e);
    if (!modules)
        return e->code;
    emit_name(layer, p, f.name);
    strcat(f.name, companion_suffix(COMPANION_GRADIENT));
    rc = put_rows(r, &f, r->w.batch, r->w.n_batches, g, c->hidden_size, e);
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
        if (put_rows(r, &f, b, 1, g, l.rows, e) < 0)
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
                                 .n = r->w.rows,
                                 .g = r->grad.p,
                                 .to = r->outer.p };
    int64_t number = 2 * layer + !attention;

    *out = r->grad.p;
    if (!r->outer.p)
        return 0;
    o.y = output_of(r, number, r->w.row);
    *out = r->outer.p;
    if (backward_output(r->g->m, &o, e) < 0)
        return e->code;
    if (o.y)
        region_leave(&r->outputs, state_at(r, number, r->w.row),
                     (size_t)r->w.rows * r->row);
    return 0;
}

static int back_batch(struct run *r, const struct span *b,
                      struct attention_back *a, const float *out,
                      const struct gradient_weights *w, struct err *e)
{
    int64_t row = b->row - r->w.row;
    int64_t at = row * model_config(r->g->m)->hidden_size;
    int64_t first[BATCH_SEQUENCES + 1] = { 0 };
    struct attention_batch batch = { .x = before(r, w->layer, b->row),
                                     .first = first,
                                     .n_sequences = b->n,
                                     .out = out + at,
                                     .g = r->grad.p + at,
                                     .squares = w->squares };

    for (int64_t k = 0; k < b->n; k++)
        first[k + 1] = first[k] + r->s.sequence[b->first + k].length;
    if (batch.squares.p)
        batch.squares.p += row;
    if (backward_attention(a, &batch, e) < 0)
        return e->code;
    return r->w.writes ? put_keys(r, w->layer, b, a, e) : 0;
}

static int back_attention(struct run *r, const float *out,
                          const struct gradient_weights *w, struct err *e)
{
    struct attention_back *a = NULL;
    int rc = backward_attention_open(r->g->m, w->layer, &a, e);

    for (int64_t i = 0; i < r->w.n_batches && rc >= 0; i++) {
        const struct span *b = &r->w.batch[i];

        rc = back_batch(r, b, a, out, w, e);
        leave(r, 2 * w->layer - 1, b->row, b->rows);
    }
    backward_attention_close(a);
    return rc;
}

/* What margins of a mixture's routers add to the gradients (model/moe.h).  One cost serves
 * all layers: further down gradients have those margins in them. */
static int open_margins(struct run *r, int64_t layer, struct margins *to,
                        struct err *e)
{
    const struct span *b = r->w.batch;

    if (r->choice == 0 && choice_cost(r->g->m, layer, between(r, layer, b->row),
                                      before(r, layer + 1, b->row), r->grad.p,
                                      b->rows, &r->choice, e) < 0)
        return e->code;
    *to = (struct margins){ .by = r->choice,
                            .first = ((uint64_t)layer + 1) << 40 |
                                     (uint64_t)r->w.row };
    return 0;
}

static int back_blocks(struct run *r, const struct gradient_weights *w,
                       struct err *e)
{
    int64_t layer = w->layer;
    struct margins margins;
    struct backward_block mlp = { .layer = layer,
                                  .n = r->w.rows,
                                  .x = between(r, layer, r->w.row),
                                  .dir = r->g->dir,
                                  .g = r->grad.p,
                                  .squares = w->squares };
    const float *out;

    if (model_layer_experts(model_config(r->g->m), layer) > 0) {
        if (open_margins(r, layer, &margins, e) < 0)
            return e->code;
        mlp.margins = &margins;
    }
    if (back_output(r, layer, false, &mlp.out, e) < 0 ||
        put(r, layer, POINT_MLP_MID, mlp.out, e) < 0 ||
        backward_mlp(r->g->m, &mlp, e) < 0)
        return e->code;
    leave(r, 2 * layer, r->w.row, r->w.rows);
    return back_output(r, layer, true, &out, e) < 0 ||
                   put(r, layer, POINT_ATTN_OUT, out, e) < 0 ?
               e->code :
               back_attention(r, out, w, e);
}

static int back_layer(struct run *r, int64_t layer, struct err *e)
{
    struct gradient_weights w = { .s = &r->s,
                                  .layer = layer,
                                  .first = r->w.batch->first,
                                  .rows = r->w.rows };
    int rc = 0;

    for (int64_t i = 0; i < r->w.n_batches; i++)
        w.n += r->w.batch[i].n;
    if (r->g->weights)
        rc = gradient_weights_open(&w, e);
    if (rc >= 0)
        rc = back_blocks(r, &w, e);
    if (rc >= 0 && r->g->weights)
        rc = gradient_weights_write(&w, r->g->weights, e);
    gradient_weights_close(&w);
    return rc;
}

/* ---- gradient_run() ---- */

/* Cut the store to its first batches. */
static void limit(struct store *s, int64_t batches)
{
    const struct span *last = &s->batch[batches - 1];

    s->n_batches = batches;
    s->rows = last->row + last->rows;
    s->n_sequences = last->first + last->n;
}

/* The window behind r->w, of whole batches with gradient.tokens or more. */
static struct window next_window(const struct run *r)
{
    const struct span *end = r->s.batch + r->s.n_batches;
    struct window w = { .batch = r->w.batch + r->w.n_batches };

    w.writes = w.batch == r->s.batch;
    if (w.batch == end || (!w.writes && !r->g->weights))
        return w;
    w.row = w.batch->row;
    while (w.batch + w.n_batches < end &&
           (!r->g->tokens || w.rows < r->g->tokens))
        w.rows += w.batch[w.n_batches++].rows;
    return w;
}

/* Rows of the largest window; *batches of all. */
static int64_t plan_windows(struct run *r, int64_t *batches)
{
    struct window first = { .batch = r->s.batch };
    int64_t most = 0;

    r->w = first;
    *batches = 0;
    while ((r->w = next_window(r)).rows) {
        most = r->w.rows > most ? r->w.rows : most;
        *batches += r->w.n_batches;
    }
    r->w = first;
    return most;
}

/* Memory of a window's rows. */
static int open_rows(struct run *r, int64_t rows, struct err *e)
{
    struct gradient *g = r->g;
    const struct model_config *c = model_config(g->m);
    int64_t all = rows * c->hidden_size;
    size_t n;

    if (size_mul((size_t)(2 * c->n_layers), (size_t)rows * r->row, &n))
        return err_set(e, E_TEMP, "states: too many tokens");
    if (region_reserve(&r->states, n, e) < 0 ||
        (model_norms(c)->attn_out && region_reserve(&r->outputs, n, e) < 0) ||
        token_rows_open(&r->grad, g->m, g->dir, all, e) < 0)
        return e->code;
    return model_adds_scaled(c) ?
               token_rows_open(&r->outer, g->m, g->dir, all, e) :
               0;
}

/* Of the gradients that go out at a time, at most: a window's of the residual stream,
 * or a batch's of a linear's outputs. */
static size_t most_bytes(const struct run *r, int64_t rows)
{
    const struct model_config *c = model_config(r->g->m);
    int64_t batch = 0, widest = 0, most = rows * c->hidden_size;

    for (int64_t i = 0; i < r->s.n_batches; i++)
        batch = r->s.batch[i].rows > batch ? r->s.batch[i].rows : batch;
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        for (int64_t i = model_linear_common(c, layer); i-- > 0;) {
            struct linear l;

            model_linear(c, layer, i, &l);
            widest = l.rows > widest ? l.rows : widest;
        }
    most = batch * widest > most ? batch * widest : most;
    return (size_t)most * (r->row / (size_t)c->hidden_size);
}

/* Open the device, and the memory of tokens. */
static int open_all(struct run *r, struct err *e)
{
    struct gradient *g = r->g;
    const struct model_config *c = model_config(g->m);
    const char *lacks;
    int64_t rows, batches;

    if (store_fill(&r->s, g->batches, e) < 0)
        return e->code;
    lacks = model_gradient_lacks(c, store_longest(&r->s));
    if (lacks)
        return err_set(e, E_CONFIG,
                       "%s has %s: its gradients are not supported",
                       c->family->model_type, lacks);
    rows = plan_windows(r, &batches);
    g->progress->total = (uint64_t)(batches * c->n_layers);
    if (!g->weights)
        limit(&r->s, batches);
    if (store_embed(&r->s, e) < 0)
        return e->code;
    model_release_embedding(g->m);
    return device_open(g->device, &forward_plugin, e) < 0 ||
                   backward_use_device(g->m, "gradients of a layer take",
                                       gradient_device_bytes(
                                           c, r->row / (size_t)c->hidden_size),
                                       e) < 0 ||
                   open_rows(r, rows, e) < 0 ?
               e->code :
               gradient_frames_open(&r->frames, most_bytes(r, rows), e);
}

static int run_window(struct run *r, struct err *e)
{
    int64_t n = model_config(r->g->m)->n_layers;

    for (int64_t i = 0; i < n; i++)
        if (pass_layer(r, i, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    if (backward_head(r->g->m, before(r, n, r->w.row), r->w.rows,
                      (uint64_t)r->w.row, r->grad.p, e) < 0)
        return e->code;
    leave(r, 2 * n - 1, r->w.row, r->w.rows);
    for (int64_t i = n; i-- > 0;)
        if (back_layer(r, i, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    return gradient_frames_wait(&r->frames, e);
}

static int run_all(struct run *r, struct err *e)
{
    if (open_all(r, e) < 0)
        return e->code;
    while ((r->w = next_window(r)).rows)
        if (run_window(r, e) < 0)
            return e->code;
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
    r.frames = (struct gradient_frames){
        .m = g->m, .s = &r.s, .out = g->out, .ledger = g->ledger
    };
    store_init(&r.s, g->m, g->dir);
    region_init(&r.states, g->dir);
    region_init(&r.outputs, g->dir);
    rc = run_all(&r, e);
    token_rows_close(&r.grad);
    token_rows_close(&r.outer);
    model_buffer_release(g->m, &r.output);
    region_release(&r.outputs);
    gradient_frames_close(&r.frames);
    state_release(&r.state);
    region_release(&r.states);
    store_release(&r.s);
    return rc;
}
