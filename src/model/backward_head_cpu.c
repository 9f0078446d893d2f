/* backward_head_cpu.c - see backward_table.h: the CPU's gradient through the
 * head.
 *
 * Logits are computed twice, by blocks of the vocabulary: first for the sums of
 * their exponentials and of these' roots with signs, then for c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/rounded.h"
#include "common/math/splitmix.h"
#include "common/math/threads.h"
#include "model/backward_parts.h"

enum { PART = 128, BLOCK = 1024 };

struct head_back {
    const struct backward_head *a;
    int64_t n, h;
    float *block; /* [BLOCK, h] of w, as f32 */
    /* if a->rounded: of the block, for logits and for gradients */
    struct rounded_operand out, back;
    int64_t v0, nv; /* the block's rows of w */
    bool again;     /* second pass over the vocabulary */
    float *most;    /* [n]: largest logit so far */
    double *sum;    /* [n]: Σ exp(logit - most) */
    double *roots;  /* [n]: Σ s exp((logit - most) / 2); then Σ s sqrt(p) */
    float *scale;   /* [n]: log Σ exp(logit), for the second pass */
    struct threads_error error;
};

/* to[nv] = s exp((logit - most) / 2) of token t. */
static void signed_roots(const struct head_back *j, int64_t t,
                         const float *logit, float most, float *to)
{
    uint64_t row = splitmix64_at(j->a->first + (uint64_t)t), bits = 0;

    for (int64_t v = 0; v < j->nv; v++) { /* v0 is a multiple of 64 */
        float r = expf((logit[v] - most) / 2);

        if (v % 64 == 0)
            bits = splitmix64_at(row + (uint64_t)(j->v0 + v) / 64);
        to[v] = bits >> v % 64 & 1 ? -r : r;
    }
}

static void add_exponents(struct head_back *j, int64_t t, const float *logit)
{
    float most = j->most[t], root[BLOCK];
    double before;

    for (int64_t v = 0; v < j->nv; v++)
        most = logit[v] > most ? logit[v] : most;
    before = exp((double)(j->most[t] - most) / 2);
    j->sum[t] *= before * before;
    j->roots[t] *= before;
    signed_roots(j, t, logit, most, root);
    for (int64_t v = 0; v < j->nv; v++) {
        j->sum[t] += (double)(root[v] * root[v]);
        j->roots[t] += (double)root[v];
    }
    j->most[t] = most;
}

/* Products W y become logits, which they are already in most families. */
static void squash(const struct backward_head *a, float *y, int64_t n)
{
    bool same = a->scale == 1 && a->cap <= 0;

    for (int64_t i = 0; i < n && !same; i++) {
        y[i] *= a->scale;
        if (a->cap > 0)
            y[i] = a->cap * tanhf(y[i] / a->cap);
    }
}

/* The derivative of the logit z. */
static float slope(const struct backward_head *a, float z)
{
    float t = a->cap > 0 ? z / a->cap : 0;

    return a->scale * (1 - t * t);
}

/* Replace logits by c times their derivatives. */
static void coefficients(const struct head_back *j, int64_t t, float *logit)
{
    float root[BLOCK], sum = (float)j->roots[t];

    signed_roots(j, t, logit, j->scale[t], root);
    for (int64_t v = 0; v < j->nv; v++)
        logit[v] = slope(j->a, logit[v]) * (root[v] - root[v] * root[v] * sum);
}

/* y[rows, nv] = x[rows, h] W^T of the block; or back: y[rows, h] += x[rows, nv] W. */
static void multiply(const struct head_back *j, bool back, int64_t rows,
                     const float *x, uint16_t *room, float *y)
{
    if (j->a->rounded)
        rounded_multiply(back ? &j->back : &j->out, x, rows, room, y, back);
    else
        blas_sgemm(&(struct sgemm){ .tb = !back,
                                    .m = rows,
                                    .n = back ? j->h : j->nv,
                                    .k = back ? j->nv : j->h,
                                    .a = x,
                                    .b = j->block,
                                    .beta = back ? 1 : 0,
                                    .c = y });
}

static void run_parts(void *ctx, size_t begin, size_t end)
{
    struct head_back *j = ctx;
    int64_t h = j->h, nv = j->nv, most = h > BLOCK ? h : BLOCK;
    struct err e;
    float *logit = scratch_thread(PART * BLOCK * sizeof(float) +
                                      (size_t)(PART * most) * sizeof(uint16_t),
                                  &e);
    uint16_t *room;

    if (!logit) {
        threads_error_add(&j->error, begin, &e);
        return;
    }
    room = (uint16_t *)(logit + PART * BLOCK);
    for (size_t i = begin; i < end; i++) {
        int64_t at = (int64_t)i * PART;
        int64_t n = j->n - at < PART ? j->n - at : PART;

        multiply(j, false, n, j->a->y + at * h, room, logit);
        squash(j->a, logit, n * nv);
        for (int64_t k = 0; k < n; k++)
            if (j->again)
                coefficients(j, at + k, logit + k * nv);
            else
                add_exponents(j, at + k, logit + k * nv);
        if (j->again)
            multiply(j, true, n, logit, room, j->a->g + at * h);
    }
}

static int pack(struct head_back *j, struct err *e)
{
    if (rounded_pack(&j->out, j->block, true, 0, j->nv, j->h, e) < 0 ||
        (j->again &&
         rounded_pack(&j->back, j->block, false, 0, j->h, j->nv, e) < 0)) {
        rounded_release(&j->out);
        return e->code;
    }
    return 0;
}

static int pass(struct head_back *j, struct err *e)
{
    for (j->v0 = 0; j->v0 < j->a->vocab; j->v0 += BLOCK) {
        j->nv = j->a->vocab - j->v0 < BLOCK ? j->a->vocab - j->v0 : BLOCK;
        if (widen_cpu(NULL, DT_BF16, j->a->w + j->v0 * j->h, j->nv * j->h,
                      j->block, e) < 0 ||
            (j->a->rounded && pack(j, e) < 0))
            return e->code;
        threads_error_init(&j->error);
        threads_for((size_t)((j->n + PART - 1) / PART), 1, run_parts, j);
        rounded_release(&j->out);
        rounded_release(&j->back);
        if (threads_error_take(&j->error, e) < 0)
            return e->code;
    }
    return 0;
}

static int run(struct head_back *j, struct err *e)
{
    for (int64_t t = 0; t < j->n; t++) {
        j->most[t] = -INFINITY;
        j->sum[t] = j->roots[t] = 0;
    }
    memset(j->a->g, 0, (size_t)(j->n * j->h) * sizeof(float));
    if (pass(j, e) < 0)
        return e->code;
    for (int64_t t = 0; t < j->n; t++) {
        j->scale[t] = j->most[t] + (float)log(j->sum[t]);
        j->roots[t] *= exp((double)(j->most[t] - j->scale[t]) / 2);
    }
    j->again = true;
    return pass(j, e);
}

int head_back_cpu(struct cuda_context *c, const struct backward_head *a,
                  struct err *e)
{
    struct head_back j = { .a = a, .n = a->rows, .h = a->h };
    size_t n = (size_t)a->rows;
    float *room;
    int rc;

    (void)c;
    if (blas_open(e) < 0)
        return e->code;
    room = mem_pages(((size_t)(BLOCK * a->h) + 6 * n) * sizeof(float),
                     "gradients", e);
    if (!room)
        return e->code;
    j.sum = (double *)(void *)room;
    j.roots = j.sum + n;
    j.most = room + 4 * n;
    j.scale = j.most + n;
    j.block = j.scale + n;
    rc = run(&j, e);
    free(room);
    return rc;
}
