/* publisher.h - writes the hidden states that enter a layer to a file
 * (--hidden), in a thread, while the computation goes on. */
#ifndef FORGE_PUBLISHER_H
#define FORGE_PUBLISHER_H

#include <pthread.h>

#include "calib/feedback.h"
#include "calib/store.h"

struct publisher {
    const char *path, *key;
    const char *head; /* the input's HEAD, for stream_inherit() */
    const struct store *s;
    const struct store *reference; /* written behind s; NULL: none */
    struct feedback *feedback;     /* NULL: do not wait for `mark` */
    int64_t layer;                 /* the one that the states enter */
    uint64_t mark; /* must have come back before the file appears: then the
                      codes of all layers before have been written */
    /* private */
    pthread_t thread;
    double seconds; /* duration of the last writing */
    bool running;
    int rc;
    struct err err;
};

/* Start to write the residual streams of s and reference, which must not change
 * until publisher_join().  The caller has set all fields that are not private.
 * E_TEMP. */
MUST_CHECK int publisher_start(struct publisher *p, struct err *e);
/* Wait until the file is complete and has its name; does nothing if none was
 * started.  Returns the thread's error. */
MUST_CHECK int publisher_join(struct publisher *p, struct err *e);

#endif
