/* grid_cost.h - the cost of a group of weights at one grid: the inner loop of
 * every search, compiled for each instruction set with the same results. */
#ifndef FORGE_GRID_COST_H
#define FORGE_GRID_COST_H

#include <stdbool.h>
#include <stddef.h>

enum { GRID_LANES = 16, GRID_BATCH = 16 };

/* Grids that are tried together. */
struct grid_batch {
    int n;
    float scale[GRID_BATCH];
    float lo[GRID_BATCH], hi[GRID_BATCH]; /* codes, zero already taken off */
};

/* cost[b->n] = sum of c_j |x_j - code_j|^norm over n weights (a multiple of
 * GRID_LANES), x = w / scale, codes clamped to lo..hi.  In units of the step:
 * multiply by scale^norm.  c NULL: all 1. */
typedef void grid_cost_fn(const float *w, const float *c, size_t n,
                          const struct grid_batch *b, float norm, double *cost);

/* The fastest of the level in use. */
grid_cost_fn *grid_cost_best(void);
/* A faster one that gives the same bits for weights that grid_range() calls
 * tame. */
grid_cost_fn *grid_cost_tame(void);

/* Of n weights (a multiple of GRID_LANES): the least and the greatest, or 0. */
struct grid_range {
    float lo, hi;
    bool tame; /* each is 0 or of a magnitude between 2^-60 and 2^60: no NaN */
};
struct grid_range grid_range(const float *w, size_t n);
/* sum of c_j (w_j - r_j)^2, r_j the nearest to w_j in lo..hi: what rounding to
 * any grid between the two costs at least, to a relative 1e-5. */
double grid_outside(const float *w, const float *c, size_t n, float lo,
                    float hi);

#endif
