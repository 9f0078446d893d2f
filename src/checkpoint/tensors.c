/* tensors.c - see checkpoint.h, internal.h: tensors by name, and the files
 * they are in. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

enum { OPEN_SHARDS = 4 }; /* an open shard has several descriptors */

/* ---- files ---- */

static void close_oldest(struct checkpoint *c)
{
    struct shard *old = NULL;
    size_t open = 0;

    for (size_t i = 0; i < c->n_shards; i++) {
        struct shard *s = &c->shard[i];

        if (!s->file)
            continue;
        open++;
        if (!s->users && (!old || s->used < old->used))
            old = s;
    }
    if (open < OPEN_SHARDS || !old)
        return;
    file_close(old->file);
    old->file = NULL;
}

static int open_shard(struct checkpoint *c, struct shard *s, struct err *e)
{
    int r;

    close_oldest(c);
    if ((r = modeldir_file(&c->dir, s->name, &s->file, e))) {
        s->file = NULL;
        return r;
    }
    if (s->size == UINT64_MAX || file_size(s->file) == s->size)
        return 0;
    file_close(s->file);
    s->file = NULL; /* or another thread would read it */
    return err_set(e, E_DATA, "'%s/%s': changed while it was read", c->path,
                   s->name);
}

int checkpoint_shard(struct checkpoint *c, size_t i, struct file **f,
                     struct err *e)
{
    struct shard *s = &c->shard[i];
    int r = 0;

    pthread_mutex_lock(&c->lock);
    s->used = ++c->clock;
    if (!s->file)
        r = open_shard(c, s, e);
    s->users += !r;
    *f = s->file;
    pthread_mutex_unlock(&c->lock);
    return r;
}

void checkpoint_leave(struct checkpoint *c, size_t i)
{
    pthread_mutex_lock(&c->lock);
    c->shard[i].users--;
    pthread_mutex_unlock(&c->lock);
}

int checkpoint_entry(struct checkpoint *c, const struct ck_entry *en, void *buf,
                     struct err *e)
{
    struct file *f;
    int r = checkpoint_shard(c, en->shard, &f, e);

    if (r)
        return r;
    r = ck_entry_read(en, f, buf, e);
    checkpoint_leave(c, en->shard);
    return r;
}

/* ---- names ---- */

static int by_name(const void *a, const void *b, void *arg)
{
    const struct ck_tensor *t = arg;

    return strcmp(t[*(const size_t *)a].name, t[*(const size_t *)b].name);
}

/* Set t to the view of an entry. */
static void describe(struct ck_tensor *t, const struct checkpoint *c,
                     const struct ck_entry *en)
{
    t->name = en->name;
    t->dtype = en->scale ? DT_BF16 : en->dtype;
    t->ndim = en->ndim;
    memcpy(t->dims, en->dims, sizeof(t->dims));
    t->bytes = en->scale ? 2 * en->bytes : en->bytes;
    t->stored = en->bytes + (en->scale ? en->scale->bytes : 0);
    if (en->mxfp4) {
        t->bytes = 4 * en->bytes;
        t->dims[1] = 2 * en->dims[1];
    }
    if (en->pick) {
        t->bytes = en->bytes / en->dims[0] * en->n_pick;
        t->dims[0] = en->n_pick;
    }
    t->file = c->shard[en->shard].name;
    t->where = en;
}

int checkpoint_index(struct checkpoint *c, struct err *e)
{
    size_t n = c->list.count;

    free(c->tensor);
    free(c->by_name);
    c->by_name = NULL;
    c->tensor = mem_zero(n, sizeof(*c->tensor), "checkpoint", e);
    c->by_name = mem_alloc(n * sizeof(*c->by_name), "checkpoint", e);
    if (!c->tensor || !c->by_name)
        return e->code;
    for (size_t i = 0; i < n; i++) {
        describe(&c->tensor[i], c, &c->list.item[i]);
        c->by_name[i] = i;
    }
    qsort_r(c->by_name, n, sizeof(*c->by_name), by_name, c->tensor);
    for (size_t i = 1; i < n; i++) {
        const struct ck_tensor *a = &c->tensor[c->by_name[i - 1]];
        const struct ck_tensor *b = &c->tensor[c->by_name[i]];

        if (strcmp(a->name, b->name) == 0)
            return err_set(e, E_DATA,
                           "'%s': tensor '%.200s' is twice in "
                           "there: in '%.100s' and in '%.100s'",
                           c->path, a->name, a->file, b->file);
    }
    return 0;
}

const struct ck_tensor *checkpoint_find(const struct checkpoint *c,
                                        const char *name)
{
    size_t lo = 0, hi = c->list.count;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct ck_tensor *t = &c->tensor[c->by_name[mid]];
        int d = strcmp(name, t->name);

        if (!d)
            return t;
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
