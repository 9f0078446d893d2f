/* grid_cost.h - the cost of a group of weights on a grid: the inner loop of the
 * search, compiled for each instruction set, with the same bits. */
#ifndef FORGE_GRID_COST_H
#define FORGE_GRID_COST_H

#include <stdbool.h>
#include <stddef.h>

enum { GRID_LANES = 16, GRID_BATCH = 16 };

/* Up to GRID_BATCH grids, whose costs are computed in one pass. */
struct grid_batch {
    int n;
    float scale[GRID_BATCH];
    float lo[GRID_BATCH], hi[GRID_BATCH]; /* 0 - zero, 15 - zero */
};

/* cost[k] = sum over j < n of c_j |x_j - r_j|^norm for each grid k < b->n, with
 * x = w / scale and r = x rounded and clamped to lo..hi.  n is a multiple of
 * GRID_LANES. In units of scale^norm.  c NULL: all 1. */
typedef void grid_cost_fn(const float *w, const float *c, size_t n,
                          const struct grid_batch *b, float norm, double *cost);

/* The fastest variant for the CPU level in use (common/math/cpu.h). */
grid_cost_fn *grid_cost_best(void);
/* A faster variant; the same bits for weights that grid_range() calls tame. */
grid_cost_fn *grid_cost_tame(void);

/* Range of w[n], n a multiple of GRID_LANES: lo = min(w, 0), hi = max(w, 0). */
struct grid_range {
    float lo, hi;
    bool tame; /* each is 0 or of a magnitude between 2^-60 and 2^60: no NaN */
};
struct grid_range grid_range(const float *w, size_t n);
/* A lower bound, to a relative 1e-5, of the squared cost of any grid that lies
 * within lo..hi: sum of c_j (w_j - r_j)^2, r_j = w_j clamped to lo..hi. */
double grid_outside(const float *w, const float *c, size_t n, float lo,
                    float hi);

#endif
