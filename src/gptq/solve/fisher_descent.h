/* fisher_descent.h - codes of all rows of a weight together.
 *
 * Rows are independent of each other only as long as errors of all outputs
 * count alike.  With F, the second moment of the gradients of what the linear
 * puts out (its Fisher information), the loss is to second order
 *
 *     tr(F E H Eᵀ),   E = codes' values - target
 *
 * (K-FAC: Martens, Grosse, arXiv 1503.05671; YAQA: arXiv 2505.22988).  Codes
 * are moved one at a time, each to where that is least with all others held,
 * row after row, until nothing moves or `sweeps` are done: it never rises. */
#ifndef FORGE_FISHER_DESCENT_H
#define FORGE_FISHER_DESCENT_H

#include "gptq/solve/solve.h"
#include "gptq/solve/tile.h"

struct fisher_descent {
    uint64_t rows;
    uint64_t group;
    enum dtype scale_dtype;
    int sweeps;
    const struct tile_plan *plan; /* the order; its factor may be on a GPU */
    const float *hessian; /* H: packed lower triangle, inputs as stored */
    const float *fisher;  /* F: packed lower triangle [rows(rows+1)/2] */
    const float *target;  /* [rows, cols], inputs as stored */
    const uint32_t *meta; /* [rows, groups] */
};

/* Move codes[rows, cols / 2].  *loss: the sum over rows of e H eᵀ that they
 * have then.  Returns how many moved, or E_TEMP, E_CONFIG (no OpenBLAS). */
MUST_CHECK int64_t fisher_descent(const struct fisher_descent *c,
                                  uint8_t *codes, double *loss, struct err *e);

#endif
