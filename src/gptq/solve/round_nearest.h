/* round_nearest.h - codes without a Hessian. */
#ifndef FORGE_ROUND_NEAREST_H
#define FORGE_ROUND_NEAREST_H

#include "gptq/solve/solve.h"

/* codes[rows, cols / 2] of w[rows, cols] rounded to nearest on the grids
 * meta[rows, ceil(cols/group)], as solve_backend.run without a factor, by all
 * threads.  E_DATA: "row 3: input 17 is not finite"; E_TEMP. */
MUST_CHECK int round_nearest(const struct solve_params *p, const void *w,
                             const uint32_t *meta, uint8_t *codes,
                             struct err *e);

#endif
