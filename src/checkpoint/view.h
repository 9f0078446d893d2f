/* view.h - changes the list of stored tensors to the view of checkpoint.h.
 *
 * Fused experts are split (fused.h).  A weight of 8-bit floats appears as bf16
 * and has its scale read with it; scales of weights, activations and caches do
 * not appear; nor do keys and values that no layer of Gemma 3n uses. */
#ifndef FORGE_VIEW_H
#define FORGE_VIEW_H

#include "checkpoint/internal.h"

/* Change c->list and c->aside.  1: changed, call checkpoint_index(); 0:
 * nothing to do.  E_DATA: a scale is missing or does not fit its weight;
 * E_TEMP. */
MUST_CHECK int view_apply(struct checkpoint *c, struct err *e);
/* Read a weight that has a scale into buf, as `want`: DT_BF16 or DT_F32. */
MUST_CHECK int view_read_scaled(struct checkpoint *c, const struct ck_entry *en,
                                enum dtype want, void *buf, struct err *e);
/* *most: the largest |w| of a weight of 8-bit floats that has a scale, fp8_most().  *buf
 * [*cap]: room, as checkpoint_most() has it. */
MUST_CHECK int view_most_scaled(struct checkpoint *c, const struct ck_entry *en,
                                void **buf, size_t *cap, float *most,
                                struct err *e);

#endif
