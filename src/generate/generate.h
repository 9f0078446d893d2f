/* generate.h - a model that goes on with a sequence, token by token. */
#ifndef FORGE_GENERATE_H
#define FORGE_GENERATE_H

#include "common/cli/progress.h"
#include "model/model.h"

struct generator;

/* Loads all layers: they stay in memory, those of a 4-bit checkpoint in 4 bits.
 * dtype, errors: as model_open() and model_load_layer().  A step of progress is
 * a layer. */
MUST_CHECK int generator_open(struct generator **g, const char *dir,
                              enum dtype dtype, int progress, struct err *e);
void generator_close(struct generator *g); /* NULL is allowed */
const struct model_config *generator_config(const struct generator *g);

/* A new sequence, of so many tokens at most. */
MUST_CHECK int generator_begin(struct generator *g, int64_t tokens,
                               struct err *e);
/* n more tokens, n > 0; *logits [vocab_size] of what comes behind the last of
 * them, valid until the next call.  E_DATA: a token is not in the vocabulary, or
 * a logit is not finite. */
MUST_CHECK int generator_feed(struct generator *g, const int32_t *ids,
                              int64_t n, const float **logits, struct err *e);

#endif
