/* several.h - the activations of a stream, several experts at a time on the GPU.
 *
 * What comes is read ahead (common/io/prefetch.h); the inputs of experts that are
 * there from the first frame to the last are made into Hessians in one call.
 * All others, and on the CPU all, go by hessian_set_activation(). */
#ifndef FORGE_SEVERAL_H
#define FORGE_SEVERAL_H

#include "hessian/hessian_set.h"

struct several;

/* Whether there is a GPU, and Hessians are such as it makes. */
bool several_wanted(const struct hessian_set_params *p);
/* Reads r, flushes w (see ahead.h); c stays the caller's. */
MUST_CHECK int several_open(struct several **s, struct hessian_set *c,
                            struct stream_reader *r, struct stream_writer *w,
                            struct err *e);
/* The next frame, as stream_next().  *given: what hessian_set_activation() would do
 * with it has been done. */
MUST_CHECK int several_next(struct several *s, struct frame *f, bool *given,
                            struct err *e);
/* As prefetch_head(). */
const char *several_head(const struct several *s);
void several_close(
    struct several *s); /* NULL is allowed; see prefetch_close() */

#endif
