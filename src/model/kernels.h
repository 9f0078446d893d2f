/* kernels.h - the element-wise parts of a layer and attention's inner loops,
 * once for each kind of CPU.
 *
 * kernels.inc is the source; kernels_avx512.c, kernels_avx2.c,
 * kernels_neon.c and kernels_plain.c compile it for vectors of 16, 8, 4 and 4
 * floats.  They differ
 * in the order of sums and in fused multiplications, nothing else.
 *
 * "Elements" are float, or bf16 in a uint16_t, as the name or `bf16` says. */
#ifndef FORGE_KERNELS_H
#define FORGE_KERNELS_H

#include "arch/config.h"
#include "common/base.h"

enum {
    ATTEND_QUERIES = 48, /* of a block: a multiple of ATTEND_ROWS */
    ATTEND_KEYS = 64,    /* of a block */
    ATTEND_ROWS = 6,     /* queries in registers */
    ATTEND_ALIGN = 16    /* heads are padded to a multiple of it */
};

/* What is done to the rows of q or k between the linear and attention. */
struct rotation {
    bool bf16;          /* elements of src, and rounding after each step */
    int64_t dim;        /* of a head, up to HEAD_DIM_MAX */
    int64_t at, rotary; /* the dims that turn: the first, and an even number */
    bool pairs;         /* neighbours turn together; they come out as halves,
                           the first of each pair before the second */
    const float *norm;  /* RMS norm weights [dim], or NULL */
    float eps;
};

/* A block of queries of one head against the keys of its sequence. */
struct attend {
    int64_t dim, padded; /* of q and k; of v, as a multiple of ATTEND_ALIGN */
    int64_t first;       /* position of the first query */
    int64_t n;           /* queries, 1..ATTEND_QUERIES */
    int64_t window;      /* a query at p sees keys > p - window; 0: all <= p */
    float scale;
    const void *q; /* [ATTEND_QUERIES][dim], rows from n on zero */
    const void *k; /* [blocks][dim][ATTEND_KEYS], zero past the end */
    const void *v; /* [blocks][ATTEND_KEYS][padded], the same */
    float *out;    /* [ATTEND_QUERIES][padded] */
};

struct kernels {
    const char *name;
    /* out = w * (x / rms(x)): n elements.  bf16 rounds before and after the
     * multiplication by w, as the reference does.  out may be x. */
    void (*norm_f32)(const float *x, const float *w, int64_t n, float eps,
                     float *out);
    void (*norm_bf16)(const uint16_t *x, const float *w, int64_t n, float eps,
                      uint16_t *out);
    /* Ends of a product y[n] (bias: NULL or [n]).  store: out = y + bias.
     * add: out += y + bias.  gate: out = silu(g + gb) * (u + ub).  bf16 ones
     * round at every step. */
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
    /* Whether all n elements are neither infinite nor NaN. */
    bool (*finite_f32)(const float *x, int64_t n);
    bool (*finite_bf16)(const uint16_t *x, int64_t n);
    /* out[dim] = head row src (elements), normalized and turned by cs, the
     * cosines [rotary/2] and sines [rotary/2] of its position. */
    void (*rotate_row)(const struct rotation *t, const void *src,
                       const float *cs, float *out);
    /* The same from bf16 to bf16 (t->bf16). */
    void (*rotate_bf16)(const struct rotation *t, const uint16_t *src,
                        const float *cs, uint16_t *out);
    /* out[2n] = a[0] b[0] a[1] b[1] ... */
    void (*pair_rows)(const uint16_t *a, const uint16_t *b, int64_t n,
                      uint16_t *out);
    /* Softmax attention by blocks of keys: never more than
     * ATTEND_QUERIES x ATTEND_KEYS scores exist. */
    void (*attend)(const struct attend *a);
    /* The same from bf16 on processors that multiply pairs of them: q, k, v
     * hold two bf16 in each 32 bits, of neighbouring dims for q
     * [ATTEND_QUERIES][dim/2] and k [blocks][dim/2][ATTEND_KEYS], of
     * neighbouring keys for v [blocks][ATTEND_KEYS/2][padded].  The weights
     * are rounded to bf16, as the reference does.  NULL: not here. */
    void (*attend_pairs)(const struct attend *a);
};

/* The fastest of the level in use (amx has those of avx512bf16). */
const struct kernels *kernels_best(void);

#endif
