/* stage_parts.h - the steps of a run in parts (pipeline.mk, PARTS > 1):
 *
 *     moments LAYER-POINT PART   runs a part of the tokens up to the stop and
 *                                writes the moments of its inputs
 *     merge LAYER-POINT PIECE    where that is worth it, merges a piece of the
 *                                moments of all parts
 *     share LAYER-POINT SHARE    merges those of all parts, or reads all pieces, and
 *                                solves a share of the modules
 *     layer LAYER                puts the layer's codes together
 *
 * The states of a part stay where they were made, in job.scratch or the work
 * directory; a step that does not find them makes them again, from the last that
 * are in the work directory or from the tokens. */
#ifndef FORGE_STAGE_PARTS_H
#define FORGE_STAGE_PARTS_H

#include "forge/stage_tools.h"

typedef int stage_plan(struct stage *s, struct err *e);
/* How many of these steps there are at s->stop; 0: that is s->stops.n. */
int64_t stage_steps(const struct stage *s, stage_plan *plan);
/* Add the tools of these steps to s->p.  E_TEMP: a file that another step has made
 * is not there, as happens with NFS. */
MUST_CHECK int stage_moments(struct stage *s, struct err *e);
MUST_CHECK int stage_merge(struct stage *s, struct err *e);
MUST_CHECK int stage_share(struct stage *s, struct err *e);
MUST_CHECK int stage_layer(struct stage *s, struct err *e);
/* Of a step that failed with rc: E_TEMP where it lost the states that it was to go on from
 * before it opened them, to a scratch that is gone or to another machine that runs the
 * same step and was believed lost; a new try finds others.  Else rc. */
int stage_moments_lost(const struct stage *s, int rc, struct err *e);
/* After such a step: remove what no later step reads. */
void stage_moments_tidy(struct stage *s);
void stage_layer_tidy(struct stage *s);
/* Remove what steps of all stops have left, on this machine. */
void stage_parts_tidy(struct stage *s);

#endif
