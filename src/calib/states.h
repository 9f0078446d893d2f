/* states.h - the states of all sequences at a point inside a layer, in a file from
 * which another run goes on (batch.h). */
#ifndef FORGE_STATES_H
#define FORGE_STATES_H

#include "calib/experts.h"

/* Where the states of both streams are.  The activation at POINT_ATTN_IN follows
 * from the residual stream, so such states are written as those at POINT_IN.  At
 * POINT_OUT they lack the experts' outputs, and what these follow from is with them
 * (expert_states.h). */
struct places {
    int64_t layer;
    enum point at, reference; /* reference: of the reference stream, if any */
};

/* Write the states of r, which are at p, to calib.hidden (NULL: nothing).  Errors of
 * writing. */
MUST_CHECK int states_write(const struct run *r, const struct places *p,
                            const struct calib_experts *ex, struct err *e);
/* Read the activations that belong to the states at p, which r's stores have, from
 * calib.batches.  E_DATA: they are not there. */
MUST_CHECK int states_read(const struct run *r, const struct places *p,
                           struct calib_experts *ex, struct err *e);

#endif
