/* fisher_descent.h - coordinate descent on the codes of a whole weight matrix,
 * with the Fisher information of its outputs.
 *
 * GPTQ minimizes tr(E H Eᵀ), E = q - target, in which the rows of E are
 * independent.  With F = mean of g gᵀ, g the gradient of the model's loss with
 * respect to the linear's output (forge-gradient), the second-order estimate of
 * the model's loss is
 *
 *     tr(F E H Eᵀ)
 *
 * (K-FAC: Martens, Grosse, arXiv 1503.05671; YAQA: arXiv 2505.22988), which
 * couples the rows.  Coordinate descent: codes are visited in blocks of rows, and each
 * moves to the value that minimizes this loss with all other codes fixed.  Ends
 * when a sweep moves none, or after `sweeps`.  The loss never rises. */
#ifndef FORGE_FISHER_DESCENT_H
#define FORGE_FISHER_DESCENT_H

#include "gptq/solve/solve.h"
#include "gptq/solve/tile.h"

struct fisher_descent {
    uint64_t rows;  /* of W: outputs */
    uint64_t group; /* inputs per grid */
    int bits;       /* of a code: 8, else 4 */
    enum dtype scale_dtype;
    int sweeps; /* at most */
    const struct tile_plan
        *plan;            /* the order of inputs, which of them are dead;
                                     its factor may be on the GPU */
    const float *hessian; /* H: packed lower triangle, inputs as stored */
    const float *fisher;  /* F: packed lower triangle [rows(rows+1)/2] */
    const float *target;  /* [rows, cols], inputs as stored, see target.h */
    const uint32_t *meta; /* qmeta4 [rows, groups]: fixed */
};

/* Move codes[rows, cols / 2] (two U4 a byte; 8 bits: [rows, cols]; in and out).
 * *loss: tr(E H Eᵀ) of the result, without F, as GPTQ's losses are.  Returns the number of moves (a
 * code that moves in two sweeps counts twice), or E_TEMP; E_CONFIG: no
 * OpenBLAS; on errors codes are unchanged. */
MUST_CHECK int64_t fisher_descent(const struct fisher_descent *c,
                                  uint8_t *codes, double *loss, struct err *e);

#endif
