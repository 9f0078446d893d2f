/* names.h - what llama.cpp calls a model's architecture and its tensors
 * (gguf-py, constants.py and tensor_mapping.py). */
#ifndef FORGE_GGUF_NAMES_H
#define FORGE_GGUF_NAMES_H

#include "arch/config.h"

enum { GGUF_NAME_MAX = 64 };

/* "llama", "qwen3"; E_CONFIG: a family, or a setting of it, that llama.cpp's
 * has not, or has otherwise. */
MUST_CHECK int gguf_architecture(const struct model_config *c,
                                 const char **name, struct err *e);
/* The name of a tensor of the checkpoint; *head: inputs of block_row().  False:
 * there is none. */
bool gguf_name(const struct model_config *c, const char *tensor,
               char name[GGUF_NAME_MAX], uint64_t *head);

#endif
