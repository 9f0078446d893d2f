/* loop.h - a layer whose linears are quantized while it runs. */
#ifndef FORGE_LOOP_H
#define FORGE_LOOP_H

#include "calib/calib.h"
#include "calib/publisher.h"

struct routed;

struct loop {
    struct calib *c;
    struct store *s;
    struct store *original; /* NULL, or the states without any codes */
    bool parted;            /* which began otherwise than s */
    struct state state;
    uint64_t marks; /* sent so far */
    struct publisher publisher;
    double published;      /* when; monotonic seconds */
    struct routed *routed; /* of the layer at hand */
};

/* The clock of loop_publish() starts. */
void loop_start(struct loop *l);
/* Run the layer: at each point whose linears have no codes yet, put out the
 * activations and wait for them.  to: POINT_OUT, or where the last layer may
 * stop, POINT_MLP_MID. */
MUST_CHECK int loop_layer(struct loop *l, int64_t layer, enum point to,
                          struct err *e);
/* Publish the hidden states that enter `layer`, if it is time to; force: in
 * any case, and wait. */
MUST_CHECK int loop_publish(struct loop *l, int64_t layer, bool force,
                            struct err *e);
/* Send a mark, number l->marks, behind what has this name. */
MUST_CHECK int loop_mark(struct loop *l, const char *name, struct err *e);
/* E_DATA: states of the batch, which enter `layer`, are not finite. */
MUST_CHECK int loop_check(const struct loop *l, const struct span *b,
                          int64_t layer, struct err *e);
/* The batch is done with a layer. */
void loop_progress(const struct loop *l, const struct span *b);
void loop_release(struct loop *l);

#endif
