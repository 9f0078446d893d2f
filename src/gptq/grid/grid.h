/* grid.h - choose the scale and zero of every group of weights.
 *
 * A group is `group` consecutive inputs of one output row; the last of a row
 * may be short.  For each candidate grid the cost is
 *
 *     sum over the group of  c_j |w_j - q_j|^norm
 *
 * with q_j the weight rounded at that grid (common/math/quant.h), the scale decoded
 * from its qmeta4 and rounded as it will be stored: the grid that is searched
 * is the grid that is used.  c_j is 1, or importance[j].
 *
 * Candidates, in this order; the first of the cheapest wins (strict <):
 *     symmetric   scale = f * 2 max|w| / 15, zero 8
 *     asymmetric  scale = f * (hi - lo) / 15, lo = min(w, 0), hi = max(w, 0),
 *                 zero = round(-f lo / scale) and its two neighbours
 * for n factors f from GRID_FACTOR_HI down to GRID_FACTOR_LO in equal steps;
 * candidates that round to the same qmeta4 are tried once.  absmax takes
 * f = 1 alone (asymmetric: the nearest zero).  A group of zeros gets scale 1
 * and zero 8.
 *
 * Scalar and vector code give the same bits: no contraction, sums in sixteen
 * fixed lanes, |x|^norm by the same polynomials. */
#ifndef FORGE_GRID_H
#define FORGE_GRID_H

#include "common/base.h"
#include "common/math/dtype.h"

enum { GRID_CANDIDATES_MAX = 1024 };
#define GRID_FACTOR_HI 1.05
#define GRID_FACTOR_LO 0.45

enum grid_search { GRID_ABSMAX, GRID_LP, GRID_HESSIAN };
#define GRID_SEARCH_WORDS "absmax|lp|hessian"

struct grid_params {
    uint64_t rows, cols; /* of W: outputs, inputs */
    uint64_t group;
    bool symmetric;
    enum grid_search search;
    double norm;             /* of the cost, 1..4 */
    int candidates;          /* factors, 1..GRID_CANDIDATES_MAX */
    enum dtype scale_dtype;  /* DT_F16 or DT_BF16 */
    enum dtype dtype;        /* of W: any float */
    const float *importance; /* [cols], >= 0; NULL: all 1 */
};

struct grid_backend {
    const char *name;
    /* meta[rows, ceil(cols/group)] = the qmeta4 of each group of w[rows, cols].
     * E_DATA: "row 3: input 17 is not finite". */
    int (*search)(const struct grid_params *p, const void *w, uint32_t *meta,
                  struct err *e);
};

extern const struct grid_backend grid_cpu;
extern const struct grid_backend grid_gpu; /* of an open device alone */

/* Search by the device of this process (device/device.h). */
MUST_CHECK int grid_search(const struct grid_params *p, const void *w,
                           uint32_t *meta, struct err *e);
/* The largest weight that a group may have: beyond it, whatever else is in the
 * group, no scale of that type reaches. */
double grid_most(bool symmetric, enum dtype scale);
/* Of what it found: E_CONFIG where a group's weights need a larger scale than
 * the checkpoint can store, "row 3: ...". */
MUST_CHECK int grid_reach(const struct grid_params *p, const void *w,
                          const uint32_t *meta, struct err *e);

#endif
