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

    return rx != ry ? ry - rx : strcmp(x->stored, y->stored);
}

/* Move the first n tensors of c into a new shard. */
static int add_shard(struct shard_plan *p, struct collection *c, size_t n,
                     struct err *e)
{
    struct shard *s;

    if (p->n == SHARDS_MAX)
        return err_set(e, E_CONFIG, "more than %d shards: take larger ones",
                       SHARDS_MAX);
    if (mem_grow(&p->shard, ((size_t)p->n + 1) * sizeof(*p->shard), "shards",
                 e))
        return e->code;
    s = mem_zero(1, sizeof(*s), "shards", e);
    if (!s)
        return e->code;
    s->first = mem_alloc(n * sizeof(*s->first), "shards", e);
    if (!s->first) {
        free(s);
        return e->code;
    }
    if (n) {
        memcpy(s->first, c->tensor, n * sizeof(*s->first));
        qsort(s->first, n, sizeof(*s->first), by_place);
        memmove(c->tensor, c->tensor + n, (c->n - n) * sizeof(*c->tensor));
    }
    c->n -= n;
    for (s->n = 0; s->n < n; s->n++) {
        s->first[s->n].offset = s->bytes;
        s->bytes += s->first[s->n].bytes;
    }
    p->shard[p->n++] = s;
    snprintf(s->name, sizeof(s->name), "model-%05d.safetensors", p->n);
    return 0;
}

/* How many of the first n tensors fill a shard. */
static size_t fill(const struct out_tensor *t, size_t n, uint64_t limit)
{
    uint64_t left = limit;
    size_t i;

    for (i = 0; i < n && (!i || t[i].bytes <= left); i++)
        left -= t[i].bytes < left ? t[i].bytes : left;
    return i;
}

int shard_plan_take(struct shard_plan *p, struct collection *c, size_t ready,
                    bool last, uint64_t limit, struct err *e)
{
    for (size_t i = 0; i < ready; i++)
        if (rank(c->tensor[i].dtype) < 0)
            return err_set(e, E_CONFIG, "tensor '%s': safetensors has no %s",
                           c->tensor[i].name, dtype_name(c->tensor[i].dtype));
    while (ready || (last && !p->n)) {
        size_t n = fill(c->tensor, ready, limit);

        if (n == ready && !last)
            break;
        if (add_shard(p, c, n, e))
            return e->code;
        ready -= n;
    }
    return 0;
}

void shard_plan_settle(struct shard_plan *p)
{
    int n = 0;

    for (int i = 0; i < p->n; i++) { /* few are, and these come together */
        struct shard *s = p->shard[i];

        if (s->behind)
            continue;
        memmove(p->shard + n + 1, p->shard + n,
                (size_t)(i - n) * sizeof(*p->shard));
        p->shard[n++] = s;
    }
}

void shard_plan_name(const struct shard_plan *p, int i,
                     char name[SHARD_NAME_MAX])
{
    if (p->n == 1)
        strcpy(name, "model.safetensors");
    else
        snprintf(name, SHARD_NAME_MAX, "model-%05d-of-%05d.safetensors", i + 1,
                 p->n);
}

size_t shard_plan_tensors(const struct shard_plan *p)
{
    size_t n = 0;

    for (int i = 0; i < p->n; i++)
        n += p->shard[i]->n;
    return n;
}

void shard_plan_release(struct shard_plan *p)
{
    for (int i = 0; i < p->n; i++) {
        for (size_t k = 0; k < p->shard[i]->n; k++) {
            free(p->shard[i]->first[k].name);
            free(p->shard[i]->first[k].stored);
        }
        free(p->shard[i]->first);
        free(p->shard[i]);
    }
    free(p->shard);
}

static void header_entry(struct json_writer *j, const struct out_tensor *t)
{
    jw_key(j, t->stored);
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

/* A tensor, and its shard. */
struct entry {
    const struct out_tensor *t;
    const struct shard *shard;
};

static int by_string(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return strcmp(x->t->stored, y->t->stored);
}

/* All tensors of the plan, sorted by name; free() the list.  NULL with *e. */
static struct entry *sorted(const struct shard_plan *p, size_t *n,
                            struct err *e)
{
    struct entry *t;

    *n = 0;
    t = mem_alloc(shard_plan_tensors(p) * sizeof(*t), "index", e);
    if (!t)
        return NULL;
    for (int i = 0; i < p->n; i++)
        for (size_t k = 0; k < p->shard[i]->n; k++)
            t[(*n)++] = (struct entry){ &p->shard[i]->first[k], p->shard[i] };
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
    struct entry *t = sorted(p, &n, e);
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
        snprintf(hex, sizeof(hex), "%016" PRIx64, t[i].t->xxh3);
        jw_key(&j, t[i].t->stored), jw_string(&j, hex);
    }
    free(t);
    return finish_text(&j, CHECKSUMS_FILE, text, len, e);
}

int shard_index(const struct shard_plan *p, char **text, size_t *len,
                struct err *e)
{
    size_t n;
    struct entry *t = sorted(p, &n, e);
    struct json_writer j;
    uint64_t total = 0;

    if (!t)
        return e->code;
    for (int i = 0; i < p->n; i++)
        total += p->shard[i]->bytes;
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
        jw_key(&j, t[i].t->stored);
        jw_string(&j, t[i].shard->name);
    }
    free(t);
    return finish_text(&j, "index", text, len, e);
}
