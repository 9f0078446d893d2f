/* fused.h - splits the experts that a checkpoint stores fused in one tensor.
 *
 *     ....experts.gate_up_proj   [E, 2I, H] (outputs first) or [E, H, 2I]
 *                                (inputs first); gate before up
 *     ....experts.down_proj      [E, H, I] or [E, I, H]
 *
 * become ....experts.E.gate_proj.weight, .up_proj.weight [I, H] and
 * .down_proj.weight [H, I], the names that loaders of 4-bit experts want; in
 * Mixtral's naming ....block_sparse_moe.experts.E.w1, w3 and w2.  No data is
 * copied: each is a range of the same file, possibly strided.
 *
 * gpt-oss: gate and up alternate among the 2I outputs; there are biases,
 *
 *     ....experts.gate_up_proj_bias [E, 2I], ....experts.down_proj_bias [E, H]
 *
 * which become .bias of the same names; and weights may be MXFP4 (mxfp4.h),
 *
 *     ....experts.gate_up_proj_blocks [E, 2I, H/32, 16] and _scales [E, 2I,
 *     H/32], ....experts.down_proj_blocks and _scales.
 *
 * Granite: ....block_sparse_moe.input_linear.weight [E, 2I, H] and output_linear
 * are gate_up_proj and down_proj.
 *
 * The order of dimensions follows from the pair: gate_up_proj has 2I where
 * down_proj has I. */
#ifndef FORGE_FUSED_H
#define FORGE_FUSED_H

#include "checkpoint/internal.h"

/* Replace fused tensors in c->list by those of their experts.  1: there were
 * some; 0: none; E_DATA: shapes that fit neither order, a scale block that
 * covers both gate and up, MXFP4 without its scales; E_TEMP. */
MUST_CHECK int fused_split(struct checkpoint *c, struct err *e);

#endif
