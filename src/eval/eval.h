/* eval.h - two checkpoints of one model on the same tokens. */
#ifndef FORGE_EVAL_H
#define FORGE_EVAL_H

#include "common/cli/progress.h"
#include "common/math/dtype.h"
#include "eval/corpus.h"
#include "eval/score.h"
#include "model/remap.h"

struct eval_params {
    const char *original, *other; /* checkpoint directories */
    enum dtype dtype; /* DT_F32: everything in f32; DT_BF16: the linears'
                         inputs and weights are rounded to bf16 */
    const char *tmp;  /* directory for the hidden states between layers */
    bool by_layer;    /* also every model in between: layers 0..i the other's,
                         the rest the original's, for each layer i */
};

struct eval;

/* Open both and see that they are the same model.  E_CONFIG when a size of
 * theirs differs, by name; else what opening a checkpoint says. */
MUST_CHECK int eval_open(struct eval **v, const struct eval_params *p,
                         struct err *e);
int64_t eval_vocab(const struct eval *v);
int64_t eval_layers(const struct eval *v);
/* How many models are compared with the original: 1, or by layer as many as
 * there are layers, the last of which is the other with the original's final
 * norm and head. */
int64_t eval_variants(const struct eval *v);
/* Layers that are run, over all sequences each: what eval_run takes. */
uint64_t eval_passes(const struct eval *v);
/* Run both over the corpus, layer by layer: the hidden states of all sequences
 * are kept (in temporary files, if they are large), one layer of one model is
 * in memory, and logits exist for one block of positions at a time.  scores:
 * room for c->positions of each variant, one variant after the other.  By
 * layer, layers + 1 times the states of the original are kept.  Steps p once
 * per layer and sequence of each model.  E_DATA also when a logit is not
 * finite, with its place. */
MUST_CHECK int eval_run(struct eval *v, const struct corpus *c,
                        struct score *scores, struct progress *p,
                        struct err *e);
/* What became of the other model's choices of pruned experts, in all layers
 * (model_remapped()); NULL: all its experts are there. */
const struct remap_counts *eval_remapped(const struct eval *v);
void eval_close(struct eval *v); /* NULL is allowed */

#endif
