/* target.h - where the codes should lead: not to the original weights, but to
 * those that on the quantized model's inputs come nearest to what the original
 * ones gave on the original inputs.
 *
 *     W* = W + M (H + lambda I)⁻¹
 *     M = alpha W E        E = mean of 2 (x - x̂) x̂ᵀ
 *     M = beta (G - W H)   G = mean of 2 (y - r̂) x̂ᵀ
 *     M = beta F           F = mean of 2 (y - r̂ - W x̂) x̂ᵀ
 *
 * x̂ is the input as it is, x as it should be, H = mean of 2 x̂ x̂ᵀ.  With
 * E = C - H, C = mean of 2 x x̂ᵀ, the first M is the least-squares answer to x̂
 * being not x.  The second is for a module that writes into the residual
 * stream: y is the original stream behind it, r̂ the stream that its output is
 * added to, so that y - r̂ is the output that mends the stream.  For y = r + W x
 * it is beta [W E + mean of 2 (r - r̂) x̂ᵀ], for a module of few outputs at a
 * part of the cost.  F says the same where H is not that of the tokens alone but
 * blended with another's: an F of fewer tokens moves less.
 *
 * With G no product with H is wanted: W H (H + lambda I)⁻¹ is
 * W - lambda W (H + lambda I)⁻¹. */
#ifndef FORGE_TARGET_H
#define FORGE_TARGET_H

#include "gptq/solve/tile.h"

struct target {
    const struct tile_plan *plan; /* NULL: not open */
    float *drift; /* [padded/8][padded][8]: E in the factor's order; or NULL */
    float *transposed; /* panel p: rows 8p..8p+7 of L, [0..8p+7][8] */
};

/* drift: E [cols, cols], or NULL; the plan's factor is used, and where that is
 * the GPU's E goes there.  E_TEMP; E_DATA: E is not finite; E_DEVICE. */
MUST_CHECK int target_open(struct target *t, const struct tile_plan *plan,
                           const float *drift, struct err *e);
void target_close(struct target *t); /* a zeroed one is allowed */
/* Where the targets of a tile go.  output: G (gap: F) of its `rows` rows,
 * [rows][cols]; NULL: by the drift. */
struct target_way {
    double alpha, beta;
    const float *output;
    bool gap;
    uint64_t rows;
};
/* Move the targets of a loaded tile. */
void target_move(const struct target *t, struct tile *s,
                 const struct target_way *way);

#endif
