/* tune.h - tunes codes by the KL divergence of the whole model from the original,
 * KL(p || q) of all positions, over batches of sequences. */
#ifndef FORGE_TUNE_H
#define FORGE_TUNE_H

#include "common/cli/progress.h"
#include "tune/tune_tokens.h"
#include "tune/tuned.h"

struct tune {
    struct model *m; /* the original; on the host in f32 */
    struct tune_tokens *sequences;
    struct tuned *codes; /* begun */
    struct progress *progress;
    const char *dir;      /* of temporary files */
    int64_t steps, batch; /* batch: sequences of a step */
    double rate; /* of Adam at its highest, in steps of the grid; it rises over
                  * TUNE_WARM steps, and falls to 0 by a cosine */
    uint64_t seed;
    struct stream_writer
        *gradients; /* those of the first step; NULL: nowhere */
    double kl[2];   /* out: mean KL of the first and last TUNE_WARM steps */
};
enum { TUNE_WARM = 20 };
/* The rate by default: all weights move about as far in a step, so outputs move in
 * proportion to the number of inputs (Yang and others: Tensor programs V, 2022).  In a
 * mixture two thirds of it: an expert sees few of a step's tokens, so its gradients are
 * noisier.  doc/lab-notes.md, "More tokens, and codes tuned by KL". */
static inline double tune_rate(const struct model_config *c)
{
    return (c->moe.n_experts ? 2.0 / 3 : 1) / (double)c->hidden_size;
}
/* How far all steps move a number behind a code whose gradients agree, about, in steps of
 * the grid.  Below TUNE_REACH times tuned_near() hardly one gets to the next code: at 2.2
 * times 0.05 % of a model's codes moved, at 8.8 enough for all of the gain. */
#define TUNE_REACH 4
double tune_reach(double rate, int64_t steps);

/* Errors of pass.h and kl_head_run(); E_DATA: the KL is not finite. */
MUST_CHECK int tune_run(struct tune *t, struct err *e);

#endif
