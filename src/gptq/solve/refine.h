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

/* Sweep over n quantized tiles of one plan until nothing moves, `sweeps` times at
 * most; updates codes, meta, scale and d.  loss[tile][48], each row's loss, is kept
 * up to date: a move that adds m to d_j changes it by 2 m g_j + m² H_jj. */
void refine(struct tile *s, int n, int sweeps, enum dtype scale_dtype,
            double (*loss)[SOLVE_ROWS]);

#endif
