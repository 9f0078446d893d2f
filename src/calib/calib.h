/* calib.h - calibration runs: over one layer, or all. */
#ifndef FORGE_CALIB_H
#define FORGE_CALIB_H

#include "calib/run.h"

/* Run it.  One layer's weights are in memory at a time, or the part of it that
 * leads to the next point; states of all sequences are in a store.
 *
 * With feedback the activations of a point come out only if a linear that
 * reads them has no codes yet; then the codes are waited for, and the linears
 * run with them.  One that gets none runs as it is.
 *
 * With `reference`, a second store goes through the layers without any codes, from
 * the same hidden states; it says how far activations have drifted, or what
 * output is wanted (emit.h).  Only with feedback. */
MUST_CHECK int calib_run(struct calib *c, struct err *e);

#endif
