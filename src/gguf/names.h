/* names.h - what llama.cpp calls a model's architecture and its tensors
 * (gguf-py, constants.py and tensor_mapping.py). */
#ifndef FORGE_GGUF_NAMES_H
#define FORGE_GGUF_NAMES_H

#include "arch/config.h"

enum { GGUF_NAME_MAX = 64, GGUF_PLACES = 2 };

/* How a tensor of the checkpoint lies in the file. */
enum gguf_form {
    GGUF_ROWS,  /* as it is, but for the order of rows */
    GGUF_STACK, /* one of the experts in a tensor [experts, rows, cols] */
    /* parts of kv_b_proj [heads (nope + v), rank] */
    GGUF_KEYS,  /* [heads, rank, nope]: each head's first rows, transposed */
    GGUF_VALUES /* [heads, v, rank]: its other rows */
};

struct gguf_place {
    char name[GGUF_NAME_MAX];
    enum gguf_form form;
    uint64_t head;  /* inputs of block_row() */
    int64_t expert; /* of GGUF_STACK */
    bool f32;       /* what it decides is worth 32 bits, or it is a vector */
};

/* "llama", "qwen3moe"; E_CONFIG: a family, or a setting of it, that llama.cpp's
 * has not, or has otherwise. */
MUST_CHECK int gguf_architecture(const struct model_config *c,
                                 const char **name, struct err *e);
/* Where a tensor of the checkpoint goes: the number of places; 0: llama.cpp has
 * none. */
int gguf_places(const struct model_config *c, const char *tensor,
                struct gguf_place place[GGUF_PLACES]);
/* Whether the tensor is of a layer behind the last, which predicts further tokens
 * and is left out. */
bool gguf_is_extra(const struct model_config *c, const char *tensor);

#endif
