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
    double rate; /* of Adam at its highest, in steps of the grid, 0: TUNE_RATE /
                  * hidden size; it rises over
                  * TUNE_WARM steps, and falls to 0 by a cosine */
    uint64_t seed;
    struct stream_writer
        *gradients; /* those of the first step; NULL: nowhere */
    double kl[2];   /* out: mean KL of the first and last TUNE_WARM steps */
};
enum { TUNE_WARM = 20 };
/* All weights move about as far in a step, so outputs move in proportion to the number
 * of inputs (Yang and others: Tensor programs V, 2022).  doc/lab-notes.md, "More
 * tokens, and codes tuned by KL". */
#define TUNE_RATE 1.0

/* Errors of pass.h and kl_head_run(); E_DATA: the KL is not finite. */
MUST_CHECK int tune_run(struct tune *t, struct err *e);

#endif
