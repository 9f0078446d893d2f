/* join.h - weights put into a stream where their Hessians are. */
#ifndef FORGE_JOIN_H
#define FORGE_JOIN_H

#include "checkpoint/weights.h"
#include "common/cli/progress.h"

/* Pass every frame of `in`; behind a `hessian` write the weights of the
 * modules that it names.  E_DATA: it names one that is no linear of the
 * model. */
MUST_CHECK int join_weights(struct weights_plan *p,
                            const struct weights_choice *choice,
                            struct stream_reader *in, struct stream_writer *out,
                            struct progress *progress, struct err *e);

#endif
