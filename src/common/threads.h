/* threads.h - a fixed pool and one loop over it. */
#ifndef FORGE_THREADS_H
#define FORGE_THREADS_H

#include "common/base.h"

/* Threads of all loops, of OpenBLAS and of oneDNN from here on; 0: as many as
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
