/* blas.h - single-precision matrix products by OpenBLAS.  All matrices are
 * row-major.
 *
 * OpenBLAS is loaded at run time, by blas_open(), so tools that need no
 * product start without it; only blas.c knows it.  Its kernels are those of
 * cpu_level(), so equal levels give equal numbers; OPENBLAS_CORETYPE in the
 * environment overrides that. */
#ifndef FORGE_BLAS_H
#define FORGE_BLAS_H

#include "common/base.h"

/* Open OpenBLAS; must have succeeded before the functions below, and may be
 * called again.  E_CONFIG: not installed; E_TEMP: not enough memory, also for
 * its buffers of 128 MiB address space per thread. */
MUST_CHECK int blas_open(struct err *e);
/* Calls run in the calling thread: work is divided by threads_for(), so
 * results do not depend on the number of threads.  true: let OpenBLAS use
 * threads_count() threads of its own (for benchmarks). */
void blas_own_threads(bool on);

/* C[m,n] = alpha * op(A) op(B) + beta * C.  A is [m,k], or [k,m] if ta; B is
 * [k,n], or [n,k] if tb. */
struct sgemm {
    bool ta, tb;
    int64_t m, n, k;
    float alpha; /* 0 means 1 */
    const float *a, *b;
    float beta;
    float *c;
    /* leading dimensions; 0: rows are contiguous */
    int64_t lda, ldb, ldc;
};
/* In the calling thread. */
void blas_sgemm(const struct sgemm *g);
/* C[n,n] = alpha * XᵀX + beta * C for X [k,n]; only the lower triangle of C is
 * used. */
void blas_ssyrk_lower_t(int n, int k, float alpha, const float *x, int ldx,
                        float beta, float *c, int ldc);

/* C[m,n] = A[m,k] Bᵀ with B [n,k] contiguous, by all threads; uses m, n, k, a,
 * lda, b, c, ldc of g.  Calls blas_open(). */
MUST_CHECK int blas_f32_nt(const struct sgemm *g, struct err *e);

#endif
