/* extremes.h - finds the largest of all weights to be quantized, and whether a
 * scale can represent it: before any work, so that a run does not fail at a
 * module in the middle. */
#ifndef FORGE_EXTREMES_H
#define FORGE_EXTREMES_H

#include "forge/job.h"

/* Set j->most, the largest |w|.  If it is beyond F16 scales (grid_most()) and
 * the layout can have BF16 ones, set j->bf16_scales too, with a remark.  known:
 * the job of an earlier run over the same weights, whose result is used; or
 * NULL.  E_CONFIG: the layout's scales do not reach it; E_DATA: a weight of a linear, or
 * of what stays as it is (embeddings, routers, norms), is not finite; errors of reading. */
MUST_CHECK int extremes_check(struct job *j, const struct job *known,
                              struct err *e);

#endif
