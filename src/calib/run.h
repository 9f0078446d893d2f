/* run.h - parameters of a calibration run, and its state from layer to
 * layer. */
#ifndef FORGE_RUN_H
#define FORGE_RUN_H

#include "calib/expert_loans.h"
#include "calib/publisher.h"
#include "common/cli/opt.h"
#include "common/cli/progress.h"

/* Which frames a run writes. */
enum calib_output {
    CALIB_ACTIVATIONS, /* inputs of linears */
    CALIB_EMBED,       /* embedded tokens, as hidden states of layer 0 */
    CALIB_HIDDEN,      /* the hidden states that leave the layer */
    CALIB_HITMAP       /* statistics of the routers' choices alone */
};

/* A point of a layer at which a run ends; POINT_OUT: behind all but the routed
 * experts; POINT_IN: all points of the layer, without waiting for codes. */
struct calib_stop {
    int64_t layer;
    enum point at;
};

/* Parse "12.mlp_in", "12.experts", "12.all".  E_USAGE: no such point. */
MUST_CHECK int calib_stop_parse(struct calib_stop *to, const char *text,
                                const struct model_config *c, struct err *e);

struct calib {
    struct model *m;
    struct quantized *codes; /* used in place of the weights, where there are */
    /* Files with codes of a layer, "codes-%.fts", % its number: read when the
     * layer begins, where the file exists; NULL: no files. */
    const char *codes_of;
    struct batch_reader *batches;
    const char *head; /* the input's HEAD */
    /* Tokens: run all `parts` parts of `input`, of which batches is the first, one
     * after the other; parts 0, 1: batches alone. */
    const char *input;
    int64_t parts;
    /* Files of experts' outputs (outputs.h) for states that lack them, which are of
     * part `part`; count 0: the experts run. */
    struct opt_list outputs;
    struct batch_part part;
    struct stream_writer *out;
    struct feedback *feedback;      /* NULL: no feedback */
    const struct calib_stop *until; /* NULL: no such end; not with feedback */
    enum calib_output output;
    bool reference;      /* run the reference stream too: calib.h */
    bool skip_experts;   /* leave out the experts' outputs */
    int64_t expert_sums; /* bytes of f32 sums of experts' outputs on a device */
    bool whole;          /* all layers from the input's on; else that layer */
    const char *hidden; /* file for the hidden states that leave the layer; with
                           `whole` written now and then, to resume a run from;
                           with `until` states.h; NULL: none */
    const char *key;    /* written into that file's HEAD */
    const char *dir;    /* for temporary files */
    const struct device_choice *device; /* opened when the states are there */
    struct ledger *ledger; /* lends activations; NULL: none are lent */
    struct progress *progress;
};

struct run {
    struct calib *c;
    struct store *s;         /* states of the model quantized so far */
    struct store *reference; /* states of the original model; NULL: none */
    bool parted;             /* the reference began with states of its own */
    bool silent;             /* write no activations of this layer */
    enum point at, reference_at; /* where the states are in the first layer */
    struct state state;          /* of the batch that runs */
    struct expert_loans loans;   /* of all layers */
    void *tapped;                /* host copy of a batch's activations */
    struct buffer rows;          /* and of its hidden states */
    uint64_t marks;              /* number of marks sent so far */
    struct publisher publisher;
    double published; /* time of the last publishing, of seconds_now() */
    bool told;        /* that there is no room for it */
};

/* Start the clock of run_publish(). */
void run_start(struct run *r);
/* Write the hidden states that enter `layer` to calib.hidden, in the
 * background, if the last time is long enough ago and the disk has room for them and
 * for what the run will write; force: in any case, and wait for the file. */
MUST_CHECK int run_publish(struct run *r, int64_t layer, bool force,
                           struct err *e);
/* Send a mark (sync.h) behind the frames of this name; its number is
 * r->marks. */
MUST_CHECK int run_mark(struct run *r, const char *name, struct err *e);
/* Check the states of batch b, which enter `layer`.  E_DATA: one is not
 * finite. */
MUST_CHECK int run_check(struct run *r, const struct span *b, int64_t layer,
                         struct err *e);
/* Count batch b of a layer as done, for --progress. */
void run_progress(const struct run *r, const struct span *b);
void run_release(struct run *r);

#endif
