/* publisher.h - hidden states of a layer, published beside the computing. */
#ifndef FORGE_PUBLISHER_H
#define FORGE_PUBLISHER_H

#include <pthread.h>

#include "calib/feedback.h"
#include "calib/store.h"

struct publisher {
    const char *path, *key;
    const char *head; /* of the input, for the history */
    const struct store *s;
    const struct store
        *reference; /* of the reference stream, too; NULL: none */
    struct batch_readerback *feedback; /* NULL: there is nothing to wait for */
    int64_t layer;                     /* the one that the states enter */
    uint64_t mark; /* must have returned before the file appears */
    /* private */
    pthread_t thread;
    double seconds; /* that writing took */
    bool running;
    int rc;
    struct err err;
};

/* Publish x as it is (of both); it must not change until publisher_join().  The fields
 * are filled in.  E_TEMP. */
MUST_CHECK int publisher_start(struct publisher *p, struct err *e);
/* Wait for it; nothing where nothing was started. */
MUST_CHECK int publisher_join(struct publisher *p, struct err *e);

#endif
