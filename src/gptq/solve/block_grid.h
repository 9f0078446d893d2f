/* block_grid.h - the grid (scale, zero) of a group, chosen at the moment when
 * GPTQ reaches the group, not before the solve.
 *
 * The search sees the weights after error feedback from all groups quantized
 * before.  With d = w - q of those inputs (index <) and H + lambda I = R Rᵀ
 * (solve.h):
 *
 *     w'_G = w_G + (d_< R_<G) R_GG⁻¹
 *
 * This w' is the weight matrix that GPTQ's classic form (arXiv 2210.17323,
 * algorithm 1) holds when it comes to the group.  The cost of a candidate grid
 * is the group's term of the damped loss (w - q)(H + lambda I)(w - q)ᵀ when the
 * group is solved on it:  sum over its inputs j of R_jj² (w*_j - q_j)².
 *
 * Candidates; of equal costs the first wins:
 *     symmetric   |scale| = f * 2 max|w'| / top, zero in the middle, for n
 *                 factors f from BLOCK_HI down to BLOCK_LO; each with both signs
 *                 where negative scales are allowed (the positive one first)
 *     asymmetric  scale = (a hi - b lo) / top, zero = round(-b lo / scale), for
 *                 n x n shrinks a, b from 1 down to BLOCK_SHRINK
 * with top = 15, in 8 bits 255. */
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
    int factors;   /* n as above, >= 1; 1 tries f = 1 (a = b = 1) alone */
    enum dtype scale_dtype;
    int bits; /* of a code: 8, else 4 */
};

/* Number of candidates for a group. */
static inline int block_candidates(const struct block_params *p)
{
    return !p->symmetric ? p->factors * p->factors :
           p->negative   ? 2 * p->factors :
                           p->factors;
}
/* Number i (0..p->factors-1) of the factors f, or of the shrinks a, b. */
static inline double block_factor(const struct block_params *p, int i)
{
    double from = p->symmetric ? BLOCK_HI : 1;
    double to = p->symmetric ? BLOCK_LO : BLOCK_SHRINK;

    return p->factors > 1 ? from + (to - from) * i / (p->factors - 1) : 1;
}
/* Candidate number i as a qmeta4 (common/math/quant.h), for a row whose w'_G
 * lies in lo..hi (lo <= 0, hi >= 0). */
uint32_t block_candidate(const struct block_params *p, int i, float lo,
                         float hi);
/* acc of n tiles of one plan = d_< L, the error feedback from the groups in front
 * of g in the plan, which must be done, onto the columns of g. */
void block_push(struct tile *s, int n, const struct tile_group *g);
/* After block_push(): choose the grids of group g for all 48 rows of the tile and
 * quantize its inputs on them: sets meta, scale, zero, codes and d of the group.
 * cost[48] += the group's term of each row's damped loss. */
void block_solve(struct tile *s, const struct tile_group *g,
                 const struct block_params *p, float *cost);
/* Plain GPTQ: quantize group g on the grids set by tile_set_grid().  The rest
 * as block_solve(). */
void block_quantize(struct tile *s, const struct tile_group *g, float *cost);

#endif
