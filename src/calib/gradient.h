/* gradient.h - what the gradients of linears' outputs are, layer by layer: the
 * original model forward over all tokens, and back (model/backward.h). */
#ifndef FORGE_GRADIENT_H
#define FORGE_GRADIENT_H

#include "calib/batch.h"
#include "common/cli/progress.h"
#include "common/io/stream.h"

struct gradient {
    struct model *m;
    struct batch_reader *batches;
    struct stream_writer *out;
    struct progress *progress;
    const char *dir; /* of temporary files */
    int64_t tokens;  /* whole batches until there are so many; 0: all */
};

/* Write, from the last layer to the first, an activation frame a sequence,
 * [tokens, outputs] elements, naming the linears: "LAYER.mlp_mid.gradient" of
 * down's, all experts' alike, "LAYER.attn_out.gradient" of o's, and of what keys
 * and values are made by, by its own name.  Errors as of model/backward.h and
 * what reads and writes. */
MUST_CHECK int gradient_run(struct gradient *g, struct err *e);

#endif
