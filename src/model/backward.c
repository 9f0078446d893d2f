/* backward.c - see backward.h: norms and MLPs. */
#include "model/backward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/threads.h"
#include "model/internal.h"
#include "model/moe.h"

enum { PART = 128 }; /* tokens processed together */
enum { GATE, UP, DOWN, THREE };

/* ---- norms ---- */

/* y = w x / r with r² = mean x² + eps:  dx = (u - x (x·u) / (n r²)) / r, u = w
 * dy. */
static void norm_row(const struct norm_back *j, size_t i)
{
    enum { PIECE = 256 };
    size_t size = dtype_bits(j->dtype) / 8;
    const char *row = (const char *)j->x + i * (size_t)j->ld * size;
    const float *gy = j->gy + (int64_t)i * j->n;
    float *g = j->g + (int64_t)i * j->n, x[PIECE];
    double squares = 0, dot = 0, r;
    int64_t n;

    for (int64_t c = 0; c < j->n; c += n) {
        n = j->n - c < PIECE ? j->n - c : PIECE;
        (void)!to_f32(x, row + (size_t)c * size, j->dtype, (size_t)n);
        for (int64_t k = 0; k < n; k++) {
            squares += (double)x[k] * (double)x[k];
            dot += (double)x[k] * (double)(j->w[c + k] * gy[c + k]);
        }
    }
    r = sqrt(squares / (double)j->n + j->eps);
    dot /= (double)j->n * r * r;
    for (int64_t c = 0; c < j->n; c += n) {
        n = j->n - c < PIECE ? j->n - c : PIECE;
        (void)!to_f32(x, row + (size_t)c * size, j->dtype, (size_t)n);
        for (int64_t k = 0; k < n; k++)
            g[c + k] = (float)(((double)(j->w[c + k] * gy[c + k]) -
                                (double)x[k] * dot) /
                               r) +
                       (g == gy ? 0 : g[c + k]);
    }
}

void backward_norm_rows(void *ctx, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        norm_row(ctx, i);
}

void backward_norm(const struct model *m, const void *x, const float *w,
                   const float *gy, int64_t n, float *g)
{
    int64_t h = m->config.hidden_size;
    struct norm_back j = { x, m->dtype, h, h, w, m->config.rms_eps, gy, g };

    threads_for((size_t)n, 16, backward_norm_rows, &j);
}

/* ---- a linear ---- */

int backward_load(struct model *m, struct loaded *l, struct err *e)
{
    char name[MODULE_PATH_MAX + 8];
    uint64_t rows, cols;
    float *read;

    if (checkpoint_linear(m->ck, l->of.module, &read, &rows, &cols, e) < 0)
        return e->code;
    l->w = read;
    if (rows != (uint64_t)l->of.rows || cols != (uint64_t)l->of.cols)
        return err_set(e, E_DATA, "'%s': its shape is not the config's",
                       l->of.module);
    snprintf(name, sizeof(name), "%s.bias", l->of.module);
    return l->of.bias ? model_vector(m, name, l->of.rows, &l->bias, e) : 0;
}

/* ---- one MLP ---- */

struct mlp {
    struct loaded of[THREE];
};

static void mlp_release(struct mlp *p)
{
    for (int i = 0; i < THREE; i++)
        loaded_release(&p->of[i]);
}

/* Load the three linears of a layer from number `first` on. */
static int mlp_load(struct model *m, int64_t layer, int64_t first,
                    struct mlp *p, struct err *e)
{
    *p = (struct mlp){ 0 };
    for (int i = 0; i < THREE; i++) {
        model_linear(&m->config, layer, first + i, &p->of[i].of);
        if (backward_load(m, &p->of[i], e) < 0)
            return e->code;
    }
    return 0;
}

/* The tokens of an MLP and the factors of its outputs. */
struct chosen {
    const int64_t *token; /* NULL: all */
    const float *weight;  /* NULL: 1 */
    int64_t n;
};

/* Backward pass of one MLP. */
struct mlp_back {
    const struct mlp *p;
    const struct chosen *of;
    int64_t h;
    const float *in, *g; /* [tokens, h] the MLP's inputs; gradients with
                          * respect to its weighted outputs */
    float *gin; /* [tokens, h] += gradients with respect to its inputs */
    struct threads_error error;
};

/* Rows at..at+n-1 of the chosen tokens: inputs, and gradients times weights. */
static void gather(const struct mlp_back *j, int64_t at, int64_t n, float *in,
                   float *g)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t t = j->of->token ? j->of->token[at + i] : at + i;
        float w = j->of->weight ? j->of->weight[at + i] : 1;

        memcpy(in + i * j->h, j->in + t * j->h, (size_t)j->h * sizeof(float));
        for (int64_t k = 0; k < j->h; k++)
            g[i * j->h + k] = w * j->g[t * j->h + k];
    }
}

static void scatter(const struct mlp_back *j, int64_t at, int64_t n,
                    const float *gin)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t t = j->of->token ? j->of->token[at + i] : at + i;

        for (int64_t k = 0; k < j->h; k++)
            j->gin[t * j->h + k] += gin[i * j->h + k];
    }
}

/* a = gate, b = up, c = gradient with respect to silu(a) b; a and b are
 * replaced by the gradients with respect to them. */
static void gate_back(float *a, float *b, const float *c, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s = 1 / (1 + expf(-a[i])), silu = a[i] * s;
        float slope = s * (1 + a[i] * (1 - s));

        a[i] = c[i] * b[i] * slope;
        b[i] = c[i] * silu;
    }
}

static void add_bias(float *y, const float *bias, int64_t n, int64_t width)
{
    for (int64_t i = 0; bias && i < n; i++)
        for (int64_t k = 0; k < width; k++)
            y[i * width + k] += bias[k];
}

static void run_part(struct mlp_back *j, int64_t at, int64_t n, float *room)
{
    const struct mlp *p = j->p;
    int h = (int)j->h, w = (int)p->of[GATE].of.rows, rows = (int)n;
    float *in = room, *g = in + PART * h, *a = g + PART * h, *b = a + PART * w,
          *c = b + PART * w;

    gather(j, at, n, in, g);
    blas_sgemm(&(struct sgemm){ .tb = true,
                                .m = rows,
                                .n = w,
                                .k = h,
                                .a = in,
                                .b = p->of[GATE].w,
                                .c = a });
    blas_sgemm(&(struct sgemm){ .tb = true,
                                .m = rows,
                                .n = w,
                                .k = h,
                                .a = in,
                                .b = p->of[UP].w,
                                .c = b });
    add_bias(a, p->of[GATE].bias, n, w);
    add_bias(b, p->of[UP].bias, n, w);
    blas_sgemm(&(struct sgemm){
        .m = rows, .n = w, .k = h, .a = g, .b = p->of[DOWN].w, .c = c });
    gate_back(a, b, c, n * w);
    blas_sgemm(&(struct sgemm){
        .m = rows, .n = h, .k = w, .a = a, .b = p->of[GATE].w, .c = in });
    blas_sgemm(&(struct sgemm){ .m = rows,
                                .n = h,
                                .k = w,
                                .a = b,
                                .b = p->of[UP].w,
                                .beta = 1,
                                .c = in });
    scatter(j, at, n, in);
}

static void run_parts(void *ctx, size_t begin, size_t end)
{
    struct mlp_back *j = ctx;
    int64_t w = j->p->of[GATE].of.rows;
    struct err e;
    float *room =
        scratch_thread((size_t)(PART * (2 * j->h + 3 * w)) * sizeof(float), &e);

    if (!room) {
        threads_error_add(&j->error, begin, &e);
        return;
    }
    for (size_t i = begin; i < end; i++) {
        int64_t at = (int64_t)i * PART, left = j->of->n - at;

        run_part(j, at, left < PART ? left : PART, room);
    }
}

static int mlp_run(struct mlp_back *j, struct err *e)
{
    threads_error_init(&j->error);
    threads_for((size_t)((j->of->n + PART - 1) / PART), 1, run_parts, j);
    return threads_error_take(&j->error, e);
}

/* ---- the experts ---- */

/* The tokens of one expert and their weights; the arrays hold all choices. */
static int64_t tokens_of(const struct routing *r, int64_t expert,
                         int64_t *token, float *weight)
{
    int64_t n = 0;

    for (int64_t i = 0; i < r->n * r->top_k; i++)
        if (r->experts[i] == expert && r->weights[i] != 0) {
            token[n] = i / r->top_k;
            weight[n++] = r->weights[i];
        }
    return n;
}

static int run_experts(struct model *m, int64_t layer, const struct routing *r,
                       const struct mlp_back *j, struct err *e)
{
    int64_t experts = model_layer_experts(&m->config, layer),
            common = model_linear_common(&m->config, layer);
    int64_t *token =
        mem_alloc((size_t)(r->n + 1) * sizeof(*token), "experts", e);
    float *weight =
        token ? mem_alloc((size_t)(r->n + 1) * sizeof(*weight), "experts", e) :
                NULL;
    int rc = weight ? 0 : e->code;

    for (int64_t i = 0; i < experts && rc >= 0; i++) {
        struct chosen of = { token, weight, tokens_of(r, i, token, weight) };
        struct mlp_back back = *j;
        struct mlp p = { 0 };

        if (!of.n)
            continue;
        back.of = &of;
        back.p = &p;
        rc = mlp_load(m, layer, common + THREE * i, &p, e);
        if (rc >= 0)
            rc = mlp_run(&back, e);
        mlp_release(&p);
    }
    free(token);
    free(weight);
    return rc;
}

static int route(struct model *m, int64_t layer, const void *in, int64_t n,
                 struct routing *r, struct err *e)
{
    struct router *router = NULL;
    int rc = router_load(m, layer, &router, e);

    if (rc >= 0)
        rc = routing_create(r, n, m->config.moe.top_k, e);
    if (rc >= 0)
        rc = router_run(router, in, n, r, 0, e);
    router_release(router);
    return rc;
}

/* ---- a layer ---- */

/* weight[n] = sigmoid(in g), if the shared expert is gated. */
static int shared_weights(struct model *m, int64_t layer, const float *in,
                          int64_t n, float **weight, struct err *e)
{
    const struct model_config *c = &m->config;
    char part[MODULE_PATH_MAX], name[MODULE_PATH_MAX];
    float *gate;

    *weight = NULL;
    if (!c->family->shared_gate || !model_layer_experts(c, layer))
        return 0;
    snprintf(part, sizeof(part), "%s.weight", c->family->shared_gate);
    layer_tensor_name(layer, part, name);
    if (model_vector(m, name, c->hidden_size, &gate, e) < 0)
        return e->code;
    *weight = mem_alloc((size_t)n * sizeof(float), "gates", e);
    for (int64_t i = 0; *weight && i < n; i++) {
        double sum = 0;

        for (int64_t k = 0; k < c->hidden_size; k++)
            sum += (double)in[i * c->hidden_size + k] * (double)gate[k];
        (*weight)[i] = (float)(1 / (1 + exp(-sum)));
    }
    free(gate);
    return *weight ? 0 : e->code;
}

/* The dense MLP, or the shared expert. */
static int run_common(struct model *m, int64_t layer, int64_t n,
                      const struct mlp_back *j, struct err *e)
{
    struct chosen of = { .n = n };
    struct mlp_back back = *j;
    float *weight = NULL;
    struct mlp p = { 0 };
    int rc;

    if (!model_layer_width(&m->config, layer))
        return 0;
    back.of = &of;
    back.p = &p;
    rc = shared_weights(m, layer, j->in, n, &weight, e);
    of.weight = weight;
    if (rc >= 0)
        rc = mlp_load(m, layer, model_linear_common(&m->config, layer) - THREE,
                      &p, e);
    if (rc >= 0)
        rc = mlp_run(&back, e);
    mlp_release(&p);
    free(weight);
    return rc;
}

static int run_layer(struct model *m, int64_t layer, const void *in, int64_t n,
                     const struct mlp_back *j, struct err *e)
{
    struct routing r = { 0 };
    int rc = run_common(m, layer, n, j, e);

    if (rc >= 0 && model_layer_experts(&m->config, layer)) {
        rc = route(m, layer, in, n, &r, e);
        if (rc >= 0)
            rc = run_experts(m, layer, &r, j, e);
    }
    routing_release(&r);
    return rc;
}

int backward_mlp(struct model *m, int64_t layer, const void *x, int64_t n,
                 float *g, struct err *e)
{
    int64_t h = m->config.hidden_size, count = n * h;
    char name[MODULE_PATH_MAX];
    float *w = NULL, *in, *gin = NULL;
    void *normed;
    struct mlp_back j;
    int rc;

    layer_tensor_name(layer, "post_attention_layernorm.weight", name);
    if (blas_open(e) < 0 || model_vector(m, name, h, &w, e) < 0)
        return e->code;
    normed = mem_pages((size_t)(n * h) * m->size, "gradients", e);
    in = normed ? mem_pages((size_t)count * sizeof(float), "gradients", e) :
                  NULL;
    gin = in ? mem_zero((size_t)count, sizeof(float), "gradients", e) : NULL;
    rc = gin ? 0 : e->code;
    if (rc >= 0) {
        rc = model_norm(m, x, w, n, normed, e);
        (void)!to_f32(in, normed, m->dtype, (size_t)count);
        j = (struct mlp_back){ .h = h, .in = in, .g = g, .gin = gin };
    }
    if (rc >= 0)
        rc = run_layer(m, layer, normed, n, &j, e);
    if (rc >= 0)
        backward_norm(m, x, w, gin, n, g);
    free(w);
    free(normed);
    free(in);
    free(gin);
    return rc;
}
