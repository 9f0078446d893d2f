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
    const struct store *reference; /* published behind s; NULL: none */
    struct feedback *feedback;     /* NULL: there is nothing to wait for */
    int64_t layer;                 /* the one that the states enter */
    uint64_t mark; /* must have returned before the file appears */
    /* private */
    pthread_t thread;
    double seconds; /* that the last writing took */
    bool running;
    int rc;
    struct err err;
};

/* Start to publish x of s and of the reference, which must not change until
 * publisher_join().  Fields that are not private are filled in.  E_TEMP. */
MUST_CHECK int publisher_start(struct publisher *p, struct err *e);
/* Wait until the file is published; where none was started, do nothing. */
MUST_CHECK int publisher_join(struct publisher *p, struct err *e);

#endif
