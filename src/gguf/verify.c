/* verify.c - see verify.h. */
#include "gguf/verify.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/file.h"
#include "common/io/hash.h"
#include "gguf/convert.h"

enum { HEAD_MAX = 256 << 20, DIMS = 4, NAME = 128 };

/* The head in memory; nothing in it is trusted. */
struct head {
    uint8_t *data;
    size_t len, at; /* at > len: it ended early */
    uint64_t tensors, pairs;
    size_t digests, infos; /* places in it; digests 0: none */
    uint64_t size;         /* of the file */
};

static const void *take(struct head *h, uint64_t n)
{
    const void *p = h->data + h->at;

    if (h->at > h->len || n > h->len - h->at) {
        h->at = h->len + 1;
        return NULL;
    }
    h->at += n;
    return p;
}

static uint64_t number(struct head *h, size_t n)
{
    uint64_t v = 0;
    const void *p = take(h, n);

    if (p)
        memcpy(&v, p, n);
    return v;
}

/* A string; text [NAME]: its beginning. */
static void string(struct head *h, char *text)
{
    uint64_t n = number(h, 8);
    const char *p = take(h, n);

    if (text)
        snprintf(text, NAME, "%.*s", p ? (int)(n < NAME ? n : NAME) : 0,
                 p ? p : "");
}

/* Bytes of a value of fixed size; 0: another type. */
static size_t value_size(uint64_t type)
{
    static const uint8_t size[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

    return type < ARRAY_LEN(size) ? size[type] : 0;
}

static void read_pair(struct head *h)
{
    char key[NAME];
    uint64_t type, n = 1;
    bool list;

    string(h, key);
    type = number(h, 4);
    list = type == VALUE_ARRAY;
    if (list) {
        type = number(h, 4);
        n = number(h, 8);
    }
    if (list && type == VALUE_U64 && n == h->tensors + 1 &&
        !strcmp(key, DIGESTS_KEY))
        h->digests = h->at;
    if (type == VALUE_STRING)
        for (; n && h->at <= h->len; n--)
            string(h, NULL);
    else if (value_size(type) && n <= h->len)
        take(h, n * value_size(type));
    else
        h->at = h->len + 1;
}

/* Bytes of the next tensor, and its place behind the head; false: not of a type
 * that forge-gguf writes. */
static bool read_info(struct head *h, char name[NAME], uint64_t *bytes,
                      uint64_t *offset)
{
    uint64_t n = 1, dims, type;

    string(h, name);
    dims = number(h, 4);
    for (uint64_t i = 0; i < dims && i < DIMS; i++)
        if (size_mul(n, number(h, 8), &n))
            return false;
    type = number(h, 4);
    *offset = number(h, 8);
    if (dims > DIMS || n > UINT64_MAX / 34 || h->at > h->len ||
        (type != GGUF_F32 && type != GGUF_F16 && type != GGUF_Q4_0 &&
         type != GGUF_Q4_1 && type != GGUF_Q8_0 && type != GGUF_BF16))
        return false;
    *bytes = gguf_bytes((enum gguf_type)type, n);
    return true;
}

static int read_head(struct head *h, struct file *f, struct err *e)
{
    const void *magic;
    char name[NAME];
    uint64_t bytes, offset, version;

    h->size = file_size(f);
    h->len = h->size < HEAD_MAX ? h->size : HEAD_MAX;
    h->data = mem_alloc(h->len, "GGUF", e);
    if (!h->data || file_read(f, h->data, h->len, 0, e))
        return e->code;
    magic = take(h, 4);
    version = number(h, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0 || version != GGUF_VERSION)
        return err_set(e, E_DATA, "is no GGUF file of version 3");
    h->tensors = number(h, 8);
    h->pairs = number(h, 8);
    for (uint64_t i = 0; i < h->pairs && h->at <= h->len; i++)
        read_pair(h);
    if (h->at <= h->len && !h->digests)
        return err_set(e, E_DATA,
                       "has no digests (" DIGESTS_KEY
                       "): forge-gguf did not write it");
    h->infos = h->at;
    for (uint64_t i = 0; i < h->tensors && h->at <= h->len; i++)
        if (!read_info(h, name, &bytes, &offset))
            h->at = h->len + 1;
    if (h->at > h->len)
        return err_set(e, E_DATA, "its head is cut or damaged");
    return 0;
}

/* Bytes with those that make the next tensor begin at a multiple. */
static uint64_t padded(uint64_t bytes)
{
    return bytes + (GGUF_ALIGN - bytes % GGUF_ALIGN) % GGUF_ALIGN;
}

/* Whether the n bytes at `at` of the file are zeros. */
static int are_zeros(bool *zeros, struct file *f, uint64_t at, uint64_t n,
                     struct err *e)
{
    uint8_t pad[GGUF_ALIGN] = { 0 };

    if (file_read(f, pad, (size_t)n, at, e))
        return e->code;
    *zeros = !memcmp(pad, (uint8_t[GGUF_ALIGN]){ 0 }, sizeof(pad));
    return 0;
}

/* Whether nothing is behind the last tensor, which ends at `end`. */
static void check_end(const struct head *h, uint64_t end, const char *path,
                      void (*say)(const char *path, const char *what),
                      struct gguf_verdict *v)
{
    char text[80];

    if (h->size <= end)
        return;
    snprintf(text, sizeof(text), "%" PRIu64 " bytes behind the last tensor",
             h->size - end);
    v->wrong++;
    say(path, text);
}

static int check(struct head *h, struct file *f, const char *path,
                 void (*say)(const char *path, const char *what),
                 struct progress *progress, struct gguf_verdict *v,
                 struct err *e)
{
    size_t start = padded(h->at);
    uint64_t *want = mem_alloc((h->tensors + 1) * 8, "GGUF", e), hash = 0;
    uint64_t end = start;
    uint8_t *buf = mem_pages(HASH_ROOM, "GGUF", e);
    int rc = want && buf ? 0 : e->code;

    h->at = h->infos;
    if (!rc)
        memcpy(want, h->data + h->digests, (h->tensors + 1) * 8);
    for (uint64_t i = 0; i < h->tensors && !rc; i++) {
        uint64_t bytes, offset, at;
        char name[NAME];
        bool zeros = true;

        (void)!read_info(h, name, &bytes, &offset);
        if (start > h->size || offset > h->size - start ||
            padded(bytes) > h->size - start - offset) {
            rc = err_set(e, E_DATA, "ends inside of '%s'", name);
            break;
        }
        at = start + offset + bytes;
        end = start + offset + padded(bytes);
        rc = hash_range(&hash, f, start + offset, at, buf, NULL, e);
        if (!rc)
            rc = are_zeros(&zeros, f, at, end - at, e);
        v->wrong += !rc && (hash != want[i] || !zeros);
        if (!rc && (hash != want[i] || !zeros))
            say(path, name);
        progress_step(progress, name, bytes);
    }
    if (!rc && start > h->len)
        rc = err_set(e, E_DATA, "ends behind its head");
    if (!rc) {
        memset(h->data + h->digests, 0, (h->tensors + 1) * 8);
        hash = XXH3_64bits(h->data, start);
        v->wrong += hash != want[h->tensors];
        if (hash != want[h->tensors])
            say(path, "metadata");
        check_end(h, end, path, say, v);
    }
    v->tensors = h->tensors;
    free(want);
    free(buf);
    return rc;
}

int gguf_verify(const char *path,
                void (*say)(const char *path, const char *what),
                struct progress *progress, struct gguf_verdict *v,
                struct err *e)
{
    struct head h = { 0 };
    struct file *f;
    int rc = file_open(&f, AT_FDCWD, path, e);

    *v = (struct gguf_verdict){ 0 };
    if (rc)
        return rc;
    rc = read_head(&h, f, e);
    if (!rc)
        rc = check(&h, f, path, say, progress, v, e);
    free(h.data);
    file_close(f);
    return rc;
}
