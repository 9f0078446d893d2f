/* grid.h - choose the grid, scale and zero point, of every group of weights
 * before the solve, by a search that minimizes the rounding error.
 *
 * A group is `group` consecutive inputs of one output row; the last one of a
 * row may be short.  The cost of a candidate grid is
 *
 *     sum over the group of  c_j |w_j - q_j|^norm
 *
 * with q_j the weight rounded to nearest on that grid (common/math/quant.h).
 * The scale is decoded from its qmeta4 and rounded to the stored type first, so
 * that the grid searched is the grid used.  c_j is 1, or importance[j]
 * (GRID_HESSIAN: the damped diagonal of H).
 *
 * Candidates, in this order; of equal costs the first wins:
 *     symmetric   scale = f * 2 max|w| / top, zero in the middle
 *     asymmetric  scale = f * (hi - lo) / top, lo = min(w, 0), hi = max(w, 0),
 *                 zero = round(-f lo / scale) and its two neighbours
 * for n factors f from GRID_FACTOR_HI down to GRID_FACTOR_LO in equal steps;
 * candidates that round to the same qmeta4 are tried once.  GRID_ABSMAX takes f
 * = 1 alone (asymmetric: without the neighbouring zeros).  A group of zeros
 * gets scale 1, zero 8.
 *
 * Scalar and SIMD code give the same bits: no contraction to fused
 * multiply-adds, sums in sixteen fixed lanes, |x|^norm by the same
 * polynomials. */
#ifndef FORGE_GRID_H
#define FORGE_GRID_H

#include "common/base.h"
#include "common/math/fp8.h"

enum { GRID_CANDIDATES_MAX = 1024 };
enum { GRID_CANDIDATES_FEW = 24 }; /* where grids only serve for comparison */
#define GRID_FACTOR_HI 1.05
#define GRID_FACTOR_LO 0.45

enum grid_search { GRID_ABSMAX, GRID_LP, GRID_HESSIAN };
#define GRID_SEARCH_WORDS "absmax|lp|hessian"

struct grid_params {
    uint64_t rows, cols; /* of W: outputs, inputs */
    uint64_t group;
    bool symmetric;
    int bits; /* of a code: 8 (on the CPU alone), else 4 */
    enum grid_search search;
    double norm;             /* exponent of the cost, 1..4 */
    int candidates;          /* n, 1..GRID_CANDIDATES_MAX */
    enum dtype scale_dtype;  /* of the stored scales: DT_F16 or DT_BF16 */
    enum dtype dtype;        /* of W: any float type */
    const float *importance; /* c, [cols], >= 0; NULL: all 1 */
    /* W as it is stored: it is what fp8_to_bf16() makes of this, dtype is BF16, and w is
     * NULL.  Of the GPU, grid_search() and grid_reach(); NULL: W is at w. */
    const struct fp8_matrix *fp8;
};

struct grid_backend {
    const char *name;
    /* meta[rows, ceil(cols/group)] = the qmeta4 of each group of w[rows, cols].
     * E_DATA: "row 3: input 17 is not finite"; E_TEMP; of the GPU also
     * E_CONFIG (8 bits, too), E_DEVICE. */
    int (*search)(const struct grid_params *p, const void *w, uint32_t *meta,
                  struct err *e);
};

extern const struct grid_backend grid_cpu;
extern const struct grid_backend grid_gpu; /* only while device_gpu() */

/* search() on the device of this process (device/device.h), on the CPU where
 * the GPU declines. */
MUST_CHECK int grid_search(const struct grid_params *p, const void *w,
                           uint32_t *meta, struct err *e);
/* The largest |w| that a grid of 4 bits can represent: 15 (symmetric: 15/2) times
 * the largest scale of the type `scale`; infinity for BF16. */
double grid_most(bool symmetric, enum dtype scale);
/* Check the grids that grid_search() found.  E_CONFIG: a group needs a larger
 * scale than p->scale_dtype holds, "row 3: ...". */
MUST_CHECK int grid_reach(const struct grid_params *p, const void *w,
                          const uint32_t *meta, struct err *e);

#endif
