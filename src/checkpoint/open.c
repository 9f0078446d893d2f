/* open.c - see checkpoint.h: opens a directory, and reads from it. */
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "checkpoint/internal.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shardindex.h"
#include "checkpoint/torchfile.h"
#include "checkpoint/view.h"
#include "common/math/threads.h"

enum { CONFIG_MAX = 16 * 1024 * 1024 };

/* The forms of a checkpoint, in transformers' order of preference. */
static const struct form {
    const char *file;
    const char *suffix;
    enum shard_kind kind;
    bool index;
} forms[] = {
    { "model.safetensors", ".safetensors", SHARD_SAFETENSORS, false },
    { "model.safetensors.index.json", ".safetensors", SHARD_SAFETENSORS, true },
    { "pytorch_model.bin", ".bin", SHARD_TORCH, false },
    { "pytorch_model.bin.index.json", ".bin", SHARD_TORCH, true },
};

static void mix(struct checkpoint *c, const void *data, size_t len)
{
    c->fingerprint = XXH3_64bits_withSeed(data, len, c->fingerprint);
}

/* ---- the directory ---- */

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);

    return n > m && strcmp(s + n - m, suffix) == 0;
}

/* Split the path of a file into c->path and c->only. */
static int open_path(struct checkpoint *c, const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    struct stat st;

    if (stat(path, &st) || !S_ISREG(st.st_mode)) {
        c->path = mem_text(path, strlen(path), "checkpoint", e);
        return c->path ? modeldir_open(&c->dir, c->path, e) : e->code;
    }
    c->kind = ends_with(path, ".bin") || ends_with(path, ".pt") ||
                      ends_with(path, ".pth") ?
                  SHARD_TORCH :
                  SHARD_SAFETENSORS;
    if (c->kind != SHARD_TORCH && !ends_with(path, ".safetensors"))
        return err_set(
            e, E_DATA,
            "'%s': neither a directory nor a .safetensors, .bin, .pt "
            "or .pth file",
            path);
    if (!slash)
        c->path = mem_text(".", 1, "checkpoint", e);
    else
        c->path = mem_text(path, slash == path ? 1 : (size_t)(slash - path),
                           "checkpoint", e);
    c->only = mem_text(slash ? slash + 1 : path,
                       strlen(slash ? slash + 1 : path), "checkpoint", e);
    if (!c->path || !c->only)
        return e->code;
    return modeldir_open(&c->dir, c->path, e);
}

static const struct form *find_form(const struct checkpoint *c)
{
    for (size_t i = 0; i < ARRAY_LEN(forms); i++)
        if (modeldir_has(&c->dir, forms[i].file))
            return &forms[i];
    return NULL;
}

/* ---- shards ---- */

static const char *quoted(char *buf, size_t cap, const struct checkpoint *c,
                          const char *name)
{
    snprintf(buf, cap, "'%s/%s'", c->path, name);
    return buf;
}

/* What a shard says that it has, and the text that says so. */
struct directory {
    struct ck_list list;
    char *text;
    size_t len;
};

static int read_directory(struct checkpoint *c, size_t i, struct directory *d,
                          struct err *e)
{
    struct shard *s = &c->shard[i];
    char what[600];
    struct file *f;
    int r = checkpoint_shard(c, i, &f, e);

    if (r)
        return r;
    s->size = file_size(f);
    quoted(what, sizeof(what), c, s->name);
    if (c->kind == SHARD_SAFETENSORS) {
        r = safetensors_header(f, what, &d->text, &d->len, e);
        if (!r)
            r = safetensors_parse(&d->list, d->text, d->len, s->size, what, e);
    } else {
        r = torchfile_list(&d->list, f, what, &d->text, &d->len, e);
    }
    checkpoint_leave(c, i);
    return r;
}

struct reading {
    struct checkpoint *c;
    struct directory *d; /* [c->n_shards] */
    struct threads_error error;
};

static void read_some(void *ctx, size_t begin, size_t end)
{
    struct reading *r = ctx;
    struct err e;

    for (size_t i = begin; i < end; i++)
        if (read_directory(r->c, i, &r->d[i], &e))
            threads_error_add(&r->error, i, &e);
}

/* Move the tensors of shard i to the checkpoint's. */
static int take(struct checkpoint *c, size_t i, struct directory *d,
                struct err *e)
{
    struct ck_list *to = &c->list;
    size_t n = to->count + d->list.count;

    mix(c, d->text, d->len);
    mix(c, &c->shard[i].size, sizeof(c->shard[i].size));
    if (mem_grow(&to->item, n * sizeof(*to->item), "checkpoint", e))
        return e->code;
    to->cap = n;
    for (size_t k = 0; k < d->list.count; k++) {
        to->item[to->count] = d->list.item[k];
        to->item[to->count++].shard = i;
    }
    d->list.count = 0;
    return 0;
}

/* The directories of all shards, which many files have. */
static int read_directories(struct checkpoint *c, struct err *e)
{
    struct reading reading = { .c = c };
    int r;

    reading.d = mem_zero(c->n_shards, sizeof(*reading.d), "checkpoint", e);
    if (!reading.d)
        return e->code;
    threads_error_init(&reading.error);
    threads_for(c->n_shards, 1, read_some, &reading);
    r = threads_error_take(&reading.error, e);
    for (size_t i = 0; i < c->n_shards; i++) {
        struct directory *d = &reading.d[i];

        if (!r)
            r = take(c, i, d, e);
        ck_list_release(&d->list);
        free(d->text);
    }
    free(reading.d);
    return r;
}

static int read_shards(struct checkpoint *c, const char *const *names, size_t n,
                       struct err *e)
{
    c->shard = mem_zero(n, sizeof(*c->shard), "checkpoint", e);
    if (!c->shard)
        return e->code;
    for (; c->n_shards < n; c->n_shards++) {
        struct shard *s = &c->shard[c->n_shards];

        s->size = UINT64_MAX;
        s->name = mem_text(names[c->n_shards], strlen(names[c->n_shards]),
                           "checkpoint", e);
        if (!s->name)
            return e->code;
    }
    return read_directories(c, e);
}

/* ---- names ---- */

static int check_index(const struct checkpoint *c, const struct shard_index *x,
                       const char *what, struct err *e)
{
    for (size_t i = 0; i < x->n_refs; i++) {
        const struct ck_tensor *t = checkpoint_find(c, x->ref[i].tensor);

        if (!t || strcmp(t->file, x->ref[i].file) != 0)
            return err_set(e, E_DATA, "%s: tensor '%.200s' is not in '%.100s'",
                           what, x->ref[i].tensor, x->ref[i].file);
    }
    return 0;
}

static int read_index(struct checkpoint *c, const struct form *form,
                      struct err *e)
{
    char what[600], *text;
    struct shard_index x;
    size_t len;
    int r = modeldir_slurp(&c->dir, form->file, SHARDINDEX_MAX, &text, &len, e);

    if (r)
        return r;
    quoted(what, sizeof(what), c, form->file);
    mix(c, text, len);
    r = shard_index_parse(&x, text, len, form->suffix, what, e);
    free(text);
    if (r)
        return r;
    r = read_shards(c, x.file, x.n_files, e);
    if (!r)
        r = checkpoint_index(c, e);
    if (!r)
        r = check_index(c, &x, what, e);
    shard_index_release(&x);
    return r;
}

static int read_single(struct checkpoint *c, const char *name, struct err *e)
{
    int r = read_shards(c, &name, 1, e);

    return r ? r : checkpoint_index(c, e);
}

/* ---- config.json ---- */

/* Gemma 3n: the first of the last layers, which use the keys and values of one
 * before them. */
static void read_shared_keys(struct checkpoint *c, const struct json *config)
{
    const struct json *text = json_get(config, "text_config");
    int64_t layers = 0, shared = 15; /* the configuration class's default */

    text = text ? text : config;
    if (json_int(json_get(text, "num_hidden_layers"), &layers) &&
        (!json_get(text, "num_kv_shared_layers") ||
         json_int(json_get(text, "num_kv_shared_layers"), &shared)))
        c->keys_end = layers - shared;
}

/* How the family stores its experts, and what it stores for nothing. */
static void read_family(struct checkpoint *c, const struct json *config)
{
    const char *type;

    if (!json_string(json_get(config, "model_type"), &type))
        return;
    if (!strcmp(type, "gemma3n") || !strcmp(type, "gemma3n_text"))
        read_shared_keys(c, config);
    c->mixtral = !strcmp(type, "mixtral") || !strcmp(type, "minimax_m2") ||
                 !strcmp(type, "granitemoe") ||
                 !strcmp(type, "granitemoeshared");
    c->interleaved = !strcmp(type, "gpt_oss");
}

/* Read the quantization settings in a file.  method: for a file of these
 * settings alone, which may omit it; "" for config.json. */
static int read_quant(struct checkpoint *c, const char *name,
                      const char *method, struct err *e)
{
    char what[600], *text;
    struct json_doc *doc;
    const struct json *q;
    size_t len;
    int r = modeldir_slurp(&c->dir, name, CONFIG_MAX, &text, &len, e);

    if (r)
        return r;
    quoted(what, sizeof(what), c, name);
    mix(c, text, len);
    r = json_parse(&doc, text, len, what, e);
    free(text);
    if (r)
        return r;
    q = json_root(doc);
    if (!method[0]) {
        read_family(c, q);
        q = json_get(q, "quantization_config");
        if (!q)
            q = json_get(json_root(doc), "compression_config");
    }
    r = quant_spec_parse(&c->quant, q, method, what, e);
    json_free(doc);
    return r;
}

/* The codes of some 4-bit linear; NULL: there are none. */
static const struct ck_tensor *find_packed(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->list.count; i++)
        if (ends_with(c->tensor[i].name, ".qweight") ||
            ends_with(c->tensor[i].name, ".weight_packed") ||
            ends_with(c->tensor[i].name, ".weight_int4pack"))
            return &c->tensor[i];
    return NULL;
}

static int find_quant(struct checkpoint *c, struct err *e)
{
    const struct ck_tensor *packed = find_packed(c);
    int r = 0;

    if (modeldir_has(&c->dir, "config.json") && !c->only)
        r = read_quant(c, "config.json", "", e);
    if (r || !packed || c->only || c->quant.storage != STORAGE_PLAIN)
        return r;
    if (modeldir_has(&c->dir, "quantize_config.json"))
        return read_quant(c, "quantize_config.json", "gptq", e);
    if (modeldir_has(&c->dir, "quant_config.json"))
        return read_quant(c, "quant_config.json", "awq", e);
    return err_set(e, E_CONFIG,
                   "'%s': '%.200s' is packed, but config.json has no "
                   "quantization_config",
                   c->path, packed->name);
}

/* ---- the interface ---- */

static int open_all(struct checkpoint *c, const char *path, bool stored,
                    struct err *e)
{
    const struct form *form;
    int r = open_path(c, path, e);

    if (r)
        return r;
    form = c->only ? NULL : find_form(c);
    if (!form && !c->only)
        return err_set(
            e, E_NOINPUT, "'%s': no checkpoint: none of %s, %s, %s, %s", path,
            forms[0].file, forms[1].file, forms[2].file, forms[3].file);
    if (form)
        c->kind = form->kind;
    r = form && form->index ? read_index(c, form, e) :
                              read_single(c, form ? form->file : c->only, e);
    if (r || (r = find_quant(c, e)) || stored)
        return r;
    r = view_apply(c, e);
    return r > 0 ? checkpoint_index(c, e) : r;
}

static int open_view(struct checkpoint **out, const char *path, bool stored,
                     struct err *e)
{
    struct checkpoint *c = mem_zero(1, sizeof(*c), "checkpoint", e);
    int r;

    if (!c)
        return e->code;
    c->dir.fd = -1;
    pthread_mutex_init(&c->lock, NULL);
    r = open_all(c, path, stored, e);
    if (r) {
        checkpoint_close(c);
        return r;
    }
    *out = c;
    return 0;
}

int checkpoint_open(struct checkpoint **c, const char *path, struct err *e)
{
    return open_view(c, path, false, e);
}

int checkpoint_open_stored(struct checkpoint **c, const char *path,
                           struct err *e)
{
    return open_view(c, path, true, e);
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; c->shard && i < c->n_shards; i++) {
        file_close(c->shard[i].file);
        free(c->shard[i].name);
    }
    free(c->shard);
    ck_list_release(&c->list);
    ck_list_release(&c->aside);
    ck_list_release(&c->mx_scales);
    free(c->tensor);
    free(c->by_name);
    modeldir_close(&c->dir);
    pthread_mutex_destroy(&c->lock);
    free(c->path);
    free(c->only);
    free(c);
}

size_t checkpoint_count(const struct checkpoint *c)
{
    return c->list.count;
}

const struct ck_tensor *checkpoint_tensor(const struct checkpoint *c, size_t i)
{
    return i < c->list.count ? &c->tensor[i] : NULL;
}

/* Some rows of a small tensor, which is read whole. */
static int read_picked(struct checkpoint *c, const struct ck_entry *en,
                       uint8_t *buf, struct err *e)
{
    size_t row = en->bytes / en->dims[0];
    uint8_t *all = mem_pages(en->bytes, en->name, e);
    int r = all ? checkpoint_entry(c, en, all, e) : e->code;

    for (uint64_t i = 0; i < en->n_pick && !r; i++)
        memcpy(buf + i * row, all + (size_t)en->pick[i] * row, row);
    free(all);
    return r;
}

void checkpoint_look(struct checkpoint *c)
{
    c->looks = true;
}

int checkpoint_read(struct checkpoint *c, const struct ck_tensor *t, void *buf,
                    struct err *e)
{
    const struct ck_entry *en = t->where;

    if (c->looks)
        return 0;
    if (en->scale)
        return view_read_scaled(c, en, DT_BF16, buf, e);
    if (en->pick)
        return read_picked(c, en, buf, e);
    return checkpoint_entry(c, en, buf, e);
}

bool checkpoint_has_rows(const struct ck_tensor *t)
{
    const struct ck_entry *en = t->where;

    return t->ndim && t->dims[0] && !en->scale && !en->pick && !en->strided;
}

int checkpoint_read_bytes(struct checkpoint *c, const struct ck_tensor *t,
                          uint64_t at, uint64_t n, void *buf, struct err *e)
{
    const struct ck_entry *en = t->where;
    struct file *f;
    int r = checkpoint_shard(c, en->shard, &f, e);

    if (r)
        return r;
    r = file_read(f, buf, n, en->offset + at, e);
    checkpoint_leave(c, en->shard);
    return r;
}

int checkpoint_read_rows(struct checkpoint *c, const struct ck_tensor *t,
                         uint64_t first, uint64_t n, void *buf, struct err *e)
{
    uint64_t row = t->bytes / t->dims[0];

    return checkpoint_read_bytes(c, t, first * row, n * row, buf, e);
}

int checkpoint_most(struct checkpoint *c, const struct ck_tensor *t,
                    uint64_t first, uint64_t n, void **buf, size_t *cap,
                    float *most, struct err *e)
{
    const struct ck_entry *en = t->where;
    bool rows = checkpoint_has_rows(t);
    uint64_t bytes = rows ? t->bytes / t->dims[0] * n : t->bytes;
    int r;

    if (en->scale && !en->mxfp4)
        return view_most_scaled(c, en, buf, cap, most, e);
    if (mem_reserve(buf, cap, bytes, t->name, e) < 0)
        return e->code;
    r = rows ? checkpoint_read_rows(c, t, first, n, *buf, e) :
               checkpoint_read(c, t, *buf, e);
    if (!r)
        *most = dtype_most(*buf, t->dtype, bytes * 8 / dtype_bits(t->dtype));
    return r;
}

void checkpoint_prefetch(struct checkpoint *c, const struct ck_tensor *t)
{
    const struct ck_entry *en = t->where;
    struct shard *s = &c->shard[en->shard];

    pthread_mutex_lock(&c->lock);
    if (s->file)
        file_prefetch(s->file, en->offset, en->strided ? en->span : en->bytes);
    pthread_mutex_unlock(&c->lock);
}

uint64_t checkpoint_fingerprint(const struct checkpoint *c)
{
    return c->fingerprint;
}

enum storage checkpoint_storage(const struct checkpoint *c)
{
    return c->quant.storage;
}

enum int4pack_capability checkpoint_capability(const struct checkpoint *c)
{
    return c->quant.capability;
}

int checkpoint_bits(const struct checkpoint *c)
{
    return c->quant.bits;
}

bool checkpoint_rounds_activations(const struct checkpoint *c)
{
    return c->quant.activations;
}

bool checkpoint_rounds_cache(const struct checkpoint *c)
{
    return c->quant.cache;
}

int64_t checkpoint_group(const struct checkpoint *c)
{
    return c->quant.group;
}
