/* extremes.h - the largest weight of all that are to be quantized, and whether a
 * scale reaches it: read once, as the hashes are, so that it is known before the
 * work and not at a module in the middle of it. */
#ifndef FORGE_EXTREMES_H
#define FORGE_EXTREMES_H

#include "forge/job.h"

/* j->most is set; where F16 scales do not reach it and the layout may have BF16
 * ones, j->bf16_scales too, which is said.  known: of an earlier run over the same
 * weights, or NULL.  E_CONFIG: no scale reaches it; E_DATA: one is not finite. */
MUST_CHECK int extremes_check(struct job *j, const struct job *known,
                              struct err *e);

#endif
