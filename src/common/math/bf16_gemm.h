/* bf16_gemm.h - y = x Wᵀ for bf16 x and W with sums in f32, on any CPU.
 *
 * W is packed once: groups of rows (columns of y), in each group blocks of
 * inputs, in each block panels of GEMM_COLS rows (bf16_kernel.h).  So what a
 * tile reads of W at a time lies together.  Rows and inputs that W lacks are zero.
 *
 * x is read as it lies.  Each sum runs over the inputs from first to last, so
 * an element of y depends on its row of x and of W alone, and on the level of
 * CPU as bf16_kernel.h says.  There is nothing to set up for a shape, and few
 * rows cost little. */
#ifndef FORGE_BF16_GEMM_H
#define FORGE_BF16_GEMM_H

#include "common/math/bf16_kernel.h"

enum { GEMM_COLS = KERNEL_COLS };

/* Rows of a group. */
int64_t bf16_gemm_group(void);
/* Inputs that are packed: k filled up. */
int64_t bf16_gemm_depth(int64_t k);
/* Elements of W[n, k] packed; a group begins at its first row times
 * bf16_gemm_depth(k). */
size_t bf16_gemm_packed(int64_t n, int64_t k);
/* Of a group's n rows w[n, k] panels begin..end-1; to does not overlap w. */
void bf16_gemm_pack(uint16_t *to, const uint16_t *w, int64_t n, int64_t k,
                    int64_t begin, int64_t end);

struct bf16_gemm {
    const uint16_t *x; /* [m, k], rows ldx apart */
    int64_t ldx, m, k;
    const uint16_t *packed; /* all of W */
    int64_t all;            /* its rows */
    int64_t first, n;       /* columns first..first+n-1 are made; first is a
                             * multiple of GEMM_COLS */
    float *y;               /* [m, n], rows ldy apart */
    int64_t ldy;
    const uint16_t *second; /* another W of the same shape, or NULL: the same
                             * columns of x Wᵀ behind y's: [m, 2 n] */
    bool go_on;             /* sums begin with y: k are further inputs */
};
/* In the calling thread; best for at most bf16_kernel()'s tile_rows, and its
 * tile_cols of both W. */
void bf16_gemm(const struct bf16_gemm *g);

#endif
