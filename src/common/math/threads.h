/* threads.h - the process's thread pool, parallel loops, and background
 * tasks. */
#ifndef FORGE_THREADS_H
#define FORGE_THREADS_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base.h"

/* Number of threads of all loops; 0: the CPUs of the process's affinity mask, but as many
 * as its control group's share of their time can use (cgroup.h) at most.  Call once,
 * before the first loop. */
void threads_set(int64_t n);
/* The number in use, at least 1. */
int threads_count(void);

/* Call fn(ctx, begin, end) for disjoint parts of [0, n), each at least `grain`
 * long (but the last), in the pool's threads and the caller; returns when all
 * are done.  Parts go to any thread in any order: results must not depend on
 * it.  A nested call, or one beside another thread's, runs in the calling thread. */
void threads_for(size_t n, size_t grain,
                 void (*fn)(void *ctx, size_t begin, size_t end), void *ctx);

/* A loop over n whose threads take parts by themselves: each a thread's share of
 * what is left, rounded down, at most `most` and at least 1, so that the last ones
 * are small and all threads finish at about the same time. */
struct threads_shares {
    size_t n, most;
    atomic_size_t next; /* 0: not begun */
};

/* The length of the next part, which is none of the earlier ones, and its *first
 * index; 0: nothing is left.  From any thread. */
size_t threads_take(struct threads_shares *s, size_t *first);
/* The length of the first part, the longest. */
size_t threads_longest(const struct threads_shares *s);

/* memcpy() by all threads, which also share the page faults of new memory. */
void threads_copy(void *to, const void *from, size_t n);

/* The error of a loop: of all parts that failed, the one with the smallest
 * number, so that the message does not depend on scheduling. */
struct threads_error {
    pthread_mutex_t lock;
    uint64_t part;
    int rc; /* 0: nothing */
    struct err err;
};

/* Before the loop: no error yet. */
void threads_error_init(struct threads_error *t);
/* From any thread of the loop: `part` failed with e. */
void threads_error_add(struct threads_error *t, uint64_t part,
                       const struct err *e);
/* After the loop: copy the error to *e and return its code; 0: none.  Ends
 * *t. */
MUST_CHECK int threads_error_take(struct threads_error *t, struct err *e);

/* A function that runs concurrently with the caller, such as reading the next
 * batch.  threads_for() inside it runs in its own thread. */
struct threads_task {
    void (*fn)(void *ctx);
    void *ctx;
    unsigned long thread; /* pthread_t */
    bool running;
};

/* Start fn(ctx).  With one thread, or if none can be created, fn has run when
 * this returns. */
void threads_start(struct threads_task *t, void (*fn)(void *ctx), void *ctx);
/* Wait for the task; does nothing if none was started. */
void threads_join(struct threads_task *t);

#endif
