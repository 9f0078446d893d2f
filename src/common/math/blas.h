/* blas.h - single-precision dense linear algebra, by OpenBLAS.
 *
 * OpenBLAS is opened at the first call (blas.c alone knows it), so that tools
 * that need none start without it.  Its kernels are those of cpu_level(), so
 * that equal levels give equal numbers; OPENBLAS_CORETYPE in the environment
 * says otherwise.
 * All matrices are row-major. */
#ifndef FORGE_BLAS_H
#define FORGE_BLAS_H

#include "common/base.h"

/* Must have succeeded before anything below.  E_CONFIG: not installed; E_TEMP:
 * no memory for it, or for what it works in, 128 MiB a thread (which counts
 * where address space is limited, and is touched only as far as needed). */
MUST_CHECK int blas_open(struct err *e);
/* Every call runs in the thread that makes it: work is spread by threads_for(),
 * so that results do not depend on the number of threads, and OpenBLAS's own
 * threads, which spin while they wait, are never started.  With true they are,
 * as many as threads_count() says (benchmarks). */
void blas_own_threads(bool on);

/* C[m,n] = alpha * op(A) op(B) + beta * C; ta, tb: A is [k,m], B [n,k]. */
struct sgemm {
    bool ta, tb;
    int64_t m, n, k;
    float alpha; /* 0: 1 */
    const float *a, *b;
    float beta;
    float *c;
    /* from row to row; 0: rows lie one behind the other */
    int64_t lda, ldb, ldc;
};
void blas_sgemm(const struct sgemm *g);
/* Lower triangle of C[n,n] = alpha * XᵀX + beta * C, X [k,n]. */
void blas_ssyrk_lower_t(int n, int k, float alpha, const float *x, int ldx,
                        float beta, float *c, int ldc);

/* C[m,n] = A[m,k] Bᵀ, B[n,k] contiguous, by all threads.  Opens OpenBLAS
 * itself. */
MUST_CHECK int blas_f32_nt(const struct sgemm *g, struct err *e);

#endif
