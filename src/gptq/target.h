/* target.h - where the codes should lead: not to the original weights, but to
 * those that on the quantized model's inputs come nearest to what the original
 * ones gave on the original inputs.
 *
 *     W* = W + [alpha W E + beta D] (H + lambda I)⁻¹
 *     E = mean of 2 (x - x̂) x̂ᵀ      x̂: the input as it is, x: as it should be
 *     D = mean of 2 (r - r̂) x̂ᵀ      r: the residual stream that the output is
 *                                     added to
 *
 * H = mean of 2 x̂ x̂ᵀ; with E = C - H, C = mean of 2 x x̂ᵀ, the first term is
 * the least-squares answer to x̂ being not x, the second lets the module mend
 * the stream it writes into. */
#ifndef FORGE_TARGET_H
#define FORGE_TARGET_H

#include "gptq/slab.h"

struct target {
    const struct slab_plan *plan;
    float *drift;  /* [padded/8][padded][8]: E in the factor's order; or NULL */
    float *turned; /* panel p: rows 8p..8p+7 of L, [0..8p+7][8] */
};

/* drift: E [cols, cols], or NULL; the plan's factor is used.  E_TEMP;
 * E_DATA: E is not finite. */
MUST_CHECK int target_open(struct target *t, const struct slab_plan *plan,
                           const float *drift, struct err *e);
void target_close(struct target *t); /* a zeroed one is allowed */
/* Move the targets of a loaded slab.  residual: D of its `rows` rows,
 * [rows][cols], or NULL. */
void target_move(const struct target *t, struct slab *s, double alpha,
                 double beta, const float *residual, uint64_t rows);

#endif
