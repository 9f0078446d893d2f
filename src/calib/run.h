/* run.h - what a calibration run is told and what it holds, layer after layer. */
#ifndef FORGE_RUN_H
#define FORGE_RUN_H

#include "calib/publisher.h"
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
    struct quantized *codes; /* run in place of weights */
    /* Files with codes of a layer: "codes-%.fts", % is its number.  Read when
     * the layer comes, if it is there; NULL: none. */
    const char *codes_of;
    struct batch_reader *batches;
    const char *head; /* of the input */
    struct stream_writer *out;
    struct batch_readerback *feedback; /* NULL: the weights are as they are */
    enum calib_output output;
    bool reference;     /* also the reference stream, see below */
    bool skip_experts;  /* a layer without what its experts add */
    bool whole;         /* all layers from the input's on */
    const char *hidden; /* file for the hidden states that leave the layer; of
                           all layers: now and then, to go on from; NULL */
    const char *key;
    const char *dir; /* of temporary files */
    struct progress *progress;
};

/* A run: the states of all sequences, and what has been sent. */
struct run {
    struct calib *c;
    struct store *s;
    struct store *reference; /* states without any codes; NULL: none */
    bool parted;             /* which began otherwise than s */
    struct state state;
    void *tapped;   /* activations of a batch, on the host */
    uint64_t marks; /* sent so far */
    struct publisher publisher;
    double published; /* when; monotonic seconds */
};

/* The clock of run_publish() starts. */
void run_start(struct run *r);
/* Publish the hidden states that enter `layer`, if it is time to; force: in
 * any case, and wait. */
MUST_CHECK int run_publish(struct run *r, int64_t layer, bool force,
                           struct err *e);
/* Send a mark, number r->marks, behind what has this name. */
MUST_CHECK int run_mark(struct run *r, const char *name, struct err *e);
/* E_DATA: states of the batch, which enter `layer`, are not finite. */
MUST_CHECK int run_check(const struct run *r, const struct span *b,
                         int64_t layer, struct err *e);
/* The batch is done with a layer. */
void run_progress(const struct run *r, const struct span *b);
void run_release(struct run *r);

#endif
