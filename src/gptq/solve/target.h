/* target.h - the target W* that the codes approximate: not the original weights
 * W, but those that come closest, by least squares, to the reference model's
 * outputs when they get the quantized model's inputs (asymmetric calibration,
 * as in GPTAQ, arXiv 2504.02692).
 *
 * x: the module's input in the model quantized so far; x_ref: its input in the
 * reference model (the original weights); H = mean of 2 x xᵀ.  One of:
 *
 *     W* = W + alpha W E (H + lambda I)⁻¹        E = mean of 2 (x_ref - x) xᵀ
 *     W* = W + beta (G - W H) (H + lambda I)⁻¹   G = mean of 2 (h_ref - h) xᵀ
 *     W* = W + beta F (H + lambda I)⁻¹           F = mean of 2 (y_ref - W x) xᵀ
 *
 * E (frame NAME.drift): with alpha = 1 and lambda = 0 this W* minimizes the
 * mean of |W x_ref - W* x|².
 *
 * G (NAME.output): for a module that writes into the residual stream.  h_ref:
 * the reference's stream behind the module; h: the quantized model's stream in
 * front of it; so h_ref - h is the output that would bring the stream back to
 * the reference.  G is [outputs, cols], less than E for a module of few
 * outputs.
 *
 * F (NAME.gap): the same for an expert.  y_ref: the output that the expert
 * should have.  Its H may be blended with another (hessian/blend.h), and W H
 * would then not be of the tokens that G is of.  F is scaled by the blend's
 * n / (n + K), so that an expert of few tokens is moved less.
 *
 * A row w* further from its w than |w| / 2 stays w.  Rows move by up to 0.14 |w|
 * (DESIGN.md); only where the outputs of an earlier layer are thousands of times
 * the others' do errors of those outputs ask for more, of rows that cannot mend
 * them.
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

/* Whether a row is too far: moved = |w* - w|², norm = |w|².  NaN is too far. */
#define TARGET_TOO_FAR(moved, norm) (!((moved) <= 0.25f * (norm)))

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
    bool bf16; /* W is bf16 (split.h) */
    uint64_t rows;
};
/* Replace the targets W of n tiles of the target's plan, loaded and not yet
 * quantized, by W*: way[n], all of them with an output or none, and of one `gap` and
 * `bf16`.
 * Returns the number of rows that stay. */
uint64_t target_move(const struct target *t, struct tile *s, int n,
                     const struct target_way *way);

#endif
