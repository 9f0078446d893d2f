/* gguf.c - see gguf.h. */
#include "gguf/gguf.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD = 24 }; /* bytes before the pairs */

uint64_t gguf_bytes(enum gguf_type t, uint64_t n)
{
    switch (t) {
    case GGUF_F32: return 4 * n;
    case GGUF_Q4_0: return n / GGUF_BLOCK * 18;
    case GGUF_Q4_1: return n / GGUF_BLOCK * 20;
    case GGUF_Q8_0: return n / GGUF_BLOCK * 34;
    default: return 2 * n;
    }
}

static bool put(struct gguf_buffer *b, const void *data, size_t n)
{
    struct err e;

    if (n > b->cap - b->len) {
        size_t cap = 2 * (b->len + n) + 4096;

        if (mem_grow(&b->data, cap, "GGUF", &e))
            return false;
        b->cap = cap;
    }
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    return true;
}

static bool put_u32(struct gguf_buffer *b, uint32_t v)
{
    return put(b, &v, sizeof(v));
}

static bool put_u64(struct gguf_buffer *b, uint64_t v)
{
    return put(b, &v, sizeof(v));
}

static bool put_text(struct gguf_buffer *b, const char *s)
{
    size_t n = strlen(s);

    return put_u64(b, n) && put(b, s, n);
}

/* Key, type and value of a pair. */
static void pair(struct gguf *g, const char *key, uint32_t type,
                 const void *value, size_t n)
{
    g->failed |= !put_text(&g->pairs, key) || !put_u32(&g->pairs, type) ||
                 !put(&g->pairs, value, n);
    g->n_pairs++;
}

void gguf_u32(struct gguf *g, const char *key, uint64_t value)
{
    uint32_t v = (uint32_t)value;

    pair(g, key, VALUE_U32, &v, sizeof(v));
}

void gguf_f32(struct gguf *g, const char *key, double value)
{
    float v = (float)value;

    pair(g, key, VALUE_F32, &v, sizeof(v));
}

void gguf_bool(struct gguf *g, const char *key, bool value)
{
    uint8_t v = value;

    pair(g, key, VALUE_BOOL, &v, sizeof(v));
}

void gguf_string(struct gguf *g, const char *key, const char *value)
{
    pair(g, key, VALUE_STRING, NULL, 0);
    g->failed |= !put_text(&g->pairs, value);
}

static void array(struct gguf *g, const char *key, uint32_t type, size_t n)
{
    pair(g, key, VALUE_ARRAY, NULL, 0);
    g->failed |= !put_u32(&g->pairs, type) || !put_u64(&g->pairs, n);
}

void gguf_strings(struct gguf *g, const char *key, const char *const *value,
                  size_t n)
{
    array(g, key, VALUE_STRING, n);
    for (size_t i = 0; i < n; i++)
        g->failed |= !put_text(&g->pairs, value[i]);
}

void gguf_i32s(struct gguf *g, const char *key, const int32_t *value, size_t n)
{
    array(g, key, VALUE_I32, n);
    g->failed |= !put(&g->pairs, value, n * sizeof(*value));
}

size_t gguf_u64s(struct gguf *g, const char *key, size_t n)
{
    size_t at;

    array(g, key, VALUE_U64, n);
    at = HEAD + g->pairs.len;
    for (size_t i = 0; i < n; i++)
        g->failed |= !put_u64(&g->pairs, 0);
    return at;
}

void gguf_tensor(struct gguf *g, const char *name, enum gguf_type t,
                 uint64_t parts, uint64_t rows, uint64_t cols)
{
    struct gguf_buffer *b = &g->infos;
    uint64_t bytes =
        gguf_bytes(t, (parts ? parts : 1) * (rows ? rows : 1) * cols);

    g->failed |= !put_text(b, name) ||
                 !put_u32(b, parts ? 3 :
                             rows  ? 2 :
                                     1) ||
                 !put_u64(b, cols) || (rows && !put_u64(b, rows)) ||
                 (parts && !put_u64(b, parts)) || !put_u32(b, t) ||
                 !put_u64(b, g->end);
    g->end += (bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
    g->n_infos++;
}

int gguf_head(const struct gguf *g, struct gguf_buffer *head, struct err *e)
{
    static const uint8_t zeros[GGUF_ALIGN];

    *head = (struct gguf_buffer){ 0 };
    if (!g->failed && put(head, "GGUF", 4) && put_u32(head, GGUF_VERSION) &&
        put_u64(head, g->n_infos) && put_u64(head, g->n_pairs) &&
        put(head, g->pairs.data, g->pairs.len) &&
        put(head, g->infos.data, g->infos.len) &&
        put(head, zeros, (GGUF_ALIGN - head->len % GGUF_ALIGN) % GGUF_ALIGN))
        return 0;
    free(head->data);
    head->data = NULL;
    return err_set(e, E_TEMP, "GGUF: out of memory");
}

void gguf_release(struct gguf *g)
{
    free(g->pairs.data);
    free(g->infos.data);
    *g = (struct gguf){ 0 };
}
