/* kernels.h - micro-kernels of w4a16.h, one set for each CPU level.
 *
 * few: y = x Wᵀ for up to W4_FEW rows of x, bound by reading the codes from
 * memory once.  code - 8 is exact in f32.  A sum goes over the inputs in
 * ascending order in runs of at most W4_RUN = 128 of one group, per output
 * (W4_BY_OUTPUT: in 16 lanes, added at the end); a run's sum is multiplied by
 * the group's scale.  avx2, avx512 and neon give equal bytes; plain, which
 * does not fuse, gives them for x of bf16 and f16, whose products with codes
 * are exact.
 *
 * values: dequantizes a block of W for products with more rows. */
#ifndef FORGE_W4A16_KERNELS_H
#define FORGE_W4A16_KERNELS_H

#include "w4a16/w4a16.h"

/* Arguments of few. */
struct w4_few {
    const struct forge_w4a16 *w;
    /* [m, ldx] f32, inputs in the order of places (w4a16.h), zero-padded.  For
     * W4_BY_OUTPUT each 128 places are transposed as [8, 16]: nibble j of 16
     * words side by side */
    const float *x;
    const float *sums; /* [m, groups]: sum of x over each group, if W has
                        * zeros */
    int64_t ldx, m;    /* m: 1..W4_FEW */
    int64_t first, n;  /* outputs first..first+n-1 */
    float *y;          /* [m, n], leading dimension ldy */
    int64_t ldy;
};

/* Arguments of values: weights of outputs o..o+15 at places k..k+n-1, 0 beyond
 * those of W.  k and n are multiples of 8. */
struct w4_values {
    const struct forge_w4a16 *w;
    int64_t o, k, n;
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
};

/* Those of cpu_level(). */
const struct w4_kernels *w4_kernels(void);

#ifdef __x86_64__
extern const struct w4_kernels w4_kernels_avx2, w4_kernels_avx512;
#endif

#endif
