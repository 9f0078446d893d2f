/* grid_cost.h - the cost of a group of weights at one grid: the inner loop of
 * every search, compiled for each instruction set with the same results. */
#ifndef FORGE_GRID_COST_H
#define FORGE_GRID_COST_H

#include <stddef.h>

enum { GRID_LANES = 16 };

/* Sum of c_j |x_j - code_j|^norm over n weights (a multiple of GRID_LANES),
 * x = w / scale, codes clamped to lo..hi (zero already taken off).  In units
 * of the step: multiply by scale^norm.  c NULL: all 1. */
typedef double grid_cost_fn(const float *w, const float *c, size_t n,
                            float scale, float lo, float hi, float norm);

/* The fastest that this machine has. */
grid_cost_fn *grid_cost_best(void);
/* All that this machine has, the plain one first; for tests. */
int grid_cost_all(grid_cost_fn *list[3]);

#endif
