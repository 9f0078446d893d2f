/* file.c - see file.h: reading.
 *
 * A large cold range is read by a queue of 2 MiB requests through io_uring,
 * with O_DIRECT where the file system takes it: one buffered pread(2) at a
 * time leaves most of an NVMe drive idle (0.6 GB/s against 3.8 measured).
 * What is in the page cache already is copied from there.  Every request that
 * comes back short or refused is done again by pread, so the ring can be
 * absent (and liburing, when it is compiled), and no error is reported that
 * pread does not report. */
#include "common/io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/math/threads.h"

#ifdef HAVE_URING
#include <liburing.h>
#endif

enum {
    CALL_MAX = 0x7ffff000, /* Linux transfers at most this much per call */
    ALIGN = 4096,
    CHUNK = 2 << 20,      /* a request; its memory is one huge page */
    DEPTH = 8,            /* requests in flight */
    REQUESTS = DEPTH + 1, /* one more has completed and is being copied */
    RING_FROM = 4 << 20,  /* smaller reads are one pread */
    PROBES = 4,
    GUARDED = 4 /* outputs of a tool, at most */
};

struct file {
    int fd;
    int direct; /* descriptor with O_DIRECT; -1: not tried, -2: not possible */
    uint64_t size;
    char *path;
};

static struct {
    dev_t dev;
    ino_t ino;
} guard[GUARDED];
static int guards;

void file_guard(const char *path)
{
    struct stat st;

    if (stat(path, &st) || !S_ISREG(st.st_mode) || guards == GUARDED)
        return;
    guard[guards].dev = st.st_dev;
    guard[guards++].ino = st.st_ino;
}

int file_guarded(int fd, const char *path, struct err *e)
{
    struct stat st;

    if (!guards || fstat(fd, &st))
        return 0;
    for (int i = 0; i < guards; i++)
        if (st.st_dev == guard[i].dev && st.st_ino == guard[i].ino)
            return err_set(e, E_CREATE, "'%s': is the output and an input",
                           path);
    return 0;
}

int file_from_fd(struct file **out, int fd, const char *path, struct err *e)
{
    struct file *f;
    struct stat st;

    if (fstat(fd, &st))
        return err_set(e, E_IO, "'%s':", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, E_DATA, "'%s': not a regular file", path);
    if (file_guarded(fd, path, e) < 0)
        return e->code;
    f = mem_zero(1, sizeof(*f), path, e);
    if (!f)
        return e->code;
    f->path = mem_alloc(strlen(path) + 1, path, e);
    if (!f->path) {
        free(f);
        return e->code;
    }
    strcpy(f->path, path);
    f->fd = fd;
    f->direct = -1;
    f->size = (uint64_t)st.st_size;
    *out = f;
    return 0;
}

int file_open(struct file **f, int dirfd, const char *path, struct err *e)
{
    /* O_NONBLOCK: a FIFO is refused, not waited for */
    int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return err_set(e, err_open_code(errno), "cannot open '%s':", path);
    if (file_from_fd(f, fd, path, e) < 0) {
        close(fd);
        return e->code;
    }
    return 0;
}

uint64_t file_size(const struct file *f)
{
    return f->size;
}

static int read_plain(const struct file *f, char *p, size_t n, uint64_t off,
                      struct err *e)
{
    while (n) {
        ssize_t k = pread(f->fd, p, n < CALL_MAX ? n : CALL_MAX, (off_t)off);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(e, E_IO, "cannot read '%s':", f->path);
        if (!k)
            return err_set(e, E_DATA, "'%s': the file ends early", f->path);
        p += k;
        off += (uint64_t)k;
        n -= (size_t)k;
    }
    return 0;
}

/* A large range, which is in the page cache, by all threads: copying it takes time, and
 * so do the page faults of new memory. */
struct parts {
    const struct file *f;
    char *p;
    uint64_t off;
    struct threads_error error;
};

static void read_part(void *ctx, size_t begin, size_t end)
{
    struct parts *j = ctx;
    struct err e;

    if (read_plain(j->f, j->p + begin, end - begin, j->off + begin, &e) < 0)
        threads_error_add(&j->error, begin, &e);
}

static int read_parts(const struct file *f, char *p, size_t n, uint64_t off,
                      struct err *e)
{
    struct parts j = { .f = f, .p = p, .off = off };

    threads_error_init(&j.error);
    threads_for(n, CHUNK, read_part, &j);
    return threads_error_take(&j.error, e);
}

/* ---- the queue ---- */

#ifdef HAVE_URING
/* One request in flight: file bytes [at, at + CHUNK), of which [from, to) were
 * asked for and go to dst. */
struct request {
    uint64_t at, from, to;
    char *dst;   /* destination of byte `from` */
    char *slot;  /* buffer of CHUNK bytes, aligned */
    bool placed; /* read directly into dst, which is aligned */
    bool busy;
};

/* One ring per process; a thread that finds it locked uses pread. */
static struct {
    pthread_mutex_t lock;
    int state; /* 0: not tried, 1: ready, -1: the kernel refuses */
    struct io_uring ring;
    char *slots; /* REQUESTS * CHUNK */
    struct request request[REQUESTS];
} queue = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Whether most of a few sampled pages of the range are in the page cache. */
static bool is_cached(const struct file *f, size_t n, uint64_t off)
{
    int hits = 0;
    char byte;

    for (uint64_t i = 0; i < PROBES; i++) {
        struct iovec v = { &byte, 1 };
        off_t at = (off_t)(off + i * (n - 1) / (PROBES - 1));

        hits += preadv2(f->fd, &v, 1, at, RWF_NOWAIT) == 1;
    }
    return hits > PROBES / 2;
}

/* Set up the ring at its first use; call with the lock held. */
static bool ring_ready(void)
{
    struct err e;

    if (queue.state)
        return queue.state > 0;
    queue.state = -1;
    queue.slots = mem_pages((size_t)REQUESTS * CHUNK, "read queue", &e);
    if (!queue.slots)
        return false;
    if (io_uring_queue_init(DEPTH, &queue.ring, 0) < 0) {
        free(queue.slots);
        return false;
    }
    for (size_t i = 0; i < REQUESTS; i++)
        queue.request[i].slot = queue.slots + i * CHUNK;
    queue.state = 1;
    return true;
}

static int best_fd(struct file *f)
{
    char self[40];

    if (f->direct == -1) {
        snprintf(self, sizeof(self), "/proc/self/fd/%d", f->fd);
        f->direct = open(self, O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (f->direct < 0)
            f->direct = -2;
    }
    return f->direct >= 0 ? f->direct : f->fd;
}

/* Queue the request for the chunk at `at`; [off, end) of the file is to go to
 * buf. */
static void post(int fd, uint64_t at, uint64_t off, uint64_t end, char *buf)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&queue.ring);
    struct request *q = queue.request;

    while (q->busy)
        q++; /* the caller made sure that one is free */
    q->busy = true;
    q->at = at;
    q->from = at < off ? off : at;
    q->to = at + CHUNK < end ? at + CHUNK : end;
    q->dst = buf + (q->from - off);
    q->placed =
        q->to - at == CHUNK && q->from == at && !((uintptr_t)q->dst % ALIGN);
    io_uring_prep_read(sqe, fd, q->placed ? q->dst : q->slot, CHUNK, at);
    io_uring_sqe_set_data(sqe, q);
}

/* Copy a completed request to its destination; missing bytes are read by
 * pread. */
static int finish_request(struct file *f, struct request *q, int res,
                          struct err *e)
{
    uint64_t have = q->at + (uint64_t)(res > 0 ? res : 0);

    q->busy = false;
    if (have < q->from)
        have = q->from;
    if (have > q->to)
        have = q->to;
    if (!q->placed)
        memcpy(q->dst, q->slot + (q->from - q->at), have - q->from);
    return read_plain(f, q->dst + (have - q->from), q->to - have, have, e);
}

/* Wait for a completion; NULL: the ring itself failed, which is not expected
 * once it has worked.  A signal ends the call, too: with an error, or, where it
 * has submitted requests, with their number. */
static struct request *wait_one(int *res)
{
    struct io_uring_cqe *cqe;
    struct request *q;

    do {
        int got = io_uring_submit_and_wait(&queue.ring, 1);

        if (got < 0 && got != -EINTR && got != -EAGAIN && got != -EBUSY) {
            errno = -got;
            queue.state = -1;
            return NULL;
        }
    } while (io_uring_peek_cqe(&queue.ring, &cqe) < 0);
    q = io_uring_cqe_get_data(cqe);
    *res = cqe->res;
    io_uring_cqe_seen(&queue.ring, cqe);
    return q;
}

static int read_queued(struct file *f, char *buf, size_t n, uint64_t off,
                       struct err *e)
{
    uint64_t next = off & ~(uint64_t)(ALIGN - 1), end = off + n;
    int fd = best_fd(f), flying = 0, rc = 0, res = 0;
    struct request *back = NULL; /* completed, not yet copied */

    while (next < end || flying || back) {
        for (; next < end && flying < DEPTH; flying++) {
            post(fd, next, off, end, buf);
            next += CHUNK;
        }
        if (back) { /* copied while the other requests run */
            io_uring_submit(&queue.ring);
            if (finish_request(f, back, res, e) < 0) {
                rc = e->code;
                next = end; /* post no more */
            }
        }
        back = flying ? wait_one(&res) : NULL;
        if (flying && !back)
            return err_set(e, E_IO, "cannot read '%s':", f->path);
        flying -= flying > 0;
    }
    return rc;
}

/* Read the range through the ring.  1: not done, because it is small, cached,
 * or the ring is locked or missing. */
static int read_by_ring(struct file *f, void *buf, size_t n, uint64_t off,
                        struct err *e)
{
    int rc = 1;

    if (n < RING_FROM || is_cached(f, n, off) ||
        pthread_mutex_trylock(&queue.lock))
        return 1;
    if (ring_ready())
        rc = read_queued(f, buf, n, off, e);
    pthread_mutex_unlock(&queue.lock);
    return rc;
}
#else
#define read_by_ring(f, buf, n, off, e) 1
#endif

int file_read(struct file *f, void *buf, size_t n, uint64_t off, struct err *e)
{
    int rc;

    if (off > f->size || n > f->size - off)
        return err_set(e, E_DATA, "'%s': the file ends early", f->path);
    rc = read_by_ring(f, buf, n, off, e);
    return rc == 1 ? read_parts(f, buf, n, off, e) : rc;
}

void file_prefetch(struct file *f, uint64_t off, uint64_t n)
{
    /* file_read() bypasses the page cache for larger ranges: filling it would
     * be extra work */
    if (n < RING_FROM)
        posix_fadvise(f->fd, (off_t)off, (off_t)n, POSIX_FADV_WILLNEED);
}

void file_close(struct file *f)
{
    if (!f)
        return;
    if (f->direct >= 0)
        close(f->direct);
    close(f->fd);
    free(f->path);
    free(f);
}

int file_slurp(char **text, size_t *len, const char *path, size_t max,
               struct err *e)
{
    struct file *f;
    char *p = NULL;

    if (file_open(&f, AT_FDCWD, path, e) < 0)
        return e->code;
    e->code = 0;
    if (f->size > max)
        err_set(e, E_DATA, "'%s': longer than %zu bytes", path, max);
    else if ((p = mem_alloc(f->size + 1, path, e)))
        if (file_read(f, p, f->size, 0, e) == 0) {
            p[f->size] = 0;
            *text = p;
            *len = f->size;
            file_close(f);
            return 0;
        }
    free(p);
    file_close(f);
    return e->code;
}
