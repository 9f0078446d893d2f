/* shardplan.c - see shardplan.h. */
#include "shard/shardplan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "checkpoint/digests.h"

enum { SHARDS_MAX = 99999, HEADER_MAX = 100000000, HEADER_ALIGN = 8 };

/* Position in the safetensors library's list of types; -1: not a type of it. */
static int rank(enum dtype t)
{
    static const enum dtype order[] = {
        DT_BOOL, DT_U8,  DT_I8,  DT_F8_E5M2, DT_F8_E4M3, DT_F8_E8M0,
        DT_I16,  DT_U16, DT_F16, DT_BF16,    DT_I32,     DT_U32,
        DT_F32,  DT_F64, DT_I64, DT_U64
    };

    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        if (order[i] == t)
            return (int)i;
    return -1;
}

static int by_place(const void *a, const void *b)
{
    const struct out_tensor *x = a, *y = b;
    int rx = rank(x->dtype), ry = rank(y->dtype);

    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return rx != ry ? ry - rx : strcmp(x->name, y->name);
}

/* Set each tensor's shard; returns the number of shards. */
static int assign(struct collection *c, uint64_t limit)
{
    uint64_t filled = 0;
    int shard = 0;

    for (size_t i = 0; i < c->n && shard < SHARDS_MAX; i++) {
        if (filled && c->tensor[i].bytes > limit - filled) {
            shard++;
            filled = 0;
        }
        c->tensor[i].shard = shard;
        filled += c->tensor[i].bytes;
        if (filled > limit)
            filled = limit;
    }
    return shard + 1;
}

static void place(struct shard *s, struct out_tensor *t)
{
    if (!s->n)
        s->first = t;
    t->offset = s->bytes;
    s->bytes += t->bytes;
    s->n++;
}

int shard_plan(struct shard_plan *p, struct collection *c, uint64_t limit,
               struct err *e)
{
    *p = (struct shard_plan){ 0 };
    for (size_t i = 0; i < c->n; i++)
        if (rank(c->tensor[i].dtype) < 0)
            return err_set(e, E_CONFIG, "tensor '%s': safetensors has no %s",
                           c->tensor[i].name, dtype_name(c->tensor[i].dtype));
    p->n = assign(c, limit);
    if (p->n > SHARDS_MAX)
        return err_set(e, E_CONFIG, "more than %d shards: take larger ones",
                       SHARDS_MAX);
    p->shard = mem_zero((size_t)p->n, sizeof(*p->shard), "shards", e);
    if (!p->shard)
        return e->code;
    if (c->n)
        qsort(c->tensor, c->n, sizeof(*c->tensor), by_place);
    for (size_t i = 0; i < c->n; i++)
        place(&p->shard[c->tensor[i].shard], &c->tensor[i]);
    for (int i = 0; i < p->n; i++)
        if (p->n == 1)
            strcpy(p->shard[i].name, "model.safetensors");
        else
            snprintf(p->shard[i].name, SHARD_NAME_MAX,
                     "model-%05d-of-%05d.safetensors", i + 1, p->n);
    return 0;
}

void shard_plan_release(struct shard_plan *p)
{
    free(p->shard);
}

static void header_entry(struct json_writer *j, const struct out_tensor *t)
{
    jw_key(j, t->name);
    jw_begin(j, '{');
    jw_key(j, "dtype");
    jw_string(j, dtype_name(t->dtype));
    jw_key(j, "shape");
    jw_begin(j, '[');
    for (int i = 0; i < t->ndim; i++)
        jw_int(j, (int64_t)t->dims[i]);
    jw_end(j, ']');
    jw_key(j, "data_offsets");
    jw_begin(j, '[');
    jw_int(j, (int64_t)t->offset);
    jw_int(j, (int64_t)(t->offset + t->bytes));
    jw_end(j, ']');
    jw_end(j, '}');
}

/* Put 8 bytes of length in front of the JSON, and spaces behind it. */
static int frame_header(const struct json_writer *j, char **text, size_t *len,
                        struct err *e)
{
    uint64_t n = (j->len + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;

    if (n > HEADER_MAX)
        return err_set(e, E_CONFIG,
                       "a shard's header would have %zu bytes, readers take "
                       "%d: take smaller shards",
                       j->len, HEADER_MAX);
    *text = mem_alloc(n + sizeof(n), "header", e);
    if (!*text)
        return e->code;
    memcpy(*text, &n, sizeof(n));
    memset(*text + sizeof(n), ' ', n);
    memcpy(*text + sizeof(n), j->text, j->len);
    *len = n + sizeof(n);
    return 0;
}

int shard_header(const struct shard *s, const char *metadata, char **text,
                 size_t *len, struct err *e)
{
    struct json_writer j;
    int rc;

    jw_init(&j, 0);
    jw_begin(&j, '{');
    jw_key(&j, "__metadata__");
    jw_raw(&j, metadata);
    for (size_t i = 0; i < s->n; i++)
        header_entry(&j, &s->first[i]);
    jw_end(&j, '}');
    rc = j.failed ? err_set(e, E_TEMP, "header: out of memory") :
                    frame_header(&j, text, len, e);
    free(j.text);
    return rc;
}

static int by_string(const void *a, const void *b)
{
    const struct out_tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static size_t all_tensors(const struct shard_plan *p,
                          const struct out_tensor **t)
{
    size_t n = 0;

    for (int i = 0; i < p->n; i++)
        for (size_t k = 0; k < p->shard[i].n; k++, n++)
            if (t)
                t[n] = &p->shard[i].first[k];
    return n;
}

/* All tensors of the plan, sorted by name; free() the list.  NULL with *e. */
static const struct out_tensor **sorted(const struct shard_plan *p, size_t *n,
                                        struct err *e)
{
    const struct out_tensor **t;

    *n = all_tensors(p, NULL);
    t = mem_alloc(*n * sizeof(*t), "index", e);
    if (!t)
        return NULL;
    all_tensors(p, t);
    if (*n)
        qsort(t, *n, sizeof(*t), by_string);
    return t;
}

static int finish_text(struct json_writer *j, const char *what, char **text,
                       size_t *len, struct err *e)
{
    jw_end(j, '}');
    jw_end(j, '}');
    if (j->failed) {
        free(j->text);
        return err_set(e, E_TEMP, "%s: out of memory", what);
    }
    *text = j->text;
    *len = j->len;
    return 0;
}

int shard_checksums(const struct shard_plan *p, char **text, size_t *len,
                    struct err *e)
{
    size_t n;
    const struct out_tensor **t = sorted(p, &n, e);
    struct json_writer j;
    char hex[17];

    if (!t)
        return e->code;
    jw_init(&j, 1);
    jw_begin(&j, '{');
    jw_key(&j, "format"), jw_string(&j, CHECKSUMS_FORMAT);
    jw_key(&j, "hash"), jw_string(&j, "XXH3-64");
    jw_key(&j, "tensors"), jw_begin(&j, '{');
    for (size_t i = 0; i < n; i++) {
        snprintf(hex, sizeof(hex), "%016" PRIx64, t[i]->xxh3);
        jw_key(&j, t[i]->name), jw_string(&j, hex);
    }
    free(t);
    return finish_text(&j, CHECKSUMS_FILE, text, len, e);
}

int shard_index(const struct shard_plan *p, char **text, size_t *len,
                struct err *e)
{
    size_t n;
    const struct out_tensor **t = sorted(p, &n, e);
    struct json_writer j;
    uint64_t total = 0;

    if (!t)
        return e->code;
    for (int i = 0; i < p->n; i++)
        total += p->shard[i].bytes;
    jw_init(&j, 2);
    jw_begin(&j, '{');
    jw_key(&j, "metadata");
    jw_begin(&j, '{');
    jw_key(&j, "total_size");
    jw_int(&j, (int64_t)total);
    jw_end(&j, '}');
    jw_key(&j, "weight_map");
    jw_begin(&j, '{');
    for (size_t i = 0; i < n; i++) {
        jw_key(&j, t[i]->name);
        jw_string(&j, p->shard[t[i]->shard].name);
    }
    free(t);
    return finish_text(&j, "index", text, len, e);
}
