/* run.h - what a calibration run is told and what it holds, layer after layer. */
#ifndef FORGE_RUN_H
#define FORGE_RUN_H

#include "calib/publisher.h"
#include "common/cli/progress.h"

/* The frames that a calibration puts out. */
enum calib_output {
    CALIB_ACTIVATIONS,
    CALIB_EMBED,  /* embedded tokens */
    CALIB_HIDDEN, /* the hidden states that leave the layer */
    CALIB_HITMAP  /* the routers' choices alone */
};

struct calib {
    struct model *m;
    struct quantized *codes; /* run in place of weights */
    /* Files with codes of a layer, "codes-%.fts", % its number: read when the
     * layer begins, where the file exists; NULL: no files. */
    const char *codes_of;
    struct batch_reader *batches;
    const char *head; /* of the input */
    struct stream_writer *out;
    struct feedback *feedback; /* NULL: the weights are as they are */
    enum calib_output output;
    bool reference;     /* run the reference stream, too: calib.h */
    bool skip_experts;  /* a layer ends without its experts' outputs */
    bool whole;         /* all layers from the input's on */
    const char *hidden; /* file for the hidden states that leave the layer; with
                           `whole`, now and then, to resume from; NULL: none */
    const char *key;
    const char *dir; /* of temporary files */
    struct progress *progress;
};

/* A run: the states of all sequences, and what has been sent. */
struct run {
    struct calib *c;
    struct store *s;
    struct store *reference; /* states without any codes; NULL: none */
    bool parted;             /* the reference began with states of its own */
    struct state state;
    void *tapped;   /* activations of a batch, on the host */
    uint64_t marks; /* sent so far */
    struct publisher publisher;
    double published; /* time of the last publishing, of seconds_now() */
};

/* The time from which run_publish() counts. */
void run_start(struct run *r);
/* Publish the hidden states that enter `layer`, if the last publishing is long
 * enough ago; force: in any case, and wait for the file. */
MUST_CHECK int run_publish(struct run *r, int64_t layer, bool force,
                           struct err *e);
/* Send a mark behind the frames of this name; its number is r->marks. */
MUST_CHECK int run_mark(struct run *r, const char *name, struct err *e);
/* E_DATA: states of batch b, which enter `layer`, are not finite. */
MUST_CHECK int run_check(const struct run *r, const struct span *b,
                         int64_t layer, struct err *e);
/* Count batch b of a layer as done. */
void run_progress(const struct run *r, const struct span *b);
void run_release(struct run *r);

#endif
