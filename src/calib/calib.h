/* calib.h - calibration runs: over one layer, or all. */
#ifndef FORGE_CALIB_H
#define FORGE_CALIB_H

#include "calib/feedback.h"
#include "calib/store.h"
#include "common/cli/progress.h"

/* What comes out. */
enum calib_output {
    CALIB_ACTIVATIONS,
    CALIB_EMBED,  /* what the tokens become */
    CALIB_HIDDEN, /* the hidden states that leave the layer */
    CALIB_HITMAP  /* what the routers chose, and nothing else */
};

struct calib {
    struct model *m;
    struct codes *codes; /* run in place of weights */
    /* Files with codes of a layer: "codes-%.fts", % is its number.  Read when
     * the layer comes, if it is there; NULL: none. */
    const char *codes_of;
    struct feed *feed;
    const char *head; /* of the input */
    struct stream_writer *out;
    struct feedback *feedback; /* NULL: the weights are as they are */
    enum calib_output output;
    bool both;          /* also the original stream, see below */
    bool skip_experts;  /* a layer without what its experts add */
    bool whole;         /* all layers from the feed's on */
    const char *hidden; /* file for the hidden states that leave the layer; of
                           all layers: now and then, to go on from; NULL */
    const char *key;
    const char *dir; /* of temporary files */
    struct progress *progress;
};

/* Run it.  One layer's weights are in memory at a time, or the part of it that
 * leads to the next point; states of all sequences are in a store.
 *
 * With feedback the activations of a point come out only if a linear that
 * reads them has no codes yet; then the codes are waited for, and the linears
 * run with them.  One that gets none runs as it is.
 *
 * With both, a second store goes through the layers without any codes, from
 * the same hidden states; it says how far activations have drifted, or what
 * output is wanted (emit.h).  Only with feedback. */
MUST_CHECK int calib_run(struct calib *c, struct err *e);

#endif
