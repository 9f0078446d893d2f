/* row.h - rows of weights, as f32. */
#ifndef FORGE_ROW_H
#define FORGE_ROW_H

#include "common/math/dtype.h"

/* E_DATA: "row 3: input 17 is not finite", x[n] being inputs `first` and later. */
MUST_CHECK int row_check(const float *x, uint64_t n, uint64_t row,
                         uint64_t first, struct err *e);
/* x[n] = inputs `first` and later of a row of w[., cols], checked.  E_DATA: t is no
 * float type, too. */
MUST_CHECK int row_load(float *x, const void *w, enum dtype t, uint64_t cols,
                        uint64_t row, uint64_t first, uint64_t n,
                        struct err *e);

#endif
