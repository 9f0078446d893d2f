/* join.h - inserts weights into a stream behind their Hessians (forge-weights
 * --join). */
#ifndef FORGE_JOIN_H
#define FORGE_JOIN_H

#include "checkpoint/ahead.h"
#include "common/cli/progress.h"

/* Pass on every frame of `in`; behind each `hessian` write the weights of the
 * modules that it names and `choice` includes, lent where l is not NULL and the
 * readers can map them.  E_DATA: it names a module that
 * is not a linear of the model; else as stream_next() and
 * weights_write_module(). */
MUST_CHECK int join_weights(struct weights_plan *p,
                            const struct weights_choice *choice,
                            struct ledger *l, struct stream_reader *in,
                            struct stream_writer *out,
                            struct progress *progress, struct err *e);

#endif
