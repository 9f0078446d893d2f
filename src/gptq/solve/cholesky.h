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

/* Where panel q begins; of the number of panels: the elements of all. */
static inline uint64_t cholesky_at(uint64_t q)
{
    return (uint64_t)CHOLESKY_ROWS * CHOLESKY_ROWS * (q * (q + 1) / 2);
}
/* In place, in tiles over threads, the same whatever their number; what lies
 * above the diagonal in a panel ends as nonsense.  done[panels]: room to work
 * in.  0, or 1: not positive definite. */
MUST_CHECK int cholesky(float *a, uint64_t panels, _Atomic uint32_t *done);

#endif
