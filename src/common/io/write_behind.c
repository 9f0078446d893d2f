/* write_behind.c - see write_behind.h. */
#include "common/io/write_behind.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAVE_URING
#include <liburing.h>

enum {
    CHUNK = 1 << 20,
    SLOTS = 8, /* chunks: one is being filled, the others are in flight */
    EXTEND = 32 << 20 /* bytes by which the file is extended at a time */
};

struct slot {
    char *bytes; /* CHUNK of them */
    uint64_t at; /* offset in the file */
    bool busy;
};

struct write_behind {
    struct io_uring ring;
    struct slot slot[SLOTS];
    char *memory;
    struct slot *now; /* the chunk being filled, up to `filled` */
    size_t filled;
    uint64_t at;   /* offset of `now` in the file */
    uint64_t room; /* the file was extended to this length (or should have
                    * been) */
    int fd, direct;
    int flying;
    int failed; /* -errno of the first failure */
};

static int open_direct(int fd)
{
    char self[40];

    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    return open(self, O_WRONLY | O_DIRECT | O_CLOEXEC);
}

struct write_behind *write_behind_open(int fd, uint64_t at)
{
    struct err e;
    struct write_behind *b = mem_zero(1, sizeof(*b), "write queue", &e);

    if (!b)
        return NULL;
    b->direct = open_direct(fd);
    b->memory = b->direct >= 0 ?
                    mem_pages((size_t)SLOTS * CHUNK, "write queue", &e) :
                    NULL;
    if (!b->memory || io_uring_queue_init(SLOTS, &b->ring, 0) < 0) {
        if (b->direct >= 0)
            close(b->direct);
        free(b->memory);
        free(b);
        return NULL;
    }
    for (size_t i = 0; i < SLOTS; i++)
        b->slot[i].bytes = b->memory + i * CHUNK;
    b->now = b->slot;
    b->fd = fd;
    b->at = b->room = at;
    return b;
}

static void fail(struct write_behind *b, int error)
{
    if (!b->failed)
        b->failed = error;
}

static void write_plain(struct write_behind *b, const char *p, size_t n,
                        uint64_t at)
{
    while (n && !b->failed) {
        ssize_t k = pwrite(b->fd, p, n, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) {
            fail(b, -errno);
            return;
        }
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
}

/* Completion of a chunk: missing bytes are written again. */
static void finish_chunk(struct write_behind *b, struct slot *s, int res)
{
    size_t done = res > 0 ? (size_t)res : 0;

    s->busy = false;
    b->flying--;
    if (done < CHUNK)
        write_plain(b, s->bytes + done, CHUNK - done, s->at + done);
}

/* Submit posted writes and take completions until at most `most` are in
 * flight. */
static void wait_for(struct write_behind *b, int most)
{
    struct io_uring_cqe *cqe;

    do {
        unsigned want = b->flying > most;
        int got = io_uring_submit_and_wait(&b->ring, want);

        if (got < 0 && got != -EINTR && got != -EAGAIN && got != -EBUSY) {
            fail(b, got); /* not expected once the ring has worked */
            b->flying = 0;
            return;
        }
        while (io_uring_peek_cqe(&b->ring, &cqe) == 0) {
            struct slot *s = io_uring_cqe_get_data(cqe);
            int res = cqe->res;

            io_uring_cqe_seen(&b->ring, cqe);
            finish_chunk(b, s, res);
        }
    } while (b->flying > most);
}

/* Extend the file in advance (fallocate): writes that extend it are serialized
 * by the file system.  If the disk is too full, the writes will report it. */
static void make_room(struct write_behind *b)
{
    if (b->at + CHUNK <= b->room)
        return;
    b->room = b->at + EXTEND;
    if (fallocate(b->fd, 0, (off_t)b->at, EXTEND))
        b->room = b->at + CHUNK; /* try again at the next chunk */
}

static void post(struct write_behind *b)
{
    struct io_uring_sqe *sqe;
    struct slot *s = b->now;

    make_room(b);
    /* not NULL: the ring has as many entries as there are slots */
    sqe = io_uring_get_sqe(&b->ring);
    s->at = b->at;
    s->busy = true;
    b->flying++;
    io_uring_prep_write(sqe, b->direct, s->bytes, CHUNK, s->at);
    io_uring_sqe_set_data(sqe, s);
    wait_for(b, SLOTS - 1);
    for (s = b->slot; s->busy;)
        s++;
    b->now = s;
    b->at += CHUNK;
    b->filled = 0;
}

int write_behind_write(struct write_behind *b, const void *buf, size_t n)
{
    const char *p = buf;

    while (n && !b->failed) {
        size_t k = CHUNK - b->filled < n ? CHUNK - b->filled : n;

        memcpy(b->now->bytes + b->filled, p, k);
        b->filled += k;
        p += k;
        n -= k;
        if (b->filled == CHUNK)
            post(b);
    }
    return b->failed;
}

uint64_t write_behind_there(const struct write_behind *b)
{
    uint64_t at = b->at;

    for (const struct slot *s = b->slot; s < b->slot + SLOTS; s++)
        if (s->busy && s->at < at)
            at = s->at;
    return at;
}

/* Truncate the file to `end`; a shorter one is left as it is. */
static void cut(struct write_behind *b, uint64_t end)
{
    struct stat st;

    if (fstat(b->fd, &st) ||
        ((uint64_t)st.st_size > end && ftruncate(b->fd, (off_t)end)))
        fail(b, -errno);
}

int write_behind_finish(struct write_behind *b)
{
    int rc;

    if (b->flying)
        wait_for(b, 0);
    write_plain(b, b->now->bytes, b->filled, b->at);
    if (!b->failed)
        cut(b, b->at + b->filled);
    rc = b->failed;
    write_behind_drop(b);
    return rc;
}

void write_behind_drop(struct write_behind *b)
{
    if (!b)
        return;
    if (b->flying)
        wait_for(b, 0);
    io_uring_queue_exit(&b->ring);
    close(b->direct);
    free(b->memory);
    free(b);
}
#else
struct write_behind *write_behind_open(int fd, uint64_t at)
{
    (void)fd;
    (void)at;
    return NULL;
}

/* Without liburing write_behind_open() returns NULL, so these are not
 * called. */
int write_behind_write(struct write_behind *b, const void *buf, size_t n)
{
    (void)b;
    (void)buf;
    (void)n;
    return -ENOSYS;
}

uint64_t write_behind_there(const struct write_behind *b)
{
    (void)b;
    return 0;
}

int write_behind_finish(struct write_behind *b)
{
    (void)b;
    return -ENOSYS;
}

void write_behind_drop(struct write_behind *b)
{
    (void)b;
}
#endif
