/* cholesky.h - the lower Cholesky factor of a matrix in panels of 48 rows.
 *
 *     panel q = rows 48q..48q+47, columns 0..48q+47, column by column
 *
 * so that the 48 values of a column lie together, as the kernels want them. */
#ifndef FORGE_CHOLESKY_H
#define FORGE_CHOLESKY_H

#include <stdatomic.h>

#include "common/base.h"
#include "gptq/solve/solve_kernel.h"

enum { CHOLESKY_ROWS = SOLVE_ROWS };

/* Index of panel q's first element; with q = the number of panels, the size of
 * the whole array in elements. */
static inline uint64_t cholesky_at(uint64_t q)
{
    return (uint64_t)CHOLESKY_ROWS * CHOLESKY_ROWS * (q * (q + 1) / 2);
}
/* a[cholesky_at(panels)], symmetric positive definite, becomes its lower
 * Cholesky factor in place.  By all threads; the result does not depend on
 * their number.  Elements above the diagonal of a panel have no meaning
 * afterwards.  done[panels]: scratch memory.
 * Returns 0, or 1: not positive definite (a is spoilt). */
MUST_CHECK int cholesky(float *a, uint64_t panels, _Atomic uint32_t *done);

#endif
