/* eval.h - runs two checkpoints of one model, the original and another
 * (quantized or pruned), over the same tokens, and compares their predictions
 * (score.h) or their last hidden states (similarity.h). */
#ifndef FORGE_EVAL_H
#define FORGE_EVAL_H

#include "common/cli/progress.h"
#include "common/math/dtype.h"
#include "eval/corpus.h"
#include "eval/score.h"
#include "eval/similarity.h"
#include "model/remap.h"

struct eval_params {
    const char *original, *other; /* checkpoint directories */
    enum dtype dtype; /* DT_F32: everything in f32; DT_BF16: the inputs and
                         weights of linears are rounded to bf16 */
    const char *tmp;  /* directory for temporary files (hidden states) */
    bool by_layer;    /* compare, for each layer i, the model whose layers 0..i
                         are the other's and the rest the original's */
    bool states;      /* compare states also where there are predictions */
};

struct eval;

/* [variant][eval_compared()] each; the other is NULL. */
struct comparison {
    struct score *scores;
    struct similarity *states;
};

/* Open both checkpoints.  E_CONFIG: a size differs between them (the message
 * names it); errors of model_open(). */
MUST_CHECK int eval_open(struct eval **v, const struct eval_params *p,
                         struct err *e);
/* Whether states are compared: as was asked for, or because one of them has no
 * output head. */
bool eval_states(const struct eval *v);
/* Vocabulary size and number of layers of both. */
int64_t eval_vocab(const struct eval *v);
int64_t eval_layers(const struct eval *v);
/* Number of models that are compared with the original: 1; with by_layer the
 * number of layers (the last of these models is the other with the original's
 * final norm and head). */
int64_t eval_variants(const struct eval *v);
/* Number of tokens at which models are compared: c->positions, or, where states
 * are compared, all. */
size_t eval_compared(const struct eval *v, const struct corpus *c);
/* Number of layers that eval_run() runs over all sequences, for progress. */
uint64_t eval_passes(const struct eval *v);
/* Run both over the corpus, layer by layer.  Memory holds the hidden states of
 * all sequences (if large, in temporary files; with by_layer the states of
 * layers + 1 copies of the corpus), one layer of one model, and the logits or
 * normed states of one block of tokens.  out: predictions or states, as
 * eval_states() says.  Steps p once per layer and sequence of each model.
 * E_DATA: a logit or state is not finite (the message names the place); errors
 * of the model. */
MUST_CHECK int eval_run(struct eval *v, const struct corpus *c,
                        const struct comparison *out, struct progress *p,
                        struct err *e);
/* Statistics of how the other model's choices of pruned experts were remapped,
 * over all layers (model_remapped()); NULL: no experts are pruned by a map. */
const struct remap_counts *eval_remapped(const struct eval *v);
void eval_close(struct eval *v); /* NULL is allowed */

#endif
