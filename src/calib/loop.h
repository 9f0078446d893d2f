/* loop.h - a layer whose linears are quantized while it runs. */
#ifndef FORGE_LOOP_H
#define FORGE_LOOP_H

#include "calib/run.h"

/* Run the layer: at each point whose linears have no codes yet, put out the
 * activations and wait for them.  to: POINT_OUT, or where the last layer may
 * stop, POINT_MLP_MID. */
MUST_CHECK int loop_layer(struct run *r, int64_t layer, enum point to,
                          struct err *e);

#endif
