/* refine.h - codes and scales made better after the first pass, in the exact
 * norm of H: (w - q) H (w - q)ᵀ never rises.
 *
 * One sweep visits the groups; in each, with g = (w - q) H,
 *     every code moves to where it is best with all others as they are:
 *         code_j <- round(code_j + g_j / (H_jj s)), one input after another;
 *     then the group's scale:  s <- s + (g a) / (a H a), a = codes - zero,
 *         rounded to a qmeta4 and kept only if the loss falls.  Its sign is
 *         kept. */
#ifndef FORGE_REFINE_H
#define FORGE_REFINE_H

#include "common/math/dtype.h"
#include "gptq/solve/tile.h"

/* Sweep over the tile, at most n times, until nothing moves.  loss[48] of each
 * row gets what every move takes off it: with m = what was added to d_j, g_j of
 * the moment, 2 m g_j + m² H_jj.  Returns the number of sweeps made. */
int refine(struct tile *s, int n, enum dtype scale_dtype, double *loss);

#endif
