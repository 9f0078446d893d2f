/* vocab.h - a model's tokenizer as metadata of GGUF. */
#ifndef FORGE_GGUF_VOCAB_H
#define FORGE_GGUF_VOCAB_H

#include "arch/config.h"
#include "gguf/gguf.h"

/* From tokenizer.json, config.json and, where it is there, the chat template of
 * the model in dir.  E_CONFIG: llama.cpp has no such tokenizer, by what it
 * lacks: here byte-level BPE that splits text as GPT-2, Llama 3 or Qwen 2 do;
 * as tokenizer_open(). */
MUST_CHECK int gguf_vocab(struct gguf *g, const struct model_config *c,
                          const char *dir, struct err *e);

#endif
