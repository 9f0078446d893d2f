/* target.h - the target W* that the codes approximate: not the original weights
 * W, but the weights that on the quantized model's inputs give, in the
 * least-squares sense, the reference model's outputs (asymmetric calibration,
 * GPTAQ:
 * arXiv 2504.02692).
 *
 * x: the module's input in the reference model (the original weights); x̂: its
 * input in the model quantized so far; H = mean of 2 x̂ x̂ᵀ.  One of:
 *
 *     W* = W + alpha W E (H + lambda I)⁻¹         E = mean of 2 (x - x̂) x̂ᵀ
 *     W* = W + beta (G - W H) (H + lambda I)⁻¹    G = mean of 2 (y - r̂) x̂ᵀ
 *     W* = W + beta F (H + lambda I)⁻¹            F = mean of 2 (y - r̂ - W x̂) x̂ᵀ
 *
 * E (frame NAME.drift): with alpha = 1 and lambda = 0 the W* that minimizes the
 * mean of |W x - W* x̂|².
 * G (NAME.output): for a module that writes into the residual stream.  y: the
 * reference model's residual stream behind the module; r̂: the quantized
 * model's stream that the module's output is added to.  So y - r̂ is the output
 * that would bring the stream back to the reference.  With y = r + W x, G - W H
 * is
 * W E + mean of 2 (r - r̂) x̂ᵀ.  G is [outputs, cols], smaller than E for a
 * module with few outputs.
 * F (NAME.gap): the same as G - W H, for an expert whose H is blended with
 * another (hessian/blend.h): there W H would not be of the same tokens as G.
 * F's mean counts the blended tokens too, so that an expert of few tokens is
 * moved less.
 *
 * With G the product W H is not computed, since
 * W H (H + lambda I)⁻¹ = W - lambda W (H + lambda I)⁻¹. */
#ifndef FORGE_TARGET_H
#define FORGE_TARGET_H

#include "gptq/solve/tile.h"

struct target {
    const struct tile_plan *plan; /* NULL: not open */
    float *drift; /* E in the factor's order, [padded/8][padded][8]; or NULL */
    float *transposed; /* Lᵀ in panels: panel p is rows 8p..8p+7 of L, laid out
                          [column 0..8p+7][8] */
};

/* drift: E [cols, cols], inputs as stored, copied; NULL: there is only G or F.
 * Uses the plan's factor, which must stay; with a factor of the GPU E is copied
 * there.  E_TEMP; E_DATA: E is not finite; E_DEVICE. */
MUST_CHECK int target_open(struct target *t, const struct tile_plan *plan,
                           const float *drift, struct err *e);
void target_close(struct target *t); /* a zeroed one is allowed */
/* How to move a tile's targets.  output: G (gap: F) of the tile's `rows` rows,
 * [rows][cols], inputs as stored; NULL: use E. */
struct target_way {
    double alpha, beta;
    const float *output;
    bool gap;
    uint64_t rows;
};
/* Replace the targets W of a tile, loaded and not yet quantized, by W*. */
void target_move(const struct target *t, struct tile *s,
                 const struct target_way *way);

#endif
