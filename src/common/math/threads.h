/* threads.h - a fixed pool and one loop over it. */
#ifndef FORGE_THREADS_H
#define FORGE_THREADS_H

#include <pthread.h>

#include "common/base.h"

/* Threads of all loops and of OpenBLAS from here on; 0: as many as
 * the process may run on (its affinity mask).  Call once, before the first
 * loop. */
void threads_set(int64_t n);
int threads_count(void);

/* Call fn(ctx, begin, end) for parts of [0, n), each at least `grain` long
 * (but the last), on the pool and the caller; returns when all are done.
 * Which thread gets which part is not said; results must not depend on it.
 * Nested calls run in the calling thread. */
void threads_for(size_t n, size_t grain,
                 void (*fn)(void *ctx, size_t begin, size_t end), void *ctx);

/* What went wrong in a loop: of all parts that fail, the one with the smallest
 * number, so that the message does not depend on the threads. */
struct threads_error {
    pthread_mutex_t lock;
    uint64_t part;
    int rc; /* 0: nothing */
    struct err err;
};

void threads_error_init(struct threads_error *t);
/* From any thread: `part` failed with e. */
void threads_error_add(struct threads_error *t, uint64_t part,
                       const struct err *e);
/* After the loop: its error to *e, and the code; or 0.  Ends *t. */
MUST_CHECK int threads_error_take(struct threads_error *t, struct err *e);

/* A function that runs beside the caller: reading the next batch while this
 * one is computed.  threads_for() inside it runs in its own thread. */
struct threads_task {
    void (*fn)(void *ctx);
    void *ctx;
    unsigned long thread; /* pthread_t */
    bool running;
};

/* Start fn(ctx); where no thread is to be had it runs here and now. */
void threads_start(struct threads_task *t, void (*fn)(void *ctx), void *ctx);
/* Wait for it; nothing where nothing was started. */
void threads_join(struct threads_task *t);

#endif
