/* filed.h - Hessians of a file, put in front of the weights of a stream by the
 * thread that prefetches it (common/io/prefetch.h). */
#ifndef FORGE_FILED_H
#define FORGE_FILED_H

#include "common/io/prefetch.h"

struct filed;

/* path NULL: no file.  Errors as hessian_file_open()'s. */
MUST_CHECK int filed_open(struct filed **t, const char *path, struct err *e);
void filed_close(struct filed *t); /* NULL is allowed */
/* prefetch_params.before, whose arg is the struct filed: puts the weight's Hessian,
 * ancillary, in front of the weight, unless it is the one put last, or the stream
 * has one of its own.  E_DATA, E_IO, E_TEMP. */
int filed_before(void *filed, struct prefetch *a, const struct frame *f,
                 const struct frame *have, int n, struct frame *more,
                 struct err *e);

#endif
