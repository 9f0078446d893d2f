/* shardindex.c - the index of a sharded checkpoint. */
#include "checkpoint/shardindex.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/modeldir.h"

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names, sorted. */
static int list_files(struct shard_index *x, struct err *e)
{
    size_t n = 0;

    x->file = mem_alloc(x->n_refs * sizeof(*x->file), "index", e);
    if (!x->file)
        return e->code;
    for (size_t i = 0; i < x->n_refs; i++)
        x->file[i] = x->ref[i].file;
    qsort(x->file, x->n_refs, sizeof(*x->file), by_text);
    for (size_t i = 0; i < x->n_refs; i++)
        if (!n || strcmp(x->file[n - 1], x->file[i]) != 0)
            x->file[n++] = x->file[i];
    x->n_files = n;
    return 0;
}

static int parse_map(struct shard_index *x, const struct json *map,
                     const char *suffix, const char *what, struct err *e)
{
    const struct json *v;

    if (!map || json_type(map) != JSON_OBJECT || !json_count(map))
        return err_set(e, E_DATA, "%s: no 'weight_map' with entries", what);
    x->ref = mem_alloc(json_count(map) * sizeof(*x->ref), what, e);
    if (!x->ref)
        return e->code;
    for (v = json_first(map); v; v = json_after(v)) {
        struct shard_ref *ref = &x->ref[x->n_refs];

        ref->tensor = json_key(v);
        if (!json_string(v, &ref->file))
            return err_set(e, E_DATA,
                           "%s: 'weight_map': '%.200s' has no file name", what,
                           ref->tensor);
        if (!modeldir_name_ok(ref->file, suffix))
            return err_set(e, E_DATA,
                           "%s: tensor '%.200s': '%.200s' is not allowed as "
                           "the name of a shard",
                           what, ref->tensor, ref->file);
        x->n_refs++;
    }
    return list_files(x, e);
}

int shard_index_parse(struct shard_index *x, const char *text, size_t len,
                      const char *suffix, const char *what, struct err *e)
{
    int r;

    memset(x, 0, sizeof(*x));
    r = json_parse(&x->doc, text, len, what, e);
    if (r) {
        x->doc = NULL;
        return r;
    }
    r = parse_map(x, json_get(json_root(x->doc), "weight_map"), suffix, what,
                  e);
    if (r)
        shard_index_release(x);
    return r;
}

void shard_index_release(struct shard_index *x)
{
    free(x->ref);
    free(x->file);
    json_free(x->doc);
    memset(x, 0, sizeof(*x));
}
