/* gradient.h - what the residual stream's gradients are, layer by layer: the
 * original model forward over all tokens, and back (model/backward.h). */
#ifndef FORGE_GRADIENT_H
#define FORGE_GRADIENT_H

#include "calib/feed.h"
#include "common/progress.h"
#include "common/stream.h"

struct gradient {
    struct model *m;
    struct feed *feed;
    struct stream_writer *out;
    struct progress *progress;
    const char *dir; /* of temporary files */
    int64_t tokens;  /* whole batches until there are so many; 0: all */
};

/* Write, from the last layer to the first, an activation frame a sequence for
 * each place where linears add to the stream:
 * "model.layers.3.mlp_mid.gradient" of down's, all experts' alike,
 * ".attn_out.gradient" of o's, [tokens, hidden_size] elements, naming the
 * linears.  Errors as of model/backward.h and what reads and writes. */
MUST_CHECK int gradient_run(struct gradient *g, struct err *e);

#endif
