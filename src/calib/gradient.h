/* gradient.h - the gradients of random sums of the model's logits with respect
 * to the outputs of its linears: the original model forward over all tokens,
 * then backward, layer by layer (model/backward.h).  forge-hessian
 * makes F of them (gptq/solve/fisher_descent.h). */
#ifndef FORGE_GRADIENT_H
#define FORGE_GRADIENT_H

#include "calib/batch.h"
#include "common/cli/progress.h"
#include "common/io/stream.h"
#include "device/ledger.h"

struct gradient {
    struct model *m;
    struct batch_reader *batches;
    struct stream_writer *out;
    struct progress *progress;
    const char *dir;                    /* of temporary files */
    const struct device_choice *device; /* opened when the tokens are there */
    struct ledger *ledger; /* where `out` may be lent; NULL: nowhere */
    int64_t tokens; /* use whole batches up to at least so many; 0: all */
    struct stream_writer *weights; /* of all tokens; NULL: not wanted */
};

/* Write to `out`, from the last layer to the first, activation frames [tokens, outputs],
 * one per sequence, which list the linears that they are for:
 * "model.layers.N.mlp_mid.gradient" for down_proj (also of all experts, as if
 * the router's weights were 1), "model.layers.N.attn_out.gradient" for o_proj,
 * and MODULE.gradient for the linears that compute keys and values.
 *
 * Write to `weights` |g|^2 for each token, g the gradient with respect to the
 * output of a linear: see gradient_weights.h.  That takes `tokens` at a time.  E_DATA: the input is no tokens; errors of
 * model/backward.h, of reading and writing. */
MUST_CHECK int gradient_run(struct gradient *g, struct err *e);

#endif
