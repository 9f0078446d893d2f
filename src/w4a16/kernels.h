/* kernels.h - micro-kernels of w4a16.h, one set for each CPU level.
 *
 * few: y = x Wᵀ for up to W4_FEW rows of x, bound by reading the codes from
 * memory once.  x is integers in pieces (struct w4_fixed), so that sums of codes
 * times x are exact in any order: over a piece (W4_BY_INPUT, W4_AWQ), with two digits
 * of W4_AWQ over all pieces with one unit, or over eight inputs of a piece
 * (W4_BY_OUTPUT; then 16 lanes, added at the end).  Each is converted to f32 and
 * multiplied by its scale and the unit, without fused multiply-adds: all levels give
 * equal bytes.
 *
 * values: dequantizes a block of W for products with more rows. */
#ifndef FORGE_W4A16_KERNELS_H
#define FORGE_W4A16_KERNELS_H

#include "w4a16/w4a16.h"

/* In which order few reads the words of W4_AWQ (awq.inc). */
enum w4_awq {
    W4_AWQ_ROWS,    /* whole rows, eight at a time; x of two digits alone */
    W4_AWQ_COLUMNS, /* lines down the columns of 16 or 32 rows */
    W4_AWQ_ALONG,   /* as W4_AWQ_ROWS, of kernels with `quads` alone */
    W4_AWQ_BY_CPU   /* w4_awq_set(): as at first */
};

/* Arguments of few. */
struct w4_few {
    const struct forge_w4a16 *w;
    const struct w4_fixed *x; /* [m], m: 1..W4_FEW */
    int64_t m;
    int digits;        /* of x: 2 or 3 */
    const float *sums; /* [m, groups]: sum of x over each group, if W has
                        * zeros */
    /* pieces piece..piece+pieces-1 of x, of those that are there; of
     * W4_BY_OUTPUT all */
    int64_t piece, pieces;
    int64_t first, n; /* outputs first..first+n-1 */
    enum w4_awq awq;  /* of W4_AWQ: w4_awq() */
    bool near;        /* ask for words ahead in a row, not for later rows */
    float *y;         /* [m, n], leading dimension ldy */
    int64_t ldy;
};

/* Arguments of values: weights of outputs o..o+15 at places k..k+n-1, 0 beyond
 * those of W.  k and n are multiples of 8. */
struct w4_values {
    const struct forge_w4a16 *w;
    int64_t o, k, n;
    const uint32_t *words; /* W4_AWQ: rows of words, from those of k and o on */
    int64_t stride;        /* words from a row to the next */
    /* The codes that come next, which are asked for meanwhile: the words of their first
     * output and place; of W4_AWQ of their W4_BLOCK outputs. */
    const uint32_t *ahead;
    /* Destination, one of the two.  pairs: bf16, rounded to nearest even, as
     * bf16_kernel.h's panels have them: pairs of places, those of an output 64
     * elements apart.  floats [n, ld]: f32, a row of 16 outputs for each
     * place. */
    uint16_t *pairs;
    float *floats;
    int64_t ld;
};

/* The kernels of a level. */
struct w4_kernels {
    void (*few)(const struct w4_few *f);
    void (*values)(const struct w4_values *v);
    /* of W4_AWQ few reads digits of x in order; false, or W4_AWQ_ROWS: as pairs
     * (struct w4_fixed) */
    bool quads;
};

/* Those of cpu_level(). */
const struct w4_kernels *w4_kernels(void);

/* The order for x of so many digits and tiles of n outputs. */
enum w4_awq w4_awq(int digits, int64_t n);
/* Another order wherever it can be, for tests. */
void w4_awq_set(enum w4_awq order);
/* `near` of w4_few: on Intel's CPUs, or as was set. */
bool w4_near(void);
/* 0 or 1; -1: as at first.  For tests. */
void w4_near_set(int near);

#ifdef __x86_64__
/* [1]: for cpu_uses_vnni(); [2]: where products flush numbers below 2^-126, too */
extern const struct w4_kernels w4_kernels_avx2[2], w4_kernels_avx512[3];
#endif

#endif
