/* errors.h - what rounding a linear to nearest costs, on each of several
 * grids.
 *
 * GPTQ's loss tr(E H E^T) is the sum of R_jj^2 e_ij^2, where H + lambda I = R R^T
 * (gptq/solve/factor.h) and e_ij is by how much input j is rounded when its turn
 * comes: what inputs behind it can make good is not in R_jj.  So with Q the nearest
 * values of the grid that forge-grid's search finds, weighted by r_j = R_jj^2
 * (symmetric scales of either sign):
 *
 *     error = sum over i, j of  f_i r_j (W_ij - Q_ij)^2
 *     power = sum over i, j of  f_i H_jj W_ij^2
 *
 * f_i is F_ii, or 1. */
#ifndef FORGE_BITS_ERRORS_H
#define FORGE_BITS_ERRORS_H

#include "arch/gridrules.h"
#include "common/math/dtype.h"

enum { BITS_GRIDS = 16 };

struct bits_grids {
    struct module_grid grid[BITS_GRIDS];
    int n;
};

/* A weight [rows, cols], and the diagonals of its moments. */
struct bits_weight {
    const char *name;
    const void *data;
    enum dtype dtype;
    uint64_t rows, cols;
    const float *inputs;  /* r, [cols] */
    const float *squares; /* diag H, [cols] */
    const float *outputs; /* diag F, [rows]; NULL: not known */
};

/* plain: f = 1; fisher: f = F_ii, 0 without `outputs`.  A grid whose group does not
 * divide the inputs: infinity, but for the first. */
struct bits_errors {
    struct bits_sums {
        double power, error[BITS_GRIDS];
    } plain, fisher;
};

/* E_TEMP; E_DATA: a weight is not finite. */
MUST_CHECK int bits_measure(const struct bits_weight *w,
                            const struct bits_grids *g, struct bits_errors *out,
                            struct err *e);
/* Bits that a linear takes on a grid: codes, a scale of 16 bits for each group, and
 * zeros. */
double bits_taken(struct module_grid g, uint64_t rows, uint64_t cols);

#endif
