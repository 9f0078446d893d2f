/* expert_states.h - what the outputs of a layer's routed experts follow from.  A file
 * of states behind all else of the layer (states.h, POINT_OUT) has, of n tokens, behind
 * the states
 *
 *     routing     "model.layers.3.experts"  I32 [n, K]: which
 *                 "model.layers.3.experts"  F32 [n, K]: the factors of their outputs
 *                 "model.layers.3.scores"   F32 [n, K]
 *                 "model.layers.3.mass"     F64 [experts]
 *     activation  "model.layers.3.mlp_in"   [tokens, H], of each sequence
 *
 * (struct routing, model/moe.h), each with ".original" of the reference stream, too,
 * and all routing before all activations. */
#ifndef FORGE_EXPERT_STATES_H
#define FORGE_EXPERT_STATES_H

#include "calib/experts.h"

enum routed {
    ROUTED_EXPERTS,
    ROUTED_WEIGHTS,
    ROUTED_SCORES,
    ROUTED_MASS,
    ROUTED
};
/* *f = a frame of routing, without its payload. */
void expert_states_frame(const struct model_config *c, int64_t layer,
                         enum routed which, bool reference, int64_t tokens,
                         struct frame *f);
/* Its payload in r. */
void *expert_states_payload(const struct routing *r, enum routed which);
/* E_DATA: frame f, whose payload r has, names an expert that the model lacks. */
MUST_CHECK int expert_states_check(const struct model_config *c,
                                   const struct frame *f,
                                   const struct routing *r, enum routed which,
                                   struct err *e);
/* Write both streams'.  Errors of writing, of copying from a device. */
MUST_CHECK int expert_states_write(const struct calib_experts *ex,
                                   struct stream_writer *w, struct err *e);
/* Read them; the activations only where experts are to run (calib.outputs).  E_DATA:
 * they are not there, or expert_states_check(); errors of copying. */
MUST_CHECK int expert_states_read(struct calib_experts *ex,
                                  struct batch_reader *f, struct err *e);

#endif
