/* wrapped.h - the language model inside a multimodal checkpoint, and without what is
 * around it.
 *
 * Its tensors are called language_model.model.layers.3... (Gemma 3, Mistral 3)
 * or model.language_model.layers.3... (Qwen3-VL); in a model for embeddings, which was
 * stored without the class that predicts tokens, layers.3... (Qwen3-Embedding).  The
 * view calls them as in a checkpoint of the language model alone, model.layers.3...; the
 * others keep their names. */
#ifndef FORGE_WRAPPED_H
#define FORGE_WRAPPED_H

#include "checkpoint/internal.h"

/* Rename the tensors of c->list.  1: some; 0: none; E_TEMP. */
MUST_CHECK int wrapped_rename(struct checkpoint *c, struct err *e);

#endif
