/* loop.h - runs a layer with feedback: its linears are quantized while it runs,
 * each on the activations of the model quantized so far. */
#ifndef FORGE_LOOP_H
#define FORGE_LOOP_H

#include "calib/run.h"

/* Run the layer on all batches of r->s, and of r->reference if it is not NULL.
 * At each point whose linears have no codes yet, write the activations and wait
 * for the codes; with calib.until, write those of that point, and stop there.  to: POINT_OUT; or POINT_MLP_MID, where the last layer may
 * stop.  Errors as calib_run(). */
MUST_CHECK int loop_layer(struct run *r, int64_t layer, enum point to,
                          struct err *e);

#endif
