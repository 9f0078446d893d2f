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
    struct state state;
    /* f32 of all rows; streams [2 * layers + 1, most, H]: in front of layer i, and
     * behind its attention; attended [layers, most, ...]: what o reads; outputs [2 *
     * layers, most, H]: of o and down in front of the norms behind them, if there are
     * any */
    struct region streams, attended, outputs;
    struct buffer output;
    float *outer; /* [most, H], where outputs are scaled or normed; or NULL */
};

static int64_t attended_width(const struct pass *p)
{
    const struct model_config *c = model_config(p->m);

    return c->n_heads * c->v_dim;
}

static float *stream(const struct pass *p, int64_t number)
{
    return (float *)p->streams.p +
           number * p->most * model_config(p->m)->hidden_size;
}

static float *before(const struct pass *p, int64_t layer)
{
    return stream(p, 2 * layer);
}

static float *between(const struct pass *p, int64_t layer)
{
    return stream(p, 2 * layer + 1);
}

static float *attended(const struct pass *p, int64_t layer)
{
    return (float *)p->attended.p + layer * p->most * attended_width(p);
}

static float *output_of(const struct pass *p, int64_t number)
{
    return p->outputs.p ?
               (float *)p->outputs.p +
                   number * p->most * model_config(p->m)->hidden_size :
               NULL;
}

static int reserve(struct region *r, int64_t rows, int64_t width, int64_t times,
                   struct err *e)
{
    size_t n;

    if (size_mul((size_t)rows, (size_t)width * sizeof(float), &n) ||
        size_mul(n, (size_t)times, &n))
        return err_set(e, E_TEMP, "states: too many tokens");
    return region_reserve(r, n, e);
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
    *p = (struct pass){ .m = m, .dir = dir, .most = rows };
    region_init(&p->streams, dir);
    region_init(&p->attended, dir);
    region_init(&p->outputs, dir);
    if (reserve(&p->streams, rows, c->hidden_size, 2 * c->n_layers + 1, e) <
            0 ||
        reserve(&p->attended, rows, attended_width(p), c->n_layers, e) < 0 ||
        (model_norms(c)->attn_out &&
         reserve(&p->outputs, rows, c->hidden_size, 2 * c->n_layers, e) < 0))
        return e->code;
    if (model_adds_scaled(c))
        p->outer = mem_zero((size_t)(rows * c->hidden_size), sizeof(float),
                            "gradients", e);
    return model_adds_scaled(c) && !p->outer ? e->code : 0;
}

void pass_close(struct pass *p)
{
    if (!p)
        return;
    region_release(&p->streams);
    region_release(&p->attended);
    region_release(&p->outputs);
    model_buffer_release(p->m, &p->output);
    state_release(&p->state);
    free(p->outer);
    free(p);
}

/* ---- forward ---- */

static void keep(const struct pass *p, float *to, const void *from,
                 int64_t width)
{
    if (to)
        memcpy(to, from, (size_t)(p->rows * width) * sizeof(float));
}

static int run_layer(struct pass *p, int64_t layer, struct layer *w,
                     struct mixture *x, struct err *e)
{
    int64_t h = model_config(p->m)->hidden_size;
    struct state *s = &p->state;

    if (p->outputs.p && model_reserve_rows(p->m, &p->output, p->rows, e) < 0)
        return e->code;
    s->output = p->output.p;
    memcpy(s->x, before(p, layer), (size_t)(p->rows * h) * sizeof(float));
    if (layer_run(w, s, POINT_ATTN_OUT, NULL, e) < 0)
        return e->code;
    keep(p, attended(p, layer), s->act, attended_width(p));
    if (layer_run(w, s, POINT_MLP_IN, NULL, e) < 0)
        return e->code;
    keep(p, between(p, layer), s->x, h);
    keep(p, output_of(p, 2 * layer), s->output, h);
    if ((x->m && mixture_take(x, s, 0, e) < 0) ||
        layer_run(w, s, POINT_OUT, NULL, e) < 0)
        return e->code;
    keep(p, output_of(p, 2 * layer + 1), s->output, h);
    keep(p, before(p, layer + 1), s->x, h);
    return 0;
}

static int pass_layer(struct pass *p, int64_t layer, const int64_t *length,
                      int64_t n, struct err *e)
{
    struct model *m = p->m;
    struct mixture x = { 0 };
    struct layer *w = NULL;
    int rc = 0;

    if (model_layer_experts(model_config(m), layer))
        rc = mixture_open(&x, m, layer, p->rows, p->rows, p->dir, e);
    if (rc >= 0)
        rc = model_load_layer(m, layer, POINT_IN, POINT_OUT, NULL, &w, e);
    if (rc >= 0)
        rc = state_prepare(&p->state, m, POINT_IN, length, n, e);
    if (rc >= 0)
        rc = run_layer(p, layer, w, &x, e);
    layer_release(w);
    if (rc >= 0 && x.m)
        rc = mixture_run(&x, NULL, NULL, NULL, e);
    if (rc >= 0 && x.m)
        rc = mixture_add(&x, before(p, layer + 1), 0, p->rows, e);
    mixture_close(&x);
    return rc;
}

int pass_forward(struct pass *p, const int32_t *ids, const int64_t *length,
                 int64_t n, const float **x, struct err *e)
{
    int64_t layers = model_config(p->m)->n_layers;

    p->rows = 0;
    for (int64_t i = 0; i < n; i++)
        p->rows += length[i];
    if (model_embed(p->m, ids, p->rows, before(p, 0), e) < 0)
        return e->code;
    for (int64_t i = 0; i < layers; i++)
        if (pass_layer(p, i, length, n, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    *x = before(p, layers);
    return 0;
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
                                 .g = g,
                                 .to = p->outer };

    *out = p->outer ? p->outer : g;
    return p->outer ? backward_output(p->m, &o, e) : 0;
}

static int back_layer(struct pass *p, int64_t layer, float *g, struct err *e)
{
    struct backward_block mlp = { .layer = layer,
                                  .n = p->rows,
                                  .x = between(p, layer),
                                  .dir = p->dir,
                                  .g = g };
    struct attention_batch batch = { .x = before(p, layer),
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

int pass_backward(struct pass *p, float *g,
                  int (*done)(void *ctx, int64_t layer, struct err *e),
                  void *ctx, struct err *e)
{
    for (int64_t i = model_config(p->m)->n_layers; i-- > 0;)
        if (back_layer(p, i, g, e) < 0 || done(ctx, i, e) < 0)
            return err_prefix(e, "layer %lld", (long long)i);
    return 0;
}
