/* backward_attend_cpu.c - see backward_table.h: the CPU's backward pass of head
 * norms, RoPE and attention.
 *
 * With scores S = scale Q Kᵀ, P = softmax S, O = P V, and gO the gradient with
 * respect to O:
 *
 *     gV = Pᵀ gO    gS = P ∘ (gO Vᵀ - rowsum(P ∘ gO Vᵀ))
 *     gQ = scale gS K    gK = scale gSᵀ Q
 *
 * One piece of work is a key head of a sequence with the query heads that
 * share it: no other piece writes its gradients.  Queries are processed in
 * blocks, so that only BLOCK rows of scores exist. */
#include <math.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/threads.h"
#include "model/backward_parts.h"

enum { BLOCK = 64 }; /* queries of a block */

struct piece {
    const struct kernels *kernels;
    const struct backward_attend *a;
    int64_t row, n; /* first row, and number of rows, of the sequence */
    int64_t heads, keys, d, v_dim;
    struct rotation rotation;
    float *k, *gk, *gv; /* [n, d] keys, [n, d] and [n, v_dim] gradients */
    float *q, *gq;      /* [n, d] queries of a head; [BLOCK, d] gradients */
    float *p, *gs;      /* [BLOCK, n] P and gS */
    float *slope;       /* [n] of a row's soft cap */
    const float *sink;  /* of the head, or NULL */
};

struct job {
    const struct backward_attend *a;
    const struct kernels *k;
    struct threads_error error;
};

static const float *angles_of(const struct piece *j, int64_t i)
{
    return j->a->cs + i * j->a->rotary;
}

/* Normalize and rotate rows x, leading dimension ld. */
static void rotate_rows(struct piece *j, const float *norm, const float *x,
                        int64_t ld, float *to)
{
    j->rotation.norm = norm;
    for (int64_t i = 0; i < j->n; i++)
        j->kernels->rotate_row(&j->rotation, x + i * ld, angles_of(j, i),
                               to + i * j->d);
}

/* Gradient g of row i through RoPE and norm; it replaces x. */
static void rotate_back(const struct piece *j, const float *norm, int64_t i,
                        float *g, float *x)
{
    const struct rotation *t = &j->rotation;
    int64_t half = t->rotary / 2;
    const float *c = angles_of(j, i), *s = c + half;
    float *y = g + t->at, was[HEAD_DIM_MAX];
    struct backward_norm back = { .dtype = DT_F32,
                                  .n = j->d,
                                  .x = x,
                                  .w = norm,
                                  .eps = t->eps,
                                  .gy = g,
                                  .g = g };

    memcpy(was, y, (size_t)t->rotary * sizeof(*was));
    for (int64_t k = 0; k < half; k++) {
        float a = was[k], b = was[half + k];

        y[t->pairs ? 2 * k : k] = a * c[k] + b * s[k];
        y[t->pairs ? 2 * k + 1 : half + k] = b * c[k] - a * s[k];
    }
    if (norm)
        norm_back_row(&back, 0);
    memcpy(x, g, (size_t)j->d * sizeof(*x));
}

/* Multiply row i of a head's queries, or of gradients with respect to them. */
static void grow(const struct piece *j, int64_t i, float *q)
{
    float by = j->a->growth ? j->a->growth[i] : 1;

    for (int64_t k = 0; k < j->d && by != 1; k++)
        q[k] *= by;
}

/* Scores p[n] become cap tanh(p / cap), whose derivative j->slope gets. */
static void cap_row(struct piece *j, float *p, int64_t n)
{
    float cap = j->a->cap;

    for (int64_t k = 0; k < n; k++) {
        float t = tanhf(p[k] / cap);

        p[k] = cap * t;
        j->slope[k] = 1 - t * t;
    }
}

/* p: scores of queries first..first+rows-1, replaced by their softmax, 0 where
 * masked; gs: gradient with respect to p, replaced by that with respect to the
 * scores. */
static void softmax_back(struct piece *j, int64_t first, int64_t rows,
                         int64_t keys)
{
    int64_t w = j->a->window;

    for (int64_t i = 0; i < rows; i++) {
        int64_t end = first + i + 1, from = w && end > w ? end - w : 0;
        int64_t chunk = j->a->chunk;
        float *p = j->p + i * j->n, *g = j->gs + i * j->n, most = -INFINITY;
        double sum = 0, dot = 0;

        if (chunk)
            from = (end - 1) / chunk * chunk;
        if (j->a->cap > 0)
            cap_row(j, p, keys);
        for (int64_t k = from; k < end; k++)
            most = p[k] > most ? p[k] : most;
        if (j->sink) {
            most = *j->sink > most ? *j->sink : most;
            sum = exp((double)(*j->sink - most));
        }
        for (int64_t k = 0; k < keys; k++) {
            p[k] = k < from || k >= end ? 0 : expf(p[k] - most);
            sum += (double)p[k];
        }
        for (int64_t k = from; k < end; k++) {
            p[k] = (float)((double)p[k] / sum);
            dot += (double)p[k] * (double)g[k];
        }
        for (int64_t k = 0; k < keys; k++)
            g[k] =
                p[k] * (g[k] - (float)dot) * (j->a->cap > 0 ? j->slope[k] : 1);
    }
}

/* Queries first..first+rows-1 of a head; v, go: the head's first row. */
static void block_back(struct piece *j, int64_t first, int64_t rows,
                       const float *v, const float *go)
{
    int d = (int)j->d, e = (int)j->v_dim, n = (int)j->n, nq = (int)rows;
    int keys = (int)(first + rows), ldv = (int)j->keys * e;
    int ldo = (int)j->heads * e;
    float scale = j->a->scale, *q = j->q + first * j->d;

    go += first * ldo;
    blas_sgemm(&(struct sgemm){ .tb = true,
                                .m = nq,
                                .n = keys,
                                .k = d,
                                .alpha = scale,
                                .a = q,
                                .b = j->k,
                                .c = j->p,
                                .ldc = n });
    blas_sgemm(&(struct sgemm){ .tb = true,
                                .m = nq,
                                .n = keys,
                                .k = e,
                                .a = go,
                                .lda = ldo,
                                .b = v,
                                .ldb = ldv,
                                .c = j->gs,
                                .ldc = n });
    softmax_back(j, first, rows, keys);
    blas_sgemm(&(struct sgemm){ .ta = true,
                                .m = keys,
                                .n = e,
                                .k = nq,
                                .a = j->p,
                                .lda = n,
                                .b = go,
                                .ldb = ldo,
                                .beta = 1,
                                .c = j->gv });
    blas_sgemm(&(struct sgemm){ .ta = true,
                                .m = keys,
                                .n = d,
                                .k = nq,
                                .alpha = scale,
                                .a = j->gs,
                                .lda = n,
                                .b = q,
                                .beta = 1,
                                .c = j->gk });
    blas_sgemm(&(struct sgemm){ .m = nq,
                                .n = d,
                                .k = keys,
                                .alpha = scale,
                                .a = j->gs,
                                .lda = n,
                                .b = j->k,
                                .c = j->gq });
}

static void head_back(struct piece *j, int64_t head, const float *v)
{
    const struct backward_attend *a = j->a;
    int64_t ld = j->heads * j->d;
    float *q = a->q + j->row * ld + head * j->d;
    const float *go = a->go + (j->row * j->heads + head) * j->v_dim;

    j->sink = a->sinks ? a->sinks + head : NULL;
    rotate_rows(j, a->q_norm, q, ld, j->q);
    for (int64_t i = 0; i < j->n; i++)
        grow(j, i, j->q + i * j->d);
    for (int64_t at = 0; at < j->n; at += BLOCK) {
        int64_t rows = j->n - at < BLOCK ? j->n - at : BLOCK;

        block_back(j, at, rows, v, go);
        for (int64_t i = 0; i < rows; i++) {
            grow(j, at + i, j->gq + i * j->d);
            rotate_back(j, a->q_norm, at + i, j->gq + i * j->d,
                        q + (at + i) * ld);
        }
    }
}

static void keys_back(struct piece *j, int64_t key)
{
    const struct backward_attend *a = j->a;
    int64_t shared = j->heads / j->keys, d = j->d, e = j->v_dim;
    float *k = a->k + (j->row * j->keys + key) * d;
    float *v = a->v + (j->row * j->keys + key) * e;

    rotate_rows(j, a->k_norm, k, j->keys * d, j->k);
    memset(j->gk, 0, (size_t)(j->n * (d + e)) * sizeof(float));
    for (int64_t h = key * shared; h < (key + 1) * shared; h++)
        head_back(j, h, v);
    for (int64_t i = 0; i < j->n; i++) {
        rotate_back(j, a->k_norm, i, j->gk + i * d, k + i * j->keys * d);
        memcpy(v + i * j->keys * e, j->gv + i * e, (size_t)e * sizeof(float));
    }
}

static void run_pieces(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    const struct backward_attend *a = j->a;

    for (size_t t = begin; t < end; t++) {
        int64_t s = (int64_t)t / a->n_kv_heads, d = a->head_dim;
        struct piece p = { .kernels = j->k,
                           .a = a,
                           .row = a->first[s],
                           .n = a->first[s + 1] - a->first[s],
                           .heads = a->n_heads,
                           .keys = a->n_kv_heads,
                           .d = d,
                           .v_dim = a->v_dim,
                           .rotation = { .dim = d,
                                         .at = a->rotary_at,
                                         .rotary = a->rotary,
                                         .pairs = a->pairs,
                                         .eps = a->eps } };
        struct err e;

        p.k = scratch_thread(
            (size_t)(p.n * (3 * d + a->v_dim + 1) + BLOCK * (d + 2 * p.n)) *
                sizeof(float),
            &e);
        if (!p.k) {
            threads_error_add(&j->error, t, &e);
            continue;
        }
        p.gk = p.k + p.n * d;
        p.gv = p.gk + p.n * d;
        p.q = p.gv + p.n * a->v_dim;
        p.gq = p.q + p.n * d;
        p.p = p.gq + BLOCK * d;
        p.gs = p.p + BLOCK * p.n;
        p.slope = p.gs + BLOCK * p.n;
        keys_back(&p, (int64_t)t % a->n_kv_heads);
    }
}

int attend_back_cpu(struct cuda_context *c, const struct backward_attend *a,
                    struct err *e)
{
    struct job j = { .a = a, .k = kernels_best() };

    (void)c;
    if (blas_open(e) < 0)
        return e->code;
    threads_error_init(&j.error);
    threads_for((size_t)(a->n_sequences * a->n_kv_heads), 1, run_pieces, &j);
    return threads_error_take(&j.error, e);
}
