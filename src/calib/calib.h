/* calib.h - calibration runs: one layer over a stream, or a whole model. */
#ifndef FORGE_CALIB_H
#define FORGE_CALIB_H

#include "calib/feed.h"
#include "common/progress.h"

/* Where the states that come out are taken; the values are the words of
 * --to. */
enum calib_to {
    TO_ALL, /* all four activations, no states */
    TO_EMBED,
    TO_ATTN_IN,
    TO_Q_LAT,
    TO_ATTN_OUT,
    TO_MLP_IN,
    TO_MLP_MID,
    TO_HIDDEN
};

struct calib {
    struct model *m;
    const struct codes *codes;
    struct feed *feed;
    struct stream_writer *out;
    struct stream_writer *hidden; /* TO_ALL: next layer's hidden states, or
                                     NULL */
    enum calib_to to;
    const char *dir; /* of temporary files */
    struct progress *progress;
};

/* Run the layer that the feed is at, from its point to c->to.  E_DATA: the
 * input is at that point already or past it. */
MUST_CHECK int calib_layer(struct calib *c, struct err *e);
/* Run all layers from the one that the feed enters on; activations of each
 * come out, layer by layer.  One layer's weights are in memory at a time, and
 * one batch; all hidden states are in a file. */
MUST_CHECK int calib_model(struct calib *c, struct err *e);

#endif
