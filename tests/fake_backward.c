/* fake_backward.c - the backward pass of the fake plug-in: the CPU's functions,
 * on memory that must be the device's. */
#include <stdlib.h>

#include "fake_cuda.h"
#include "model/backward_table.h"

/* Numbers that a function takes. */
struct taken {
    const void *p;
    int64_t n;
};

static int all_own(const char *what, const struct taken *t, size_t n,
                   struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (t[i].p &&
            fake_must_own(t[i].p, (size_t)t[i].n * sizeof(float), what, e) < 0)
            return e->code;
    return 0;
}

#define OWN(what, ...)                                                         \
    all_own(what, (const struct taken[]){ __VA_ARGS__ },                       \
            ARRAY_LEN(((const struct taken[]){ __VA_ARGS__ })), e)

static int fake_widen(struct cuda_context *c, enum dtype t, const void *x,
                      int64_t n, float *to, struct err *e)
{
    return fake_must_own(x, (size_t)n * dtype_bits(t) / 8, "widen", e) < 0 ||
                   OWN("widen", { to, n }) < 0 ?
               e->code :
               backward_cpu.widen(c, t, x, n, to, e);
}

static int fake_narrow(struct cuda_context *c, enum dtype t, const float *x,
                       int64_t n, void *to, struct err *e)
{
    return fake_must_own(to, (size_t)n * dtype_bits(t) / 8, "narrow", e) < 0 ||
                   OWN("narrow", { x, n }) < 0 ?
               e->code :
               backward_cpu.narrow(c, t, x, n, to, e);
}

static int fake_scale(struct cuda_context *c, const float *x, float by,
                      bool add, int64_t n, float *to, struct err *e)
{
    return OWN("scale", { x, n }, { to, n }) < 0 ?
               e->code :
               backward_cpu.scale(c, x, by, add, n, to, e);
}

static int fake_squares(struct cuda_context *c, const float *x, int64_t rows,
                        int64_t n, float *to, struct err *e)
{
    return OWN("squares", { x, rows * n }, { to, rows }) < 0 ?
               e->code :
               backward_cpu.squares(c, x, rows, n, to, e);
}

/* *w = n weights, which are the device's, in f32, as the CPU takes them; free(*mine). */
static int widen_weights(const void **w, int64_t n, bool bf16, float **mine,
                         struct err *e)
{
    size_t size = bf16 ? 2 : sizeof(float);

    *mine = NULL;
    if (fake_must_own(*w, (size_t)n * size, "weights", e) < 0)
        return e->code;
    if (!bf16)
        return 0;
    *mine = mem_alloc((size_t)n * sizeof(**mine), "weights", e);
    if (!*mine)
        return e->code;
    if (backward_cpu.widen(NULL, DT_BF16, *w, n, *mine, e) < 0)
        return e->code;
    *w = *mine;
    return 0;
}

static int fake_linear(struct cuda_context *c, const struct backward_linear *a,
                       struct err *e)
{
    int64_t out = a->rows * a->out, in = a->rows * a->in;
    struct backward_linear mine = *a;
    float *w;
    int rc;

    if (OWN("linear", { a->bias, a->out }, { a->x, a->back ? out : in },
            { a->y, a->back ? in : out }) < 0 ||
        widen_weights(&mine.w, a->out * a->in, a->bf16, &w, e) < 0)
        return e->code;
    rc = backward_cpu.linear(c, &mine, e);
    free(w);
    return rc;
}

static int fake_norm(struct cuda_context *c, const struct backward_norm *a,
                     struct err *e)
{
    return OWN("norm back", { a->w, a->n }, { a->gy, a->rows * a->n },
               { a->g, (a->rows - 1) * a->ldg + a->n }, { a->x, 1 }) < 0 ?
               e->code :
               backward_cpu.norm(c, a, e);
}

static int fake_weights(struct cuda_context *c,
                        const struct backward_weights *a, struct err *e)
{
    return OWN("gradients of weights", { a->g, a->rows * a->out },
               { a->x, a->rows * a->in }, { a->to, a->out * a->in }) < 0 ?
               e->code :
               backward_cpu.weights(c, a, e);
}

static int fake_mlp(struct cuda_context *c, const struct backward_mlp *a,
                    struct err *e)
{
    int64_t weights = a->width * a->h;
    struct backward_mlp mine = *a;
    float *w[MLP_LINEARS] = { NULL };
    int rc =
        OWN("MLP back", { a->bias[MLP_GATE], a->width },
            { a->bias[MLP_UP], a->width }, { a->token, 2 * a->rows },
            { a->weight, a->rows }, { a->in, a->h }, { a->g, a->h },
            { a->gin, a->h }, { a->squares[MLP_GATE], a->rows },
            { a->squares[MLP_UP], a->rows }, { a->weights[MLP_GATE], weights },
            { a->weights[MLP_UP], weights }, { a->weights[MLP_DOWN], weights });

    for (int i = 0; i < MLP_LINEARS && rc >= 0; i++)
        rc = widen_weights(&mine.w[i], weights, a->bf16, &w[i], e);
    if (rc >= 0)
        rc = backward_cpu.mlp(c, &mine, e);
    for (int i = 0; i < MLP_LINEARS; i++)
        free(w[i]);
    return rc;
}

/* One expert after the other. */
static int fake_experts_back(struct cuda_context *c,
                             const struct backward_experts *a, struct err *e)
{
    if (OWN("experts back", { a->row, 2 * a->tokens * a->top_k }) < 0)
        return e->code;
    for (int64_t k = 0; k < a->experts; k++) {
        struct backward_mlp one = a->of;

        one.rows = a->first[k + 1] - a->first[k];
        one.token += a->first[k];
        one.weight += a->first[k];
        for (int i = 0; i < MLP_LINEARS; i++) {
            one.w[i] = a->w[i][k];
            one.weights[i] = a->weights[i][k];
        }
        if (one.rows && fake_mlp(c, &one, e) < 0)
            return e->code;
    }
    return 0;
}

static int fake_gates(struct cuda_context *c, const float *in, const float *w,
                      int64_t rows, int64_t n, float *weight, struct err *e)
{
    return OWN("gates", { in, rows * n }, { w, n }, { weight, rows }) < 0 ?
               e->code :
               backward_cpu.gates(c, in, w, rows, n, weight, e);
}

static int fake_attend_back(struct cuda_context *c,
                            const struct backward_attend *a, struct err *e)
{
    return OWN("attend back", { a->q, a->rows * a->n_heads * a->head_dim },
               { a->k, a->rows * a->n_kv_heads * a->head_dim },
               { a->v, a->rows * a->n_kv_heads * a->v_dim },
               { a->go, a->rows * a->n_heads * a->v_dim }, { a->cs, a->rotary },
               { a->q_norm, a->head_dim }, { a->k_norm, a->head_dim },
               { a->sinks, a->n_heads }, { a->growth, 1 }) < 0 ?
               e->code :
               backward_cpu.attend(c, a, e);
}

static int fake_latent(struct cuda_context *c, const struct backward_latent *a,
                       struct err *e)
{
    int64_t heads = a->rows * a->heads;

    return OWN("latent", { a->key, heads * (a->nope + a->rope) },
               { a->value, heads * a->v_dim },
               { a->a, a->rows * (a->kv_lora + a->rope) },
               { a->b, heads * (a->nope + a->v_dim) }) < 0 ?
               e->code :
               backward_cpu.latent(c, a, e);
}

static int fake_head(struct cuda_context *c, const struct backward_head *a,
                     struct err *e)
{
    return OWN("head", { a->w, a->vocab * a->h / 2 }, { a->y, a->rows * a->h },
               { a->g, a->rows * a->h }) < 0 ?
               e->code :
               backward_cpu.head(c, a, e);
}

__attribute__((visibility("default")))
const struct backward_table forge_backward_table = {
    .version = BACKWARD_TABLE_VERSION,
    .pinned = fake_pinned,
    .widen = fake_widen,
    .narrow = fake_narrow,
    .scale = fake_scale,
    .squares = fake_squares,
    .linear = fake_linear,
    .norm = fake_norm,
    .weights = fake_weights,
    .mlp = fake_mlp,
    .experts = fake_experts_back,
    .gates = fake_gates,
    .attend = fake_attend_back,
    .latent = fake_latent,
    .head = fake_head,
    .divergence = fake_divergence,
};
