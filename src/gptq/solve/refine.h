/* refine.h - coordinate descent on codes and scales after GPTQ's pass.  The
 * loss (w - q) H (w - q)ᵀ, with H undamped, never rises.
 *
 * One sweep visits the groups.  In each, with g = (w - q) H:
 *     codes, one input j after another, each to its minimum with all others
 *         fixed:   code_j <- round(code_j + g_j / (H_jj s))
 *     then the group's scale s, by least squares with the codes fixed:
 *         s <- s + (g a) / (a H a),   a = codes - zero
 *         rounded to a qmeta4, and taken only if the loss falls.  The sign of s
 *         and the zero do not change. */
#ifndef FORGE_REFINE_H
#define FORGE_REFINE_H

#include "common/math/dtype.h"
#include "gptq/solve/tile.h"

/* Sweep over a quantized tile until nothing moves, n times at most; updates
 * codes, meta, scale and d.  loss[48], each row's loss, is kept up to date: a
 * move that adds m to d_j changes it by 2 m g_j + m² H_jj.  Returns the number
 * of sweeps made. */
int refine(struct tile *s, int n, enum dtype scale_dtype, double *loss);

#endif
