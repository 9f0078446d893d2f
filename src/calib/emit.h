/* emit.h - frames of the states in a store. */
#ifndef FORGE_EMIT_H
#define FORGE_EMIT_H

#include <pthread.h>

#include "arch/tensor_name.h"
#include "calib/store.h"

/* One `hidden` frame per sequence of a batch, named after `layer`, or
 * its companion. */
MUST_CHECK int emit_hidden(struct stream_writer *w, const struct store *s,
                           const struct span *b, int64_t layer,
                           enum companion companion, struct err *e);
/* One `activation` frame per sequence: rows of what point `at` of the layer
 * holds. */
MUST_CHECK int emit_activation(struct stream_writer *w, const struct store *s,
                               const struct span *b, int64_t layer,
                               enum point at, const void *rows, struct err *e);
/* A frame like f, named of its companion, of `width` numbers a row; lent if f is. */
MUST_CHECK int emit_companion(struct stream_writer *w, const struct frame *f,
                              enum companion companion, uint64_t width,
                              const void *rows, struct err *e);
/* The name that such frames have. */
void emit_name(int64_t layer, enum point at, char name[FRAME_NAME_MAX + 1]);

/* A thread that writes the activations of all batches, each as soon as it is
 * said to be ready: pipes never hold up the computing.  The store's rows do not
 * change until their mark is back (sync.h), so that a pipe may refer to them.
 *
 * Of two streams, each frame comes behind a difference between them.  Where the
 * linear at this point writes into the residual stream (point_adds()):
 * NAME.output, what it should put out, which is the original's residual stream
 * behind it, where the original is already, less s's in front of it and less
 * `bias`.  Elsewhere NAME.drift, what the original's activation has more.
 * Neither where no linear reads the activation.  They lie in the original's
 * store. */
struct emission {
    struct stream_writer *w;
    const struct store *s,
        *reference; /* reference: of the reference stream, or NULL */
    int64_t layer;
    enum point at;
    const float *bias; /* NULL: none */
    /* private */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    int64_t ready;
    bool stop;
    int rc;
    struct err err;
};

/* What is not private is filled in.  E_TEMP. */
MUST_CHECK int emission_start(struct emission *t, struct err *e);
/* Batch i is ready, the one behind the last: its state, and its rows taken to the
 * host.  Fails where the writing has failed. */
MUST_CHECK int emission_ready(struct emission *t, int64_t i,
                              const struct state *here, struct err *e);
/* Wait until all are written; stop: or only until the frame at hand is. */
MUST_CHECK int emission_finish(struct emission *t, bool stop, struct err *e);

#endif
