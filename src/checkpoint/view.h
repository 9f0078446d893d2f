/* view.h - the tensors of a checkpoint as the rest of the program sees them.
 *
 * Experts that share a tensor come apart (fused.h).  A weight of 8-bit floats
 * shows as bf16; its scale, wherever it is stored, is read with it and shows
 * no more, nor do the scales of activations and caches that belong to the
 * quantization that is taken off. */
#ifndef FORGE_VIEW_H
#define FORGE_VIEW_H

#include "checkpoint/internal.h"

/* Change c->list and c->aside; 1: something changed and the names must be
 * indexed anew, 0: nothing to do.  E_DATA: a scale that is missing or does
 * not fit its weight. */
MUST_CHECK int view_apply(struct checkpoint *c, struct err *e);
/* Read a weight that has a scale as want, DT_BF16 or DT_F32. */
MUST_CHECK int view_read_fp8(struct checkpoint *c, const struct ck_entry *en,
                             enum dtype want, void *buf, struct err *e);

#endif
