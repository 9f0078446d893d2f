/* emit.h - writes the states of a store as frames. */
#ifndef FORGE_EMIT_H
#define FORGE_EMIT_H

#include <pthread.h>

#include "arch/tensor_name.h"
#include "calib/store.h"

/* Write a `hidden` frame [tokens, hidden size] per sequence of batch b: the
 * states that enter `layer`.  companion: COMPANION_ORIGINAL for the reference
 * stream, else COMPANION_NONE.  room: as store_host_x(). */
MUST_CHECK int emit_hidden(struct stream_writer *w, const struct store *s,
                           const struct span *b, int64_t layer,
                           enum companion companion, struct buffer *room,
                           struct err *e);
/* States at a point of a layer, as batch.h names them. */
struct emit_place {
    int64_t layer;
    enum point at;
    enum companion companion;
};
/* Write them: ROLE_HIDDEN the residual stream, by way of `room` (store_host_x()),
 * ROLE_ACTIVATION the activation that the host has. */
MUST_CHECK int emit_state(struct stream_writer *w, const struct store *s,
                          const struct span *b, const struct emit_place *p,
                          enum role role, struct buffer *room, struct err *e);
void emit_state_name(const struct emit_place *p, char name[FRAME_NAME_MAX + 1]);
/* Write an `activation` frame per sequence of batch b: rows[b->rows,
 * point_width()] of point `at` of the layer. */
MUST_CHECK int emit_activation(struct stream_writer *w, const struct store *s,
                               const struct span *b, int64_t layer,
                               enum point at, const void *rows, struct err *e);
/* Write the companion of an activation frame f: [f->dims[0], width] in f's dtype.
 * f->data, or f->loan, is the companion's. */
MUST_CHECK int emit_companion(struct stream_writer *w, const struct frame *f,
                              enum companion companion, uint64_t width,
                              struct err *e);
/* name = "model.layers.LAYER.POINT"; for POINT_IN (hidden states)
 * "model.layers.LAYER". */
void emit_name(int64_t layer, enum point at, char name[FRAME_NAME_MAX + 1]);
/* to = the paths of the linears that read this input, those of routed expert
 * `expert` (-1: of none), separated by newlines. */
enum { EMIT_MODULES = 16 * MODULE_PATH_MAX };
void emit_modules(const struct model_config *c, int64_t layer,
                  enum input_class input, int64_t expert,
                  char to[EMIT_MODULES]);

/* A thread that writes the activations of all batches of a point, in order,
 * each as soon as emission_ready() has named the batch, so that a full pipe
 * does not stop the computation.  Rows of a store do not change until their
 * mark has come back (sync.h), so frames may lend them to the pipe,
 * and another process may read them on the device.
 *
 * With a reference stream, an activation frame NAME comes behind a companion.
 * a, h: the activation at this point and the residual stream; a_ref, h_ref:
 * those of the reference stream.
 *
 *     NAME.output = h_ref behind the linear - h in front of the linear - bias
 *                   if the linear that reads NAME writes into the residual stream
 *                   (point_adds()): the output that this linear should have
 *     NAME.drift  = a_ref - a
 *                   otherwise
 *
 * If no linear reads NAME there is no companion.  Companions are computed into
 * the reference stream's store. */
struct emission {
    struct stream_writer *w;
    const struct store *s;
    const struct store *reference; /* NULL: there is no reference stream */
    int64_t layer;
    enum point at;
    const float *bias; /* of the linear that reads `at`; NULL: none */
    bool goes_on;      /* no mark will be waited for: frames lend nothing */
    /* private */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    int64_t ready;
    bool stop;
    int rc;
    struct err err;
};

/* Start the thread.  The caller has set all fields that are not private.
 * E_TEMP. */
MUST_CHECK int emission_start(struct emission *t, struct err *e);
/* Where activations are lent: wait until batch i, the next one, has a place (lending.h),
 * and take it.  Returns the thread's error if its writing has failed. */
MUST_CHECK int emission_place(struct emission *t, int64_t i, struct err *e);
/* The reference stream's activation that a companion is made of is to be in its place
 * (lending.h) by emission_ready(). */
bool emission_drifts(const struct emission *t);
/* Batch i can be written: its activation rows are on the host, or in their place;
 * `here` is its state, from which the companion is computed.  Returns the
 * thread's error if its writing has failed. */
MUST_CHECK int emission_ready(struct emission *t, int64_t i,
                              const struct state *here, struct err *e);
/* Wait until all batches are written, and end the thread; stop: end it after
 * the batch that it is writing.  Returns the thread's error. */
MUST_CHECK int emission_finish(struct emission *t, bool stop, struct err *e);

#endif
