/* emit.h - frames of the states in a store. */
#ifndef FORGE_EMIT_H
#define FORGE_EMIT_H

#include <pthread.h>

#include "arch/tensor_name.h"
#include "calib/store.h"

/* One `hidden` frame per sequence of a batch, of the states that enter `layer`;
 * companion: COMPANION_ORIGINAL of the reference stream, else COMPANION_NONE. */
MUST_CHECK int emit_hidden(struct stream_writer *w, const struct store *s,
                           const struct span *b, int64_t layer,
                           enum companion companion, struct err *e);
/* One `activation` frame per sequence: rows of what point `at` of the layer
 * holds. */
MUST_CHECK int emit_activation(struct stream_writer *w, const struct store *s,
                               const struct span *b, int64_t layer,
                               enum point at, const void *rows, struct err *e);
/* The companion of an activation frame f: as many rows, of `width` numbers each;
 * lent if f is. */
MUST_CHECK int emit_companion(struct stream_writer *w, const struct frame *f,
                              enum companion companion, uint64_t width,
                              const void *rows, struct err *e);
/* "model.layers.LAYER.POINT"; of hidden states, POINT_IN, without a point. */
void emit_name(int64_t layer, enum point at, char name[FRAME_NAME_MAX + 1]);

/* A thread that writes the activations of all batches, each as soon as
 * emission_ready() names the batch: pipes never hold up the computing.  Rows of a
 * store do not change until their mark is back (sync.h), so that a pipe may
 * refer to them.
 *
 * With a reference stream, the frame NAME comes behind a companion (a:
 * activation, x: residual stream, of this stream; a_ref, x_ref: of the reference):
 *
 *     NAME.output = x_ref behind the linear - x in front of it - bias
 *                   where the linear that reads NAME writes into x (point_adds())
 *     NAME.drift  = a_ref - a
 *                   elsewhere
 *
 * and without one where no linear reads NAME.  Companions lie in the reference
 * stream's store. */
struct emission {
    struct stream_writer *w;
    const struct store *s;
    const struct store *reference; /* NULL: there is no reference stream */
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

/* Start the thread; fields that are not private are filled in.  E_TEMP. */
MUST_CHECK int emission_start(struct emission *t, struct err *e);
/* Batch i, the next one, is ready: `here` is its state, and its rows are on the
 * host.  Fails where the thread's writing has failed. */
MUST_CHECK int emission_ready(struct emission *t, int64_t i,
                              const struct state *here, struct err *e);
/* Wait until all batches are written; stop: until the frame at hand is. */
MUST_CHECK int emission_finish(struct emission *t, bool stop, struct err *e);

#endif
