/* bf16_gemm.h - y = x Wᵀ for bf16 x and W with sums in f32, on CPUs that
 * multiply pairs of bf16 themselves (AVX512_BF16).
 *
 * W is packed once, into panels of GEMM_COLS of its rows (columns of y), pairs
 * of inputs together; rows that W lacks are zero:
 *
 *     panel p, pair t:  w[32p][2t] w[32p][2t+1] w[32p+1][2t] w[32p+1][2t+1] ...
 *
 * x is read as it lies.  Each sum runs over the inputs from first to last, so
 * an element of y depends on its row of x and of W alone.  There is nothing to
 * set up for a shape, and few rows cost little. */
#ifndef FORGE_BF16_GEMM_H
#define FORGE_BF16_GEMM_H

#include "common/base.h"

enum { GEMM_ROWS = 12, GEMM_COLS = 32 };

/* Whether this CPU can, and k inputs are pairs. */
bool bf16_gemm_usable(int64_t k);
/* Elements of W[n, k] packed. */
size_t bf16_gemm_packed(int64_t n, int64_t k);
/* Pack panels begin..end-1 of ceil(n / GEMM_COLS) in place: w holds W[n, k] by
 * rows and has room for bf16_gemm_packed(n, k) elements; room[GEMM_COLS * k] is
 * to work in. */
void bf16_gemm_pack(uint16_t *w, int64_t n, int64_t k, int64_t begin,
                    int64_t end, uint16_t *room);

struct bf16_gemm {
    const uint16_t *x; /* [m, k], rows ldx apart */
    int64_t ldx, m, k;
    const uint16_t *packed; /* all of W */
    int64_t first, n;       /* columns first..first+n-1 are made; first is a
                             * multiple of GEMM_COLS */
    float *y;               /* [m, n], rows ldy apart */
    int64_t ldy;
};
/* In the calling thread; best when n columns of W fit the second-level cache,
 * and GEMM_ROWS of x the first. */
void bf16_gemm(const struct bf16_gemm *g);

#endif
