/* onednn.h - matrix products with bf16 inputs and f32 accumulation.
 *
 * oneDNN is opened at the first call (onednn.c alone knows it): E_CONFIG when it
 * is not installed.  Primitives are cached by shape.  On a CPU
 * without bf16 instructions oneDNN computes the same product more slowly.
 * A product of two bf16 numbers is exact in f32, so only the order of the
 * summation differs from a f32 product of the same numbers. */
#ifndef FORGE_ONEDNN_H
#define FORGE_ONEDNN_H

#include "common/base.h"

/* Y[m,n] (f32) = X[m,k] (bf16, row stride ldx) * W[n,k]ᵀ (bf16, contiguous). */
MUST_CHECK int onednn_bf16_nt(int64_t m, int64_t n, int64_t k,
                              const uint16_t *x, int64_t ldx, const uint16_t *w,
                              float *y, int64_t ldy, struct err *e);
/* C[m,n] (f32) = A[k,m]ᵀ * B[k,n], both bf16 with row strides: the tile of a
 * Hessian. */
MUST_CHECK int onednn_bf16_tn(int64_t m, int64_t n, int64_t k,
                              const uint16_t *a, int64_t lda, const uint16_t *b,
                              int64_t ldb, float *c, int64_t ldc,
                              struct err *e);
/* Y[m,n] = X[m,k] * W[n,k]ᵀ in f32 (fastest of what is installed). */
MUST_CHECK int onednn_f32_nt(int64_t m, int64_t n, int64_t k, const float *x,
                             int64_t ldx, const float *w, float *y, int64_t ldy,
                             struct err *e);

#endif
