/* pass.c - see pass.h. */
#include "tune/pass.h"

#include <stdlib.h>
#include <string.h>

#include "arch/lacks.h"
#include "model/backward.h"
#include "model/moe.h"

struct pass {
    struct model *m;
    const char *dir;
    int64_t most, rows; /* rows of the largest call, of this one */
    size_t size;        /* bytes of an element */
    struct state state;
    /* Elements of all rows, where layers run; streams [2 * layers + 1, most, H]: in
     * front of layer i, and behind its attention; attended [layers, most, ...]: what o
     * reads; outputs [2 * layers, most, H]: of o and down in front of the norms behind
     * them, if there are any */
    struct token_rows streams, attended, outputs;
    struct buffer output;
    struct token_rows
        outer; /* f32 [most, H], where outputs are scaled or normed */
    /* On a device, as long as its memory is enough: [2 * layers], the original's at
     * 2 * i and the tuned at 2 * i + 1; NULL: not loaded */
    struct layer **kept;
    struct experts_kept **experts; /* [2 * layers], in the same way */
    struct choices *choices;       /* [layers] */
    int64_t changed;               /* pass_changed() */
};

/* What the original's router said of all rows; zeroed: the layer has none. */
struct choices {
    struct routing routing;
    int64_t experts;
    float *logits; /* [most, experts] */
};

static int64_t attended_width(const struct pass *p)
{
    const struct model_config *c = model_config(p->m);

    return c->n_heads * c->v_dim;
}

static void *rows_at(const struct pass *p, const struct token_rows *r,
                     int64_t number, int64_t width)
{
    return r->p ? (char *)r->p + (size_t)(number * p->most * width) * p->size :
                  NULL;
}

static void *stream(const struct pass *p, int64_t number)
{
    return rows_at(p, &p->streams, number, model_config(p->m)->hidden_size);
}

static void *before(const struct pass *p, int64_t layer)
{
    return stream(p, 2 * layer);
}

static void *between(const struct pass *p, int64_t layer)
{
    return stream(p, 2 * layer + 1);
}

static void *attended(const struct pass *p, int64_t layer)
{
    return rows_at(p, &p->attended, layer, attended_width(p));
}

static void *output_of(const struct pass *p, int64_t number)
{
    return rows_at(p, &p->outputs, number, model_config(p->m)->hidden_size);
}

/* Elements of `times` times all rows. */
static int reserve(struct pass *p, struct token_rows *r, int64_t width,
                   int64_t times, struct err *e)
{
    const size_t f32 = sizeof(float);
    size_t n;

    if (size_mul((size_t)p->most, (size_t)width * p->size, &n) ||
        size_mul(n, (size_t)times, &n))
        return err_set(e, E_TEMP, "states: too many tokens");
    return token_rows_open(r, p->m, p->dir, (int64_t)((n + f32 - 1) / f32), e);
}

static int open_rows(struct pass *p, struct err *e)
{
    const struct model_config *c = model_config(p->m);
    int64_t h = c->hidden_size, layers = c->n_layers;

    if (reserve(p, &p->streams, h, 2 * layers + 1, e) < 0 ||
        reserve(p, &p->attended, attended_width(p), layers, e) < 0 ||
        (model_norms(c)->attn_out &&
         reserve(p, &p->outputs, h, 2 * layers, e) < 0))
        return e->code;
    return model_adds_scaled(c) ?
               token_rows_open(&p->outer, p->m, p->dir, p->most * h, e) :
               0;
}

static int open_choices(struct pass *p, struct err *e)
{
    const struct model_config *c = model_config(p->m);

    for (int64_t i = 0; i < c->n_layers; i++) {
        struct choices *to = &p->choices[i];
        size_t n;

        if (!model_layer_experts(c, i))
            continue;
        to->experts = c->moe.n_router;
        if (size_mul((size_t)p->most, (size_t)to->experts, &n))
            return err_set(e, E_TEMP, "routing: too many tokens");
        to->logits = mem_zero(n, sizeof(*to->logits), "routing", e);
        if (!to->logits ||
            routing_create(&to->routing, p->most, c->moe.top_k, e) < 0)
            return e->code;
    }
    return 0;
}

int pass_open(struct pass **out, struct model *m, const char *dir, int64_t rows,
              struct err *e)
{
    const struct model_config *c = model_config(m);
    const char *lacks = model_gradient_lacks(c, rows);
    struct pass *p;

    *out = NULL;
    if (lacks)
        return err_set(e, E_CONFIG,
                       "%s has %s: its gradients are not supported",
                       c->family->model_type, lacks);
    *out = p = mem_zero(1, sizeof(*p), "states", e);
    if (!p)
        return e->code;
    *p = (struct pass){
        .m = m, .dir = dir, .most = rows, .size = dtype_bits(model_dtype(m)) / 8
    };
    p->kept = mem_zero((size_t)(2 * c->n_layers), sizeof(struct layer *),
                       "layers", e);
    p->experts = mem_zero((size_t)(2 * c->n_layers),
                          sizeof(struct experts_kept *), "layers", e);
    p->choices =
        mem_zero((size_t)c->n_layers, sizeof(*p->choices), "layers", e);
    return p->kept && p->experts && p->choices && open_choices(p, e) >= 0 ?
               open_rows(p, e) :
               e->code;
}

void pass_close(struct pass *p)
{
    if (!p)
        return;
    for (int64_t i = 0; p->kept && i < 2 * model_config(p->m)->n_layers; i++)
        layer_release(p->kept[i]);
    for (int64_t i = 0; p->experts && i < 2 * model_config(p->m)->n_layers; i++)
        experts_release(p->experts[i]);
    for (int64_t i = 0; p->choices && i < model_config(p->m)->n_layers; i++) {
        routing_release(&p->choices[i].routing);
        free(p->choices[i].logits);
    }
    free(p->experts);
    free(p->choices);
    token_rows_close(&p->streams);
    token_rows_close(&p->attended);
    token_rows_close(&p->outputs);
    token_rows_close(&p->outer);
    model_buffer_release(p->m, &p->output);
    state_release(&p->state);
    free(p->kept);
    free(p);
}

/* ---- forward ---- */

/* Of pass_forward(). */
struct call {
    bool tuned;
    enum pass_routing routing;
    const int64_t *length;
    int64_t n;
};

static int keep(const struct pass *p, void *to, const void *from, int64_t width,
                struct err *e)
{
    return to ? model_copy(p->m, to, from, (size_t)(p->rows * width) * p->size,
                           e) :
                0;
}

/* How many rows go to another set of experts. */
static int64_t count_changed(const struct routing *a, const struct routing *b,
                             int64_t rows)
{
    int64_t changed = 0, k = a->top_k;

    for (int64_t t = 0; t < rows; t++) {
        bool same = true;

        for (int64_t i = 0; i < k && same; i++) {
            same = false;
            for (int64_t o = 0; o < k && !same; o++)
                same = a->experts[t * k + i] == b->experts[t * k + o];
        }
        changed += !same;
    }
    return changed;
}

static void copy_routing(const struct routing *from, int64_t rows,
                         struct routing *to)
{
    size_t n = (size_t)(rows * from->top_k);

    to->n = rows;
    memcpy(to->experts, from->experts, n * sizeof(*to->experts));
    memcpy(to->weights, from->weights, n * sizeof(*to->weights));
    memcpy(to->scores, from->scores, n * sizeof(*to->scores));
}

/* Where the rows of a mixture go, at POINT_MLP_IN. */
static int route(struct pass *p, int64_t layer, const struct call *call,
                 struct mixture *x, struct err *e)
{
    struct choices *known = &p->choices[layer];

    if (call->tuned && call->routing == PASS_HELD) {
        copy_routing(&known->routing, p->rows, &x->routing);
        return mixture_keep(x, &p->state, 0, e);
    }
    if (mixture_take(x, &p->state, 0, e) < 0)
        return e->code;
    if (call->tuned) {
        p->changed += count_changed(&known->routing, &x->routing, p->rows);
        return 0;
    }
    copy_routing(&x->routing, p->rows, &known->routing);
    return mixture_logits(x, &p->state, known->logits, e);
}

static int run_layer(struct pass *p, int64_t layer, const struct call *call,
                     struct layer *w, struct mixture *x, struct err *e)
{
    int64_t h = model_config(p->m)->hidden_size;
    struct state *s = &p->state;

    if (p->outputs.p && model_reserve_rows(p->m, &p->output, p->rows, e) < 0)
        return e->code;
    s->output = p->output.p;
    if (keep(p, s->x, before(p, layer), h, e) < 0 ||
        layer_run(w, s, POINT_ATTN_OUT, NULL, e) < 0 ||
        keep(p, attended(p, layer), s->act, attended_width(p), e) < 0 ||
        layer_run(w, s, POINT_MLP_IN, NULL, e) < 0 ||
        keep(p, between(p, layer), s->x, h, e) < 0 ||
        keep(p, output_of(p, 2 * layer), s->output, h, e) < 0 ||
        (x->m && route(p, layer, call, x, e) < 0) ||
        layer_run(w, s, POINT_OUT, NULL, e) < 0 ||
        keep(p, output_of(p, 2 * layer + 1), s->output, h, e) < 0)
        return e->code;
    return keep(p, before(p, layer + 1), s->x, h, e);
}

/* Load a layer, or take it from those that are kept. */
static int load_layer(struct pass *p, int64_t layer, bool tuned,
                      struct layer **w, struct err *e)
{
    struct layer **kept = &p->kept[2 * layer + tuned];
    size_t spare = 0;

    *w = *kept;
    if (*w)
        return 0;
    if (model_load_layer(p->m, layer, POINT_IN, POINT_OUT, NULL, w, e) < 0 ||
        (model_on_device(p->m) && backward_spare_bytes(p->m, &spare, e) < 0))
        return e->code;
    if (spare)
        *kept = *w;
    return 0;
}

/* Load a layer's experts, or take those that are kept: x->kept NULL: they are read as
 * they run. */
static int load_experts(struct pass *p, int64_t layer, bool tuned,
                        struct mixture *x, struct err *e)
{
    const struct model_config *c = model_config(p->m);
    struct experts_kept **kept = &p->experts[2 * layer + tuned];
    double bytes = (double)model_layer_experts(c, layer) * 3 *
                   (double)c->moe.width * (double)c->hidden_size *
                   (double)p->size;
    size_t spare = 0;

    if (!model_on_device(p->m))
        return 0;
    if (!*kept && backward_spare_bytes(p->m, &spare, e) < 0)
        return e->code;
    if (bytes < (double)spare && experts_load(p->m, layer, kept, e) < 0)
        return e->code;
    x->kept = *kept;
    return 0;
}

static int pass_layer(struct pass *p, int64_t layer, const struct call *call,
                      struct err *e)
{
    struct model *m = p->m;
    struct mixture x = { 0 };
    struct layer *w = NULL;
    int rc = 0;

    if (model_layer_experts(model_config(m), layer))
        rc = mixture_open(&x, m, layer, p->rows, p->rows, p->dir, e);
    if (rc >= 0 && x.m)
        rc = load_experts(p, layer, call->tuned, &x, e);
    if (rc >= 0)
        rc = load_layer(p, layer, call->tuned, &w, e);
    if (rc >= 0)
        rc = state_prepare(&p->state, m, POINT_IN, call->length, call->n, e);
    if (rc >= 0)
        rc = run_layer(p, layer, call, w, &x, e);
    if (w != p->kept[2 * layer + call->tuned])
        layer_release(w);
    if (rc >= 0 && x.m)
        rc = mixture_run(&x, NULL, NULL, NULL, e);
    if (rc >= 0 && x.m)
        rc = mixture_add(&x, before(p, layer + 1), 0, p->rows, e);
    mixture_close(&x);
    return rc;
}

int pass_forward(struct pass *p, const struct tuning *t,
                 enum pass_routing routing, const int32_t *ids,
                 const int64_t *length, int64_t n, const void **x,
                 struct err *e)
{
    const struct call call = { t != NULL, routing, length, n };
    int64_t layers = model_config(p->m)->n_layers;

    model_tune(p->m, t);
    if (t && routing == PASS_FREE)
        p->changed = 0;
    p->rows = 0;
    for (int64_t i = 0; i < n; i++)
        p->rows += length[i];
    if (!t && model_embed_there(p->m, ids, p->rows, before(p, 0), e) < 0)
        return e->code;
    for (int64_t i = 0; i < layers; i++)
        if (pass_layer(p, i, &call, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    *x = before(p, layers);
    return 0;
}

int64_t pass_changed(const struct pass *p)
{
    return p->changed;
}

/* ---- backward ---- */

/* *out: the gradients with respect to what attention or MLP puts out. */
static int back_output(struct pass *p, int64_t layer, bool attention,
                       const float *g, const float **out, struct err *e)
{
    struct backward_output o = { .layer = layer,
                                 .attention = attention,
                                 .n = p->rows,
                                 .y = output_of(p, 2 * layer + !attention),
                                 .there = true,
                                 .g = g,
                                 .to = p->outer.p };

    *out = p->outer.p ? p->outer.p : g;
    return p->outer.p ? backward_output(p->m, &o, e) : 0;
}

static int back_layer(struct pass *p, int64_t layer, float *g, double by,
                      struct err *e)
{
    const struct choices *known = &p->choices[layer];
    struct margins margins = { .logits = known->logits, .by = by };
    struct backward_block mlp = {
        .layer = layer,
        .n = p->rows,
        .x = between(p, layer),
        .there = true,
        .dir = p->dir,
        .g = g,
        .routing = known->experts ? &known->routing : NULL,
        .margins = known->experts && by > 0 ? &margins : NULL
    };
    struct attention_batch batch = { .x = before(p, layer),
                                     .there = true,
                                     .first = p->state.first,
                                     .n_sequences = p->state.n_sequences,
                                     .g = g,
                                     .attended = attended(p, layer) };
    struct attention_back *a = NULL;
    int rc = back_output(p, layer, false, g, &mlp.out, e);

    if (rc >= 0)
        rc = backward_mlp(p->m, &mlp, e);
    if (rc >= 0)
        rc = back_output(p, layer, true, g, &batch.out, e);
    if (rc >= 0)
        rc = backward_attention_open(p->m, layer, &a, e);
    if (rc >= 0)
        rc = backward_attention(a, &batch, e);
    backward_attention_close(a);
    return rc;
}

int pass_backward(struct pass *p, float *g, double by,
                  int (*done)(void *ctx, int64_t layer, struct err *e),
                  void *ctx, struct err *e)
{
    for (int64_t i = model_config(p->m)->n_layers; i-- > 0;)
        if (back_layer(p, i, g, by, e) < 0 || done(ctx, i, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    return 0;
}
