/* generate.h - next-token logits of a sequence that grows, with a KV cache. */
#ifndef FORGE_GENERATE_H
#define FORGE_GENERATE_H

#include "common/cli/progress.h"
#include "model/model.h"

struct generator;
/* Most sequences that grow together on a device, and where their cache is small. */
enum { GENERATE_TOGETHER = 512, GENERATE_MOST = 8 * GENERATE_TOGETHER };

/* Load the model in DIR with all its layers, which stay in memory, those of a
 * 4-bit checkpoint in 4 bits, on the device that device_open() opened, if it has
 * the memory.  dtype: of the computation, as model_open().
 * tmp: a directory for temporary files, kept as a pointer.  progress: an enum
 * progress_mode; a unit is a layer.  Errors as model_open() and model_load_layer(). */
MUST_CHECK int generator_open(struct generator **g, const char *dir,
                              const char *tmp, enum dtype dtype, int progress,
                              struct err *e);
void generator_close(struct generator *g); /* NULL is allowed */
/* The model's configuration, valid until generator_close(). */
const struct model_config *generator_config(const struct generator *g);

/* Start a new sequence of at most `tokens` tokens, prompt included.  E_TEMP. */
MUST_CHECK int generator_begin(struct generator *g, int64_t tokens,
                               struct err *e);
/* Append n > 0 tokens to the sequence; *logits [vocab_size] f32: of the token
 * behind the last one, valid until the next call.  E_DATA: an id outside the
 * vocabulary, or a logit that is not finite; E_BUG: more tokens than
 * generator_begin() was told. */
MUST_CHECK int generator_append(struct generator *g, const int32_t *ids,
                                int64_t n, const float **logits, struct err *e);

/* Whether it runs on a device. */
bool generator_on_device(const struct generator *g);
/* How many sequences of so many tokens a device's memory is given to at a time. */
int64_t generator_together(const struct generator *g, int64_t tokens);
/* Start several sequences, at most GENERATE_MOST, of at most `tokens` tokens each.
 * Errors of kv_cache_create(). */
MUST_CHECK int generator_begin_several(struct generator *g, int64_t sequences,
                                       int64_t tokens, struct err *e);
/* On the host: append a token to each, ids[sequences]; *logits [sequences, vocab_size].
 * Errors of generator_append(). */
MUST_CHECK int generator_append_each(struct generator *g, const int32_t *ids,
                                     const float **logits, struct err *e);
/* On a device: the same, and draw a token of each, in place of ids, as head_draw(). */
MUST_CHECK int generator_draw_each(struct generator *g, int32_t *ids,
                                   const double *uniform, const int32_t *banned,
                                   int64_t bans, struct err *e);

#endif
