/* scratch.h - per-thread work memory, and growing zeroed buffers. */
#ifndef FORGE_SCRATCH_H
#define FORGE_SCRATCH_H

#include "common/base.h"

/* n bytes, 4096-aligned, uninitialised, owned by the calling thread; valid
 * until its next call.  NULL: *e is E_TEMP. */
MUST_CHECK void *scratch_thread(size_t n, struct err *e);
/* The same, another piece of memory: the packed x of a product (product.c). */
MUST_CHECK void *scratch_strips(size_t n, struct err *e);

/* Memory that grows.  Zero-initialise. */
struct buffer {
    void *p; /* contents are lost when it grows; new memory is zero */
    size_t cap;
};

/* Make it at least rows * cols * size bytes.  what: for messages.  E_TEMP. */
MUST_CHECK int buffer_reserve(struct buffer *b, int64_t rows, int64_t cols,
                              size_t size, const char *what, struct err *e);
void buffer_release(struct buffer *b);

#endif
