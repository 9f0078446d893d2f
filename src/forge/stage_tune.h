/* stage_tune.h - the steps of a run with --tune, behind the codes of all layers:
 *
 *     text    sequences of the text, those of the calibration first: half of what the
 *             steps take, or as many as there are
 *     own     the others, which the original model writes itself
 *     tune    the codes once more, by the KL divergence of the whole model
 */
#ifndef FORGE_STAGE_TUNE_H
#define FORGE_STAGE_TUNE_H

#include "forge/stage_tools.h"

/* Add the tools of these steps to s->p. */
MUST_CHECK int stage_given(struct stage *s, struct err *e);
MUST_CHECK int stage_own(struct stage *s, struct err *e);
MUST_CHECK int stage_tune(struct stage *s, struct err *e);

#endif
