/* kernels.h - the inner loops of w4a16.h, once for each level of CPU.
 *
 * Few rows: each word is read once for all rows.  A code less 8 is a float that
 * is exact; sums of 16 lanes, or of an output each, run from the first input to
 * the last in runs of 128, and a run's sum is multiplied by its group's scale
 * then.  avx2, avx512 and neon give equal bytes; plain, which does not fuse,
 * gives them for x of bf16 and f16, whose products with codes are exact.
 * Floor: the words' bytes from memory, once. */
#ifndef FORGE_W4A16_KERNELS_H
#define FORGE_W4A16_KERNELS_H

#include "w4a16/w4a16.h"

struct w4_few {
    const struct forge_w4a16 *w;
    /* [m, ldx] floats by place; of W4_BY_OUTPUT, of each 128 the first inputs of
     * all 16 words, then the second ones, ... */
    const float *x;
    const float *sums; /* [m, groups] */
    int64_t ldx, m;    /* 1 .. W4_FEW */
    int64_t first, n;  /* outputs */
    float *y;          /* [m, ldy], from output `first` on */
    int64_t ldy;
};

/* Values of 16 outputs, from `o` on, at places k .. k+n-1; outputs and places
 * that W lacks are 0.  k and n are multiples of 8. */
struct w4_values {
    const struct forge_w4a16 *w;
    int64_t o, k, n;
    /* One of: bf16, rounded to nearest even, as pairs of neighbouring places, the
     * next pair of an output 64 elements on; floats, the next place ld on. */
    uint16_t *pairs;
    float *floats;
    int64_t ld;
};

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
