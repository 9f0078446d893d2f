/* backward_mlp_cpu.c - see backward_table.h: the CPU's backward pass of an
 * MLP, by parts of tokens whose numbers stay in a thread's cache. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/rounded.h"
#include "common/math/threads.h"
#include "model/backward_parts.h"

enum { PART = GRADIENT_PIECE }; /* tokens processed together */

struct job {
    const struct backward_mlp *a;
    /* if a->rounded: W of each linear, for its output (not down's), and for its input's
     * gradient */
    struct rounded_operand packed[2][MLP_LINEARS];
    struct threads_error error;
};

static int64_t token_of(const struct backward_mlp *a, int64_t i)
{
    return a->token ? a->token[i] : i;
}

/* Rows at..at+n-1: inputs and gradients, one of them times weights. */
static void gather(const struct backward_mlp *a, int64_t at, int64_t n,
                   float *in, float *g)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t t = token_of(a, at + i);
        float w = a->weight ? a->weight[at + i] : 1;

        float by_in = a->weigh_inputs ? w : 1, by_g = a->weigh_inputs ? 1 : w;

        for (int64_t k = 0; k < a->h; k++) {
            in[i * a->h + k] = by_in * a->in[t * a->h + k];
            g[i * a->h + k] = by_g * a->g[t * a->h + k];
        }
    }
}

static void scatter(const struct backward_mlp *a, int64_t at, int64_t n,
                    const float *gin)
{
    for (int64_t i = 0; i < n; i++) {
        float *to = a->gin + token_of(a, at + i) * a->h;
        float w = a->weigh_inputs && a->weight ? a->weight[at + i] : 1;

        for (int64_t k = 0; k < a->h; k++)
            to[k] += w * gin[i * a->h + k];
    }
}

/* a = gate, b = up, c = gradient with respect to silu(a) b; a and b are
 * replaced by the gradients with respect to them. */
static void silu_back(float *a, float *b, const float *c, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s = 1 / (1 + expf(-a[i])), silu = a[i] * s;
        float slope = s * (1 + a[i] * (1 - s));

        a[i] = c[i] * b[i] * slope;
        b[i] = c[i] * silu;
    }
}

/* The same of GELU's approximation by tanh, x sigmoid(2 z), z = sqrt(2/pi) (x +
 * 0.044715 x^3). */
static void gelu_back(float *a, float *b, const float *c, int64_t n)
{
    const float twice = 1.5957691216f, cubic = 0.044715f;

    for (int64_t i = 0; i < n; i++) {
        float x = a[i], q = cubic * x * x;
        float s = 1 / (1 + expf(-twice * x * (1 + q)));
        float slope = s + x * s * (1 - s) * twice * (1 + 3 * q);

        a[i] = c[i] * b[i] * slope;
        b[i] = c[i] * (x * s);
    }
}

/* The same of y = (u + 1) g sigmoid(alpha g), g = min(a, limit), u = b between
 * -limit and limit. */
static void clamped_back(float *a, float *b, const float *c, int64_t n,
                         float alpha, float limit)
{
    for (int64_t i = 0; i < n; i++) {
        float g = fminf(a[i], limit), u = fmaxf(fminf(b[i], limit), -limit);
        float s = 1 / (1 + expf(-alpha * g));
        float slope = s * (1 + alpha * g * (1 - s));

        a[i] = a[i] <= limit ? c[i] * (u + 1) * slope : 0;
        b[i] = fabsf(b[i]) <= limit ? c[i] * g * s : 0;
    }
}

static void gate_back(const struct forward_gating *g, float *a, float *b,
                      const float *c, int64_t n)
{
    if (g->act == ACT_CLAMPED)
        clamped_back(a, b, c, n, g->alpha, g->limit);
    else
        (g->act == ACT_GELU ? gelu_back : silu_back)(a, b, c, n);
}

static void add_bias(float *y, const float *bias, int64_t n, int64_t width)
{
    for (int64_t i = 0; bias && i < n; i++)
        for (int64_t k = 0; k < width; k++)
            y[i * width + k] += bias[k];
}

/* y[rows] = x[rows] W^T of linear i; or back: x W, plus y if `add`.  room: as
 * rounded_multiply(). */
static void multiply(const struct job *j, int i, bool back, bool add,
                     int64_t rows, const float *x, uint16_t *room, float *y)
{
    int64_t h = j->a->h, w = j->a->width, k = (i == MLP_DOWN) == back ? h : w;

    if (j->a->rounded) {
        rounded_multiply(&j->packed[back][i], x, rows, room, y, add);
        return;
    }
    blas_sgemm(&(struct sgemm){ .tb = !back,
                                .m = rows,
                                .n = h + w - k,
                                .k = k,
                                .a = x,
                                .b = j->a->w[i],
                                .beta = add ? 1 : 0,
                                .c = y });
}

/* Of rows x[n, width], which are rows at..at+n-1 of the MLP. */
static void add_squares(float *to, const float *x, int64_t at, int64_t n,
                        int64_t width)
{
    for (int64_t i = 0; to && i < n; i++)
        to[at + i] += (float)square_of(x + i * width, width);
}

static void run_part(const struct job *j, int64_t at, int64_t n, float *room)
{
    const struct backward_mlp *p = j->a;
    int64_t h = p->h, w = p->width;
    float *in = room, *g = in + PART * h, *a = g + PART * h, *b = a + PART * w,
          *c = b + PART * w;
    uint16_t *x = (uint16_t *)(c + PART * w);

    gather(p, at, n, in, g);
    multiply(j, MLP_GATE, false, false, n, in, x, a);
    multiply(j, MLP_UP, false, false, n, in, x, b);
    add_bias(a, p->bias[MLP_GATE], n, w);
    add_bias(b, p->bias[MLP_UP], n, w);
    multiply(j, MLP_DOWN, true, false, n, g, x, c);
    gate_back(&p->gating, a, b, c, n * w);
    add_squares(p->squares[MLP_GATE], a, at, n, w);
    add_squares(p->squares[MLP_UP], b, at, n, w);
    multiply(j, MLP_GATE, true, false, n, a, x, in);
    multiply(j, MLP_UP, true, true, n, b, x, in);
    scatter(p, at, n, in);
}

static void run_parts(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    const struct backward_mlp *a = j->a;
    struct err e;
    int64_t most = a->h > a->width ? a->h : a->width;
    float *room = scratch_thread((size_t)(PART * (2 * a->h + 3 * a->width)) *
                                         sizeof(float) +
                                     (size_t)(PART * most) * sizeof(uint16_t),
                                 &e);

    if (!room) {
        threads_error_add(&j->error, begin, &e);
        return;
    }
    for (size_t i = begin; i < end; i++) {
        int64_t at = (int64_t)i * PART, left = a->rows - at;

        run_part(j, at, left < PART ? left : PART, room);
    }
}

/* ---- with gradients of the weights ---- */

/* act(gate) * up. */
static void multiply_gates(const struct forward_gating *g, const float *a,
                           const float *b, int64_t n, float *to)
{
    const struct kernels *k = kernels_best();

    if (g->act == ACT_CLAMPED)
        k->clamped_f32(a, b, NULL, NULL, g->alpha, g->limit, n, to);
    else
        (g->act == ACT_GELU ? k->gelu_f32 : k->gate_f32)(a, b, NULL, NULL, n,
                                                         to);
}

/* The rows of the MLP, all at once. */
struct tuned_rows {
    const struct backward_mlp *a;
    float *in, *g;             /* [rows, h] */
    float *gate, *up, *c, *to; /* [rows, width]; to: act(gate) up */
};

static void gather_rows(void *ctx, size_t begin, size_t end)
{
    const struct tuned_rows *j = ctx;
    int64_t at = (int64_t)begin;

    gather(j->a, at, (int64_t)(end - begin), j->in + at * j->a->h,
           j->g + at * j->a->h);
}

static void gate_rows(void *ctx, size_t begin, size_t end)
{
    const struct tuned_rows *j = ctx;
    int64_t w = j->a->width, at = (int64_t)begin * w;
    int64_t n = (int64_t)(end - begin);

    add_bias(j->gate + at, j->a->bias[MLP_GATE], n, w);
    add_bias(j->up + at, j->a->bias[MLP_UP], n, w);
    multiply_gates(&j->a->gating, j->gate + at, j->up + at, n * w, j->to + at);
    gate_back(&j->a->gating, j->gate + at, j->up + at, j->c + at, n * w);
}

static void scatter_rows(void *ctx, size_t begin, size_t end)
{
    const struct tuned_rows *j = ctx;
    int64_t at = (int64_t)begin;

    scatter(j->a, at, (int64_t)(end - begin), j->in + at * j->a->h);
}

/* y = x W^T, or back: y = x W, of linear i. */
static int tuned_product(const struct tuned_rows *j, int i, bool back, bool add,
                         const float *x, float *y, struct err *e)
{
    int64_t h = j->a->h, w = j->a->width;
    const struct backward_linear l = { .rows = j->a->rows,
                                       .out = i == MLP_DOWN ? h : w,
                                       .in = i == MLP_DOWN ? w : h,
                                       .w = j->a->w[i],
                                       .x = x,
                                       .y = y,
                                       .back = back,
                                       .add = add,
                                       .rounded = j->a->rounded };

    return linear_back_cpu(NULL, &l, e);
}

/* Add the gradient with respect to the weights of linear i, if it is wanted. */
static int add_weights(const struct tuned_rows *j, int i, const float *g,
                       const float *x, struct err *e)
{
    int64_t h = j->a->h, w = j->a->width;
    const struct backward_weights of = { .rows = j->a->rows,
                                         .out = i == MLP_DOWN ? h : w,
                                         .in = i == MLP_DOWN ? w : h,
                                         .g = g,
                                         .x = x,
                                         .to = j->a->weights[i],
                                         .rounded = j->a->rounded };

    return of.to ? weights_back_cpu(NULL, &of, e) : 0;
}

static int tune_rows(const struct tuned_rows *j, struct err *e)
{
    size_t n = (size_t)j->a->rows;

    threads_for(n, 16, gather_rows, (void *)(uintptr_t)j);
    if (tuned_product(j, MLP_GATE, false, false, j->in, j->gate, e) < 0 ||
        tuned_product(j, MLP_UP, false, false, j->in, j->up, e) < 0 ||
        tuned_product(j, MLP_DOWN, true, false, j->g, j->c, e) < 0)
        return e->code;
    threads_for(n, 16, gate_rows, (void *)(uintptr_t)j);
    if (add_weights(j, MLP_GATE, j->gate, j->in, e) < 0 ||
        add_weights(j, MLP_UP, j->up, j->in, e) < 0 ||
        add_weights(j, MLP_DOWN, j->g, j->to, e) < 0 ||
        tuned_product(j, MLP_GATE, true, false, j->gate, j->in, e) < 0 ||
        tuned_product(j, MLP_UP, true, true, j->up, j->in, e) < 0)
        return e->code;
    threads_for(n, 16, scatter_rows, (void *)(uintptr_t)j);
    return 0;
}

static int tune(const struct backward_mlp *a, struct err *e)
{
    size_t rows = (size_t)a->rows, h = (size_t)a->h, w = (size_t)a->width;
    struct tuned_rows j = { .a = a };
    int rc;

    j.in = mem_pages(rows * (2 * h + 4 * w) * sizeof(float), "gradients", e);
    if (!j.in)
        return e->code;
    j.g = j.in + rows * h;
    j.gate = j.g + rows * h;
    j.up = j.gate + rows * w;
    j.c = j.up + rows * w;
    j.to = j.c + rows * w;
    rc = tune_rows(&j, e);
    free(j.in);
    return rc;
}

static int pack(struct job *j, struct err *e)
{
    int64_t h = j->a->h, w = j->a->width;
    int rc = 0;

    for (int i = 0; i < MLP_LINEARS && rc >= 0; i++) {
        int64_t in = i == MLP_DOWN ? w : h, out = h + w - in;

        rc = rounded_pack(&j->packed[1][i], j->a->w[i], false, 0, in, out, e);
        if (rc >= 0 && i < MLP_DOWN)
            rc =
                rounded_pack(&j->packed[0][i], j->a->w[i], true, 0, out, in, e);
    }
    return rc;
}

int mlp_back_cpu(struct cuda_context *c, const struct backward_mlp *a,
                 struct err *e)
{
    struct job j = { .a = a };
    int rc;

    (void)c;
    for (int i = 0; i < MLP_LINEARS; i++)
        if (a->weights[i])
            return tune(a, e);
    rc = a->rounded ? pack(&j, e) : blas_open(e);
    threads_error_init(&j.error);
    if (rc >= 0) {
        threads_for((size_t)((a->rows + PART - 1) / PART), 1, run_parts, &j);
        rc = threads_error_take(&j.error, e);
    }
    for (int i = 0; i < MLP_LINEARS; i++) {
        rounded_release(&j.packed[0][i]);
        rounded_release(&j.packed[1][i]);
    }
    return rc;
}
