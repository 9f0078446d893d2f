/* read_ahead.h - items of a sequence, such as the weights of experts, are read by
 * threads while an earlier one is in use. */
#ifndef FORGE_READ_AHEAD_H
#define FORGE_READ_AHEAD_H

#include "arch/device_bytes.h"
#include "common/math/threads.h"
#include "model/model.h"

struct read_ahead;
struct reader {
    struct read_ahead *of;
    int64_t turn;
    void *item;
    int rc;
    struct err err;
    struct threads_task task;
};

/* Set by the caller up to `size`. */
struct read_ahead {
    /* Read item number `turn` into *item, which is zeroed: from any thread, several
     * items at a time.  Errors of reading. */
    int (*read)(void *ctx, int64_t turn, void *item, struct err *e);
    void (*release)(void *item); /* and zero it; also after an error */
    void *ctx;
    int64_t turns; /* items 0..turns-1 */
    void *item;    /* [READERS], zeroed */
    size_t size;   /* of an item */
    int n;
    bool here; /* by readers_next() */
    struct reader r[READERS];
};

/* Begin to read.  So many items are in memory: a reader for each two threads, four at
 * most beside the CPU's layers, which want the threads themselves, and READERS beside a
 * device's; one where weights that are tuned are in its memory already. */
void readers_start(struct read_ahead *a, const struct model *m);
/* *item: number `turn`, the one behind that of the last call, which has been read.
 * Errors of reading. */
MUST_CHECK int readers_next(struct read_ahead *a, int64_t turn, void *item,
                            struct err *e);
/* Item `turn` is not needed any more: release it, and read another one. */
void readers_go_on(struct read_ahead *a, int64_t turn);
/* Release all.  Zeroed is allowed. */
void readers_end(struct read_ahead *a);

#endif
