/* eval.h - two checkpoints of one model on the same tokens. */
#ifndef FORGE_EVAL_H
#define FORGE_EVAL_H

#include "common/dtype.h"
#include "common/progress.h"
#include "eval/corpus.h"
#include "eval/score.h"

struct eval_params {
    const char *original, *other; /* checkpoint directories */
    enum dtype dtype; /* DT_F32: everything in f32; DT_BF16: the linears'
                         inputs and weights are rounded to bf16 */
    const char *tmp;  /* directory for the hidden states between layers */
};

struct eval;

/* Open both and see that they are the same model.  E_CONFIG when a size of
 * theirs differs, by name; else what opening a checkpoint says. */
MUST_CHECK int eval_open(struct eval **v, const struct eval_params *p,
                         struct err *e);
int64_t eval_vocab(const struct eval *v);
int64_t eval_layers(const struct eval *v);
/* Run both over the corpus, layer by layer: the hidden states of all sequences
 * are in temporary files, one layer of one model is in memory, and logits
 * exist for one block of positions at a time.  scores: room for c->positions.
 * Steps p once per layer and sequence of each model.  E_DATA also when a
 * logit is not finite, with its place. */
MUST_CHECK int eval_run(struct eval *v, const struct corpus *c,
                        struct score *scores, struct progress *p,
                        struct err *e);
void eval_close(struct eval *v); /* NULL is allowed */

#endif
