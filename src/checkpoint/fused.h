/* fused.h - experts that a checkpoint stores in one tensor, taken apart.
 *
 *     ....experts.gate_up_proj   [E, 2I, H] (outputs first) or [E, H, 2I],
 *                                the gate's half before the up's
 *     ....experts.down_proj      [E, H, I] or [E, I, H]
 *
 * become ....experts.E.gate_proj.weight, .up_proj.weight [I, H] and
 * .down_proj.weight [H, I], as the other checkpoints of these families have
 * them and as all loaders of 4-bit experts want them; in the families that
 * call them so, ....block_sparse_moe.experts.E.w1, w3 and w2.  Nothing is
 * copied: each is a run of bytes, or strides, in the same file.
 *
 * Which of the two ways it is says the pair: 2I is one's, I the other's
 * dimension, and both at once would need I = 0. */
#ifndef FORGE_FUSED_H
#define FORGE_FUSED_H

#include "checkpoint/internal.h"

/* Replace such tensors of c->list by those of their experts.  1: there were
 * some; 0: none; E_DATA: shapes that fit neither way, or scales of blocks
 * that belong to both gate and up. */
MUST_CHECK int fused_split(struct checkpoint *c, struct err *e);

#endif
