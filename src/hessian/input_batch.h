/* input_batch.h - the activations of a stream, and the Hessians that a GPU makes
 * of them in one call.
 *
 * On a GPU what comes is read ahead (common/io/prefetch.h); the inputs of experts
 * that are there from the first frame to the last are made into Hessians, all of
 * one width together (device/jobs.h).  All others, those that the GPU fails to
 * make, and on the CPU all, go by hessian_set_activation(). */
#ifndef FORGE_INPUT_BATCH_H
#define FORGE_INPUT_BATCH_H

#include "hessian/hessian_set.h"

struct input_batch;

/* Reads r, flushes w (see prefetch.h); set, of p, stays the caller's. */
MUST_CHECK int input_batch_open(struct input_batch **s, struct hessian_set *set,
                                const struct hessian_set_params *p,
                                struct stream_reader *r,
                                struct stream_writer *w, struct err *e);
/* The next frame, as stream_next().  *given: what hessian_set_activation() would
 * do with it has been done. */
MUST_CHECK int input_batch_next(struct input_batch *s, struct frame *f,
                                bool *given, struct err *e);
/* As prefetch_head(). */
const char *input_batch_head(const struct input_batch *s);
void input_batch_close(
    struct input_batch *s); /* NULL is allowed; see prefetch_close() */

#endif
