/* input_batch.h - forge-hessian's input in batches of frames, of which the GPU
 * computes experts' Hessians in one call.
 *
 * A thread prefetches frames (common/io/prefetch.h), without a GPU those of a
 * pipe.  Experts' inputs whose activation frames, first to last, are all in the
 * batch become Hessians on the GPU, all inputs of one width in one call
 * (device/jobs.h).
 * Other inputs, those that fail on the GPU, and without a GPU all, are left to
 * hessian_set_activation(). */
#ifndef FORGE_INPUT_BATCH_H
#define FORGE_INPUT_BATCH_H

#include "hessian/hessian_set.h"

struct input_batch;

/* Reads frames of r; flushes w whenever it waits for input (prefetch.h).  set,
 * which was opened with p, gets the Hessians; r, w and set must outlive it.
 * E_TEMP. */
MUST_CHECK int input_batch_open(struct input_batch **s, struct hessian_set *set,
                                const struct hessian_set_params *p,
                                struct stream_reader *r,
                                struct stream_writer *w, struct err *e);
/* The next frame; returns as stream_next().  *given: the frame's Hessian is in
 * `set` already, hessian_set_activation() must not get it. */
MUST_CHECK int input_batch_next(struct input_batch *s, struct frame *f,
                                bool *given, struct err *e);
/* As prefetch_head(). */
const char *input_batch_head(const struct input_batch *s);
/* NULL is allowed.  As prefetch_close(): at the end, or after an error. */
void input_batch_close(struct input_batch *s);

#endif
