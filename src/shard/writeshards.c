/* writeshards.c - see writeshards.h. */
#include "shard/writeshards.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/digests.h"
#include "common/io/file.h"
#include "common/io/hash.h"
#include "common/math/threads.h"

enum { PIECE = 8 << 20 };

struct shard_writer {
    struct shard_plan *plan;
    const struct collection *c;
    const struct outdir *o;
    const char *metadata;
    struct progress *progress;
    pthread_mutex_t lock; /* guards progress */
    int begun;            /* shards [0, begun) are written, or being written */
    atomic_bool failed;   /* the first shard that does: others stop */
    struct threads_error error;
    struct threads_task task; /* writes one shard */
    struct shard *shard;
    atomic_bool busy;
};

/* A run of bytes of a shard. */
struct piece {
    char *data; /* [PIECE] */
    size_t n;   /* 0: behind the last byte */
};

/* What is copied of one shard. */
struct copy {
    struct shard_writer *job;
    const struct shard *shard;
    size_t tensor;      /* the next byte to read: of which tensor, */
    uint64_t at;        /* and where in it */
    XXH3_state_t *xxh3; /* of that tensor so far */
    struct held held;   /* ... or all of it */
    struct piece piece[2];
    struct piece *next;  /* read_piece() fills it */
    struct piece *ready; /* hashed and written */
    int rc;              /* of read_piece() */
    struct err err;
    struct sha256 *sha;
};

/* The tensor has been read: check it. */
static int end_tensor(struct copy *k, struct out_tensor *t)
{
    struct shard_writer *j = k->job;

    if (collect_check(j->c, t, XXH3_64bits_digest(k->xxh3), &k->err))
        return k->err.code;
    XXH3_64bits_reset(k->xxh3);
    k->tensor++;
    k->at = 0;
    pthread_mutex_lock(&j->lock);
    progress_step(j->progress, t->stored, t->bytes);
    pthread_mutex_unlock(&j->lock);
    return 0;
}

/* Fill *k->next with the bytes that follow, of as many tensors as there is room
 * for. */
static void read_piece(void *ctx)
{
    struct copy *k = ctx;
    struct piece *p = k->next;

    p->n = 0;
    while (!k->rc && p->n < PIECE && k->tensor < k->shard->n) {
        struct out_tensor *t = &k->shard->first[k->tensor];
        uint64_t left = t->bytes - k->at;
        size_t n = left < PIECE - p->n ? (size_t)left : PIECE - p->n;

        k->rc = collect_read(k->job->c, t, k->at, p->data + p->n, n, &k->held,
                             &k->err);
        if (k->rc)
            return;
        XXH3_64bits_update(k->xxh3, p->data + p->n, n);
        p->n += n;
        k->at += n;
        if (k->at == t->bytes)
            k->rc = end_tensor(k, t);
    }
}

static void hash_piece(void *ctx)
{
    struct copy *k = ctx;

    sha256_add(k->sha, k->ready->data, k->ready->n);
}

static int write_header(struct copy *k, struct publish *out, struct err *e)
{
    char *header;
    size_t len;
    int rc;

    if (shard_header(k->shard, k->job->metadata, &header, &len, e))
        return e->code;
    sha256_add(k->sha, header, len);
    rc = publish_write(out, header, len, e);
    free(header);
    return rc;
}

/* Write one piece while it is hashed and the next one is read, until there is none. */
static int write_pieces(struct copy *k, struct publish *out, struct err *e)
{
    struct threads_task reading = { 0 }, hashing = { 0 };
    int rc = 0;

    read_piece(k);
    while (!rc && !k->rc && k->next->n) {
        struct piece *ready = k->next;

        if (outdir_go_on(e))
            return e->code;
        if (atomic_load(&k->job->failed))
            return err_set(e, E_TEMP, "another shard failed");
        k->next = k->ready;
        k->ready = ready;
        threads_start(&reading, read_piece, k);
        threads_start(&hashing, hash_piece, k);
        rc = publish_write(out, ready->data, ready->n, e);
        threads_join(&hashing);
        threads_join(&reading);
    }
    if (!rc && k->rc)
        *e = k->err;
    return rc ? rc : k->rc;
}

static int copy_shard(struct copy *k, struct publish *out,
                      char hex[SHA256_HEX + 1], struct err *e)
{
    int rc = 0;

    for (int i = 0; i < 2 && !rc; i++) {
        k->piece[i].data = mem_pages(PIECE, k->shard->name, e);
        rc = k->piece[i].data ? 0 : e->code;
    }
    k->next = &k->piece[0];
    k->ready = &k->piece[1];
    k->xxh3 = XXH3_createState();
    if (!rc && !k->xxh3)
        rc = err_set(e, E_TEMP, "XXH3: out of memory");
    if (!rc)
        rc = sha256_open(&k->sha, e);
    if (!rc) {
        XXH3_64bits_reset(k->xxh3);
        rc = write_header(k, out, e);
    }
    if (!rc)
        rc = write_pieces(k, out, e);
    if (!rc)
        sha256_hex(k->sha, hex);
    sha256_close(k->sha);
    XXH3_freeState(k->xxh3);
    free(k->piece[0].data);
    free(k->piece[1].data);
    free(k->held.data);
    return rc;
}

/* What came through the pipe is in the shard now. */
static void drop(const struct shard_writer *w, const struct shard *s)
{
    for (size_t i = 0; w->c->spool && i < s->n; i++)
        if (s->first[i].input < 0 && !s->first[i].from)
            spool_drop(w->c->spool, s->first[i].source, s->first[i].bytes);
}

static int write_shard(struct shard_writer *w, struct shard *s, struct err *e)
{
    struct copy k = { .job = w, .shard = s };
    char *path = outdir_file(w->o, s->name, e);
    struct publish *out;
    int rc = path ? publish_create(&out, path, e) : e->code;

    free(path);
    if (rc)
        return rc;
    rc = copy_shard(&k, out, s->sha256, e);
    if (rc)
        publish_discard(out);
    else
        rc = publish_commit(out, e);
    if (!rc)
        drop(w, s);
    return rc;
}

static void write_one(struct shard_writer *w, struct shard *s, size_t number)
{
    struct err e;

    if (write_shard(w, s, &e) && !atomic_exchange(&w->failed, true))
        threads_error_add(&w->error, number, &e);
}

/* ---- one shard beside other work ---- */

static void write_beside(void *ctx)
{
    struct shard_writer *w = ctx;

    write_one(w, w->shard, 0);
    atomic_store(&w->busy, false);
}

int shard_writer_open(struct shard_writer **w, struct shard_plan *plan,
                      const struct collection *c, const struct outdir *o,
                      struct progress *progress, struct err *e)
{
    *w = mem_zero(1, sizeof(**w), "shards", e);
    if (!*w)
        return e->code;
    (*w)->plan = plan;
    (*w)->c = c;
    (*w)->o = o;
    (*w)->progress = progress;
    pthread_mutex_init(&(*w)->lock, NULL);
    threads_error_init(&(*w)->error);
    return 0;
}

int shard_writer_go_on(struct shard_writer *w, const char *metadata,
                       struct err *e)
{
    if (atomic_load(&w->busy))
        return 0;
    threads_join(&w->task);
    if (atomic_load(&w->failed))
        return threads_error_take(&w->error, e);
    if (w->begun == w->plan->n)
        return 0;
    w->metadata = metadata;
    w->shard = w->plan->shard[w->begun++];
    atomic_store(&w->busy, true);
    threads_start(&w->task, write_beside, w);
    return 0;
}

/* ---- all others at once ---- */

static void write_some(void *ctx, size_t begin, size_t end)
{
    struct shard_writer *w = ctx;

    for (size_t i = begin; i < end && !atomic_load(&w->failed); i++)
        write_one(w, w->plan->shard[(size_t)w->begun + i], i);
}

int shard_writer_finish(struct shard_writer *w, const char *metadata,
                        struct err *e)
{
    int rc;

    threads_join(&w->task);
    w->metadata = metadata;
    w->progress->total = shard_plan_tensors(w->plan);
    threads_for((size_t)(w->plan->n - w->begun), 1, write_some, w);
    w->begun = w->plan->n;
    rc = threads_error_take(&w->error, e);
    shard_plan_settle(w->plan);
    for (int i = 0; i < w->plan->n && !rc; i++) {
        struct shard *s = w->plan->shard[i];
        char name[SHARD_NAME_MAX];

        shard_plan_name(w->plan, i, name);
        rc = outdir_rename(w->o, s->name, name, e);
        strcpy(s->name, name);
        if (!rc)
            rc = digests_add(w->o->digests, s->name, s->sha256, e);
    }
    return rc;
}

void shard_writer_close(struct shard_writer *w)
{
    if (!w)
        return;
    atomic_store(&w->failed, true);
    threads_join(&w->task);
    free(w);
}
