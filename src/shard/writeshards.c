/* writeshards.c - see writeshards.h. */
#include "shard/writeshards.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "checkpoint/digests.h"
#include "common/io/file.h"
#include "common/io/hash.h"
#include "common/math/threads.h"

enum { PIECE = 8 << 20 };

/* All shards. */
struct job {
    const struct shard_plan *plan;
    const struct collection *c;
    const struct outdir *o;
    const char *metadata;
    struct progress *progress;
    pthread_mutex_t lock;        /* guards progress */
    char (*hex)[SHA256_HEX + 1]; /* [plan->n] */
    atomic_bool failed;          /* the first shard that does: others stop */
    struct threads_error error;
};

/* A run of bytes of a shard. */
struct piece {
    char *data; /* [PIECE] */
    size_t n;   /* 0: behind the last byte */
};

/* What is copied of one shard. */
struct copy {
    struct job *job;
    const struct shard *shard;
    size_t tensor;      /* the next byte to read: of which tensor, */
    uint64_t at;        /* and where in it */
    XXH3_state_t *xxh3; /* of that tensor so far */
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
    struct job *j = k->job;

    t->xxh3 = XXH3_64bits_digest(k->xxh3);
    if (stream_payload_check(j->c->in[t->input], t->source, t->xxh3, &k->err))
        return k->err.code;
    XXH3_64bits_reset(k->xxh3);
    k->tensor++;
    k->at = 0;
    pthread_mutex_lock(&j->lock);
    progress_step(j->progress, t->name, t->bytes);
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

        k->rc = stream_payload_piece(k->job->c->in[t->input], t->source, k->at,
                                     p->data + p->n, n, &k->err);
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
    return rc;
}

static int write_shard(struct job *j, size_t i, struct err *e)
{
    const struct shard *s = &j->plan->shard[i];
    struct copy k = { .job = j, .shard = s };
    char *path = outdir_file(j->o, s->name, e);
    struct publish *out;
    int rc = path ? publish_create(&out, path, e) : e->code;

    free(path);
    if (rc)
        return rc;
    rc = copy_shard(&k, out, j->hex[i], e);
    if (rc)
        publish_discard(out);
    return rc ? rc : publish_commit(out, e);
}

static void write_some(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    struct err e;

    for (size_t i = begin; i < end && !atomic_load(&j->failed); i++)
        if (write_shard(j, i, &e) && !atomic_exchange(&j->failed, true))
            threads_error_add(&j->error, i, &e);
}

int write_shards(const struct shard_plan *plan, const struct collection *c,
                 const struct outdir *o, const char *metadata,
                 struct progress *progress, struct err *e)
{
    size_t n = (size_t)plan->n;
    struct job j = { .plan = plan,
                     .c = c,
                     .o = o,
                     .metadata = metadata,
                     .progress = progress,
                     .lock = PTHREAD_MUTEX_INITIALIZER };
    int rc;

    j.hex = mem_zero(n, sizeof(*j.hex), "digests", e);
    if (!j.hex)
        return e->code;
    threads_error_init(&j.error);
    threads_for(n, 1, write_some, &j);
    rc = threads_error_take(&j.error, e);
    for (size_t i = 0; i < n && !rc; i++)
        rc = digests_add(o->digests, plan->shard[i].name, j.hex[i], e);
    free(j.hex);
    return rc;
}
