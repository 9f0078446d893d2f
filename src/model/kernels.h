/* kernels.h - element-wise operations of a layer and the inner loops of
 * attention, one set for each CPU level.
 *
 * kernels.inc is the source; kernels_avx512bf16.c, kernels_avx512.c,
 * kernels_avx2.c, kernels_neon.c and kernels_plain.c compile it for vectors of
 * 16, 16, 8, 4 and 4 floats.  Results differ only by the order of sums and by
 * fused multiply-adds.
 *
 * "Elements" are float, or bf16 in a uint16_t, as the name or `bf16` says. */
#ifndef FORGE_KERNELS_H
#define FORGE_KERNELS_H

#include "arch/config.h"
#include "common/base.h"

enum {
    ATTEND_QUERIES = 48, /* queries of a block: a multiple of ATTEND_ROWS */
    ATTEND_KEYS = 64,    /* keys of a block */
    ATTEND_ROWS = 6,     /* queries whose sums are in registers */
    ATTEND_ALIGN = 16    /* values of a head are padded to a multiple of it */
};

/* Norm and RoPE of a head of q or k, between the linear and attention. */
struct rotation {
    bool bf16;          /* src is bf16, and every step is rounded to it */
    int64_t dim;        /* of the head, up to HEAD_DIM_MAX */
    int64_t at, rotary; /* first dim, and even number of dims, that are
                         * rotated */
    bool pairs;         /* rotates (2i, 2i+1) instead of (i, i + rotary/2),
                         * and outputs the first of each pair before all
                         * second ones */
    const float *norm;  /* RMS norm weights [dim], or NULL */
    float eps;
};

/* A block of queries of one head against the keys of its sequence. */
struct attend {
    int64_t dim, padded; /* dims of q and k; of v, padded to ATTEND_ALIGN */
    int64_t first;       /* position of the first query */
    int64_t n;           /* number of queries, 1..ATTEND_QUERIES */
    int64_t window; /* the query at p sees keys p - window + 1..p; 0: 0..p */
    int64_t chunk;  /* it sees keys p - p % chunk..p; 0: by window */
    float scale;
    float cap; /* scores s become cap * tanh(s / cap); 0: they stay */
    /* [n, words] of keys, of those that position and window allow, that each
     * query sees: bit i of word w is key 64 w + i, and each query sees one at
     * least; NULL: all */
    const uint64_t *seen;
    const float *sink; /* a score without a value; NULL: none */
    int64_t words;
    const void *q; /* [ATTEND_QUERIES, dim], rows from n on zero */
    const void *k; /* [blocks, dim, ATTEND_KEYS], zero beyond the sequence */
    const void *v; /* [blocks, ATTEND_KEYS, padded], zero beyond the sequence */
    float *out;    /* [ATTEND_QUERIES, padded] */
};

/* One token of linear attention with a state S [kd, vd]: S = diag(decay) S;
 * S += k (beta (v - Sᵀ k))ᵀ, the delta rule, or S += k (beta v)ᵀ; o = Sᵀ q. */
struct recurrence {
    float *S;
    const float *q, *k, *v; /* [kd], [kd], [vd] */
    const float *decay;     /* [kd] */
    float beta;
    bool delta;
    int64_t kd, vd;
    float *o; /* [vd] */
};

/* The kernels of a level. */
struct kernels {
    const char *name;
    /* RMS norm of n elements: out = w * (x / rms(x)).  bf16 rounds before and
     * after the multiplication by w, as transformers does.  out may be x. */
    void (*norm_f32)(const float *x, const float *w, int64_t n, float eps,
                     float *out);
    void (*norm_bf16)(const uint16_t *x, const float *w, int64_t n, float eps,
                      uint16_t *out);
    /* Ends of a product with sums y[n]; bias [n] or NULL.  store: out = y +
     * bias.  add: out += y + bias.  gate: out = silu(g + gb) * (u + ub).  The
     * bf16 versions round at every step. */
    void (*store_f32)(const float *y, const float *bias, int64_t n, float *out);
    void (*store_bf16)(const float *y, const float *bias, int64_t n,
                       uint16_t *out);
    void (*add_f32)(const float *y, const float *bias, int64_t n, float *out);
    void (*add_bf16)(const float *y, const float *bias, int64_t n,
                     uint16_t *out);
    void (*gate_f32)(const float *g, const float *u, const float *gb,
                     const float *ub, int64_t n, float *out);
    void (*gate_bf16)(const float *g, const float *u, const float *gb,
                      const float *ub, int64_t n, uint16_t *out);
    /* The same with GELU, approximated by tanh. */
    void (*gelu_f32)(const float *g, const float *u, const float *gb,
                     const float *ub, int64_t n, float *out);
    void (*gelu_bf16)(const float *g, const float *u, const float *gb,
                      const float *ub, int64_t n, uint16_t *out);
    /* The same of ACT_CLAMPED, up + 1 included. */
    void (*clamped_f32)(const float *g, const float *u, const float *gb,
                        const float *ub, float alpha, float limit, int64_t n,
                        float *out);
    void (*clamped_bf16)(const float *g, const float *u, const float *gb,
                         const float *ub, float alpha, float limit, int64_t n,
                         uint16_t *out);
    void (*recur)(const struct recurrence *r);
    /* y[n] = cap * tanh(y * scale / cap). */
    void (*cap)(float *y, float scale, float cap, int64_t n);
    /* out[dim] f32 = head src, elements, normalized and rotated; cs: cosines
     * [rotary/2] and sines [rotary/2] of its position. */
    void (*rotate_row)(const struct rotation *t, const void *src,
                       const float *cs, float *out);
    /* The same from bf16 to bf16 (t->bf16 is true). */
    void (*rotate_bf16)(const struct rotation *t, const uint16_t *src,
                        const float *cs, uint16_t *out);
    /* Interleave: out[2n] = a[0] b[0] a[1] b[1] ... */
    void (*pair_rows)(const uint16_t *a, const uint16_t *b, int64_t n,
                      uint16_t *out);
    /* Softmax attention by blocks of keys (online softmax): at most
     * ATTEND_QUERIES x ATTEND_KEYS scores exist.  f32. */
    void (*attend)(const struct attend *a);
    /* The same from bf16, for CPUs with products of bf16 pairs: two bf16 in
     * each 32-bit lane, of neighbouring dims for q [ATTEND_QUERIES, dim/2] and
     * k [blocks, dim/2, ATTEND_KEYS], of neighbouring keys for v [blocks,
     * ATTEND_KEYS/2, padded].  Weights are rounded to bf16, as transformers
     * does.  NULL: not at this level. */
    void (*attend_pairs)(const struct attend *a);
};

/* Those of the CPU level in use (amx: those of avx512bf16). */
const struct kernels *kernels_best(void);

#endif
