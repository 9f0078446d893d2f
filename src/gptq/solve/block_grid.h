/* block_grid.h - the grid of a group chosen when the solver reaches it.
 *
 * Earlier inputs have pushed onto the group's weights by then: the search is
 * on w', what classic GPTQ holds at that point (reference, 2.3),
 *
 *     w'_G = w_G + (d_< R_<G) R_GG⁻¹
 *
 * and the cost of a candidate is what solving the whole group with it costs:
 * sum over its inputs of R_jj² (w*_j - q_j)², exactly what the group adds to
 * the (damped) loss.
 *
 * Candidates, the first of the cheapest wins:
 *     symmetric   |scale| = f * 2 max|w'| / 15, zero 8, for n factors f from
 *                 BLOCK_HI down to BLOCK_LO; each with both signs where
 *                 negative scales are allowed (the positive one first)
 *     asymmetric  scale = (a hi - b lo) / 15, zero = round(-b lo / scale), for
 *                 n x n shrinks a, b from 1 down to BLOCK_SHRINK */
#ifndef FORGE_BLOCK_GRID_H
#define FORGE_BLOCK_GRID_H

#include "common/math/dtype.h"
#include "gptq/solve/tile.h"

#define BLOCK_HI     1.03
#define BLOCK_LO     0.6
#define BLOCK_SHRINK 0.65

struct block_params {
    bool symmetric;
    bool negative; /* symmetric: the scale may be negative */
    int factors;   /* symmetric: n; asymmetric: n of n x n; 1: f = 1 alone */
    enum dtype scale_dtype;
};

/* How many candidates a group has. */
static inline int block_candidates(const struct block_params *p)
{
    return !p->symmetric ? p->factors * p->factors :
           p->negative   ? 2 * p->factors :
                           p->factors;
}
/* Factor, or shrink of an end, number i of p->factors. */
static inline double block_factor(const struct block_params *p, int i)
{
    double from = p->symmetric ? BLOCK_HI : 1;
    double to = p->symmetric ? BLOCK_LO : BLOCK_SHRINK;

    return p->factors > 1 ? from + (to - from) * i / (p->factors - 1) : 1;
}
/* Candidate number i of a row whose updated weights lie in lo..hi (lo <= 0,
 * hi >= 0). */
uint32_t block_candidate(const struct block_params *p, int i, float lo,
                         float hi);
/* Choose the grids of group g of the tile and quantize its inputs: the groups
 * before it are done.  cost[48] += what the choice adds to the damped loss. */
void block_solve(struct tile *s, const struct tile_group *g,
                 const struct block_params *p, float *cost);
/* Quantize group g on the grids that are set, as plain GPTQ does: the groups
 * before it are done.  cost[48] += what it adds to the damped loss. */
void block_quantize(struct tile *s, const struct tile_group *g, float *cost);
/* What block_solve() judges: w'[c1-c0][48] of group g.  For tests too. */
void block_updated(struct tile *s, const struct tile_group *g, float *w);

#endif
