/* gguf.h - the head of a GGUF file, version 3: metadata and the list of
 * tensors, little-endian (ggml's docs/gguf.md).
 *
 * Everything is put into memory; failed is set where there is none, and asked
 * for once, at the end. */
#ifndef FORGE_GGUF_H
#define FORGE_GGUF_H

#include "common/base.h"

enum { GGUF_VERSION = 3 };
enum gguf_type {
    GGUF_F32 = 0,
    GGUF_F16 = 1,
    GGUF_Q4_0 = 2,
    GGUF_Q4_1 = 3,
    GGUF_Q8_0 = 8,
    GGUF_BF16 = 30
};
/* Types of values. */
enum {
    VALUE_U32 = 4,
    VALUE_I32 = 5,
    VALUE_F32 = 6,
    VALUE_BOOL = 7,
    VALUE_STRING = 8,
    VALUE_ARRAY = 9,
    VALUE_U64 = 10
};
/* Tensors begin at multiples of it. */
enum { GGUF_ALIGN = 32, GGUF_BLOCK = 32 };

/* Bytes of n elements, whole blocks of those types that have them. */
uint64_t gguf_bytes(enum gguf_type t, uint64_t n);

struct gguf_buffer {
    uint8_t *data;
    size_t len, cap;
};

/* Zero-initialise; gguf_release() when done. */
struct gguf {
    struct gguf_buffer pairs, infos;
    uint64_t n_pairs, n_infos;
    uint64_t end; /* of the last tensor, from the first */
    bool failed;
};

void gguf_u32(struct gguf *g, const char *key, uint64_t value);
void gguf_f32(struct gguf *g, const char *key, double value);
void gguf_bool(struct gguf *g, const char *key, bool value);
void gguf_string(struct gguf *g, const char *key, const char *value);
void gguf_strings(struct gguf *g, const char *key, const char *const *value,
                  size_t n);
void gguf_i32s(struct gguf *g, const char *key, const int32_t *value, size_t n);

/* A value to be set later: n zeros, their place in the head. */
size_t gguf_u64s(struct gguf *g, const char *key, size_t n);

/* The next tensor: cols inputs, rows outputs, 0 where it is a vector, and parts
 * of that, 0 where it is a matrix. */
void gguf_tensor(struct gguf *g, const char *name, enum gguf_type t,
                 uint64_t parts, uint64_t rows, uint64_t cols);
/* The file up to its first tensor.  E_TEMP. */
MUST_CHECK int gguf_head(const struct gguf *g, struct gguf_buffer *head,
                         struct err *e);
void gguf_release(struct gguf *g);

#endif
