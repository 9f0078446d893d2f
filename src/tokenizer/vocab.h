/* vocab.h - a vocabulary: strings to ids. */
#ifndef FORGE_VOCAB_H
#define FORGE_VOCAB_H

#include <string.h>

#include "common/io/json.h"

/* A token: text[len], not NUL-terminated. */
struct vocab_token {
    const char *text;
    size_t len;
    int32_t id;
};

/* A vocabulary; its strings are copies. */
struct vocab {
    struct vocab_token *token;
    size_t count;
    char *arena;    /* memory of all strings */
    uint32_t *slot; /* hash table, open addressing: 1 + index into token, 0:
                     * free */
    size_t mask;
    bool repeats; /* two tokens have the same id */
};

/* object: {"token": id, ...}.  Errors as tokenizer_open(). */
MUST_CHECK int vocab_init(struct vocab *v, const struct json *object,
                          const char *what, struct err *e);
void vocab_release(struct vocab *v);
/* Id of text[len]; -1: none. */
int32_t vocab_find(const struct vocab *v, const char *text, size_t len);

/* A hash of short strings.  It may change between versions: never store it. */
static inline uint64_t hash_bytes(const char *p, size_t n)
{
    const uint64_t k = 0x9e3779b97f4a7c15u;
    uint64_t h = n * k, w;

    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * k;
        h ^= h >> 32;
    }
    if (n >= 4) {
        uint32_t a, b;

        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        h = (h ^ ((uint64_t)a << 32 | b)) * k;
    } else if (n) {
        h = (h ^ ((uint64_t)(unsigned char)p[0] << 16 |
                  (uint64_t)(unsigned char)p[n / 2] << 8 |
                  (unsigned char)p[n - 1])) *
            k;
    }
    return h ^ h >> 29;
}

#endif
