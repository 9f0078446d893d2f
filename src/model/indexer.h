/* indexer.h - which keys a query of sparse attention sees (DeepSeek-V3.2-Exp,
 * section 2.1; struct indexer).
 *
 * q(t, h) = RoPE(wq_b q_lat(t)), k(s) = RoPE(LayerNorm(wk x(s))), one key for
 * all heads, and w(t, h) = weights_proj x(t) n_heads^-1/2; RoPE turns the first
 * qk_rope_head_dim dims.  Scores are f32 in every mode. */
#ifndef FORGE_INDEXER_H
#define FORGE_INDEXER_H

#include "model/internal.h"

/* Load the layer's indexer.  Errors as model_load_layer(). */
MUST_CHECK int indexer_load(struct layer *l, struct err *e);
void indexer_release(struct index_weights *w); /* NULL is allowed */
/* Choose the keys of every query of the batch, from the inputs in[rows, H] of
 * attention and q_lat[rows, q_lora]: m->seen [rows, m->seen_words], bit s % 64
 * of word s / 64 for position s; m->seen_words is 0 if every query sees all
 * keys up to its own.  Appends to s->cache. */
MUST_CHECK int indexer_run(struct layer *l, const struct state *s,
                           const void *in, const void *q_lat, struct err *e);

#endif
