/* outputs.h - the outputs of a layer's experts, not weighted yet, in files: one of each
 * share of the experts (moe.h), which that share's run writes and those of all parts of the
 * tokens read.  Behind one another, of the experts in order,
 *
 *     activation  "model.layers.3.mlp.experts.17.out"  [n, H]
 *
 * with ".original" of the reference stream, n rows of the tokens of one part.  The
 * sequence is 1 + part + parts * i in the part's i-th frame of an expert. */
#ifndef FORGE_OUTPUTS_H
#define FORGE_OUTPUTS_H

#include "calib/experts.h"

/* ---- writing ---- */

struct outputs_writer {
    struct stream_writer *w;
    const struct model *m;
    int64_t layer, top_k, parts;
    const int64_t *first; /* [parts + 1]: a part's first token */
    struct outputs_stream {
        struct outputs_writer *of;
        enum companion companion;
        int64_t expert, piece; /* the last one's */
        struct expert_outputs hooks;
    } stream[2]; /* of the model, of the reference */
    void *host;
};

/* Set up hooks for both streams of ex.  The caller has set m, layer, parts and first.
 * Errors of stream_create(). */
MUST_CHECK int outputs_create(struct outputs_writer *o,
                              const struct stream_output *out,
                              struct calib_experts *ex, struct err *e);
MUST_CHECK int outputs_finish(struct outputs_writer *o, struct err *e);

/* ---- reading ---- */

struct outputs_left {
    const char *row;
    int64_t n, expert;
};

struct outputs {
    const struct calib *c;
    const struct model_config *config;
    int64_t layer;
    struct outputs_source {
        const struct outputs *of;
        enum companion companion;
        struct stream_reader **in; /* [calib.outputs.count] */
        struct outputs_left *left; /* the same: of the frame read last */
        struct expert_outputs hooks;
    } source[2];
};

/* Let the passes over the experts of both streams take their outputs from
 * calib.outputs, in the order of shares, instead of computing them; o is zeroed, and in use
 * until outputs_close().  Errors of stream_open(); while they run E_DATA. */
MUST_CHECK int outputs_give(struct outputs *o, const struct run *r,
                            struct calib_experts *ex, struct err *e);
void outputs_close(struct outputs *o); /* zeroed is allowed */

#endif
