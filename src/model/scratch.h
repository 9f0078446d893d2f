/* scratch.h - memory that a thread keeps between pieces of work, and memory
 * that grows and is never uninitialised. */
#ifndef FORGE_SCRATCH_H
#define FORGE_SCRATCH_H

#include "common/base.h"

/* n bytes of the calling thread, valid until its next call; 64-aligned. */
MUST_CHECK void *scratch_thread(size_t n, struct err *e);

struct buffer {
    void *p; /* contents are lost when it grows; new memory is zero */
    size_t cap;
};

/* At least rows * cols * size bytes. */
MUST_CHECK int buffer_reserve(struct buffer *b, int64_t rows, int64_t cols,
                              size_t size, const char *what, struct err *e);
void buffer_release(struct buffer *b);

#endif
