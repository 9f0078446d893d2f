/* rounded.h - products of f32 matrices whose numbers are rounded to bf16, with sums in
 * f32 (bf16_gemm.h): several times as fast where the CPU multiplies bf16. */
#ifndef FORGE_ROUNDED_H
#define FORGE_ROUNDED_H

#include "common/math/blas.h"

/* Let the tool's products of f32 be rounded: those of linears and of the head (forward,
 * backward and of weights' gradients), not routers'; attention's on a GPU alone, to its
 * TF32.  Before any. */
void rounded_set(bool on);
/* Whether a product of so many tokens is rounded: of fewer, rounding weights takes longer
 * than it gains. */
bool rounded(int64_t tokens);

/* C[m,n] = op(A) op(B), or += where g->beta is 1, by all threads.  alpha is not used.
 * An element depends only on its row of op(A) and column of op(B), and on the CPU
 * level: not on m, n or threads.  E_TEMP. */
MUST_CHECK int rounded_gemm(const struct sgemm *g, struct err *e);

/* An operand that is used more than once, as op(B) of products. */
struct rounded_operand {
    uint16_t *packed;
    int64_t n, k;
};
/* Of B[n,k] (tb) or B[k,n], leading dimension ld (0: contiguous).  E_TEMP. */
MUST_CHECK int rounded_pack(struct rounded_operand *to, const float *b, bool tb,
                            int64_t ld, int64_t n, int64_t k, struct err *e);
void rounded_release(struct rounded_operand *b);
/* y[m,n] = x[m,k] op(B), or += if `add`, in the calling thread, x and y contiguous.
 * room: m k elements. */
void rounded_multiply(const struct rounded_operand *b, const float *x,
                      int64_t m, uint16_t *room, float *y, bool add);

#endif
