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
    bool wide;        /* W4_AWQ: n is w4_wide() at least */
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
    /* of W4_AWQ few reads digits of x in order; false: as pairs (struct w4_fixed) */
    bool quads;
};

/* Those of cpu_level(). */
const struct w4_kernels *w4_kernels(void);

/* Outputs of a tile of W4_AWQ from which on rows of words are read along them, four at
 * a time, instead of down their columns.  INT64_MAX: never, where the CPU is not
 * Intel's, or the kernels' `quads` is false. */
int64_t w4_wide(void);
/* Another number, for tests; 0: as at first. */
void w4_wide_set(int64_t outputs);

#ifdef __x86_64__
/* [1]: for cpu_uses_vnni() */
extern const struct w4_kernels w4_kernels_avx2[2], w4_kernels_avx512[2];
#endif

#endif
