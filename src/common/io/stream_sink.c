/* stream_sink.c - see stream_sink.h.
 *
 * Files are written in pieces of 256 KiB.
 *
 * For pipes, write(2) and read(2) copy under the pipe's lock, so that two
 * cores are no faster than one (3 GB/s).  Instead the writer copies into fresh
 * memory and passes references to its pages to the pipe by vmsplice(2), while
 * the reader copies out what came before (6 GB/s).  Pages that the pipe may
 * still refer to must not change, and there is no notice when it is done with
 * them (a reader may splice them on into the next pipe).  Therefore each byte
 * of the buffer is written once: the buffer is a huge page, filled and spliced
 * from front to back, then dropped from the address space by madvise(2); the
 * next write to it gets a new page.  The kernel frees the old page when its
 * last user has.
 *
 *       buf |  spliced into the pipe  | from .. to: gathered | not yet touched |
 *                                                              at most PIECE
 *
 * Where the kernel has no huge page, fresh pages cost more than they save (1.8
 * GB/s), and write(2) is used as for files. */
#include "common/io/stream_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    PIECE = 256 << 10, /* written when gathered */
    PIPE_SIZE = 1 << 20,
    HUGE_PAGE = 2 << 20,
    LINE = 64, /* cache line: a piece starts at a multiple */
};

/* Replace the buffer's memory by a fresh huge page.  False: the kernel has
 * none; if even the old page could not be dropped, buf is NULL. */
static bool renew(struct sink *s)
{
    unsigned char there = 0;

    if (madvise(s->buf, HUGE_PAGE, MADV_DONTNEED)) {
        s->buf = NULL; /* must not be written to any more */
        return false;
    }
    s->from = s->to = 0;
    *(volatile uint8_t *)s->buf = 0;
    /* whether the first touch brought in the whole huge page */
    return mincore(s->buf + HUGE_PAGE - 4096, 4096, &there) == 0 && there & 1;
}

/* Map a buffer of one huge page.  False: not available. */
static bool take_region(struct sink *s)
{
    void *p = mmap(NULL, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return false;
    s->region = p;
    s->buf = (uint8_t *)p + (-(uintptr_t)p & (HUGE_PAGE - 1));
    if (madvise(s->buf, HUGE_PAGE, MADV_HUGEPAGE) == 0 && renew(s))
        return true;
    munmap(p, 2 * HUGE_PAGE);
    s->region = s->buf = NULL;
    return false;
}

static int open_stdout(struct sink *s, struct err *e)
{
    struct stat st;

    s->name = "<stdout>";
    s->fd = 1;
    if (isatty(s->fd))
        return err_set(e, E_USAGE,
                       "standard output is a terminal: give -o FILE or a pipe");
    if (fstat(s->fd, &st) || !S_ISFIFO(st.st_mode))
        return 0;
    s->pipe = true;
    fcntl(s->fd, F_SETPIPE_SZ, PIPE_SIZE); /* a hint */
    /* an empty call: a container may forbid vmsplice */
    s->splices = vmsplice(s->fd, NULL, 0, 0) == 0 && take_region(s);
    return 0;
}

int sink_open(struct sink *s, const char *path, struct err *e)
{
    *s = (struct sink){ .fd = -1 };
    if (path && strcmp(path, "-")) {
        s->name = path;
        if (publish_create(&s->pub, path, e) < 0)
            return e->code;
    } else if (open_stdout(s, e) < 0) {
        return e->code;
    }
    if (!s->buf && !(s->buf = mem_pages(PIECE, "stream", e)))
        return e->code;
    return 0;
}

void sink_drop(struct sink *s)
{
    publish_discard(s->pub);
    if (s->region)
        munmap(s->region, 2 * HUGE_PAGE);
    else
        free(s->buf);
    *s = (struct sink){ .fd = -1 };
}

static int fail(struct sink *s, struct err *e)
{
    s->broken = true;
    return err_set(e, E_IO, "cannot write '%s':", s->name);
}

static int write_out(struct sink *s, const uint8_t *p, size_t n, struct err *e)
{
    if (s->pub) {
        if (publish_write(s->pub, p, n, e) < 0)
            s->broken = true;
        return s->broken ? e->code : 0;
    }
    while (n) {
        ssize_t k = write(s->fd, p, n < PIECE ? n : PIECE);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return fail(s, e);
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int splice_all(struct sink *s, const void *p, size_t n, struct err *e)
{
    struct iovec v = { (void *)(uintptr_t)p, n };

    while (v.iov_len) {
        ssize_t k = vmsplice(s->fd, &v, 1, 0);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return fail(s, e);
        v.iov_base = (char *)v.iov_base + k;
        v.iov_len -= (size_t)k;
    }
    return 0;
}

/* vmsplice the gathered bytes and move on behind them. */
static int splice_gathered(struct sink *s, struct err *e)
{
    if (splice_all(s, s->buf + s->from, s->to - s->from, e) < 0)
        return e->code;
    s->from = s->to = (s->to + LINE - 1) & ~(size_t)(LINE - 1);
    if (s->to == HUGE_PAGE) {
        s->splices = renew(s);
        if (!s->buf)
            return fail(s, e);
    }
    return 0;
}

int sink_flush(struct sink *s, struct err *e)
{
    size_t n = s->to - s->from;

    if (!n)
        return 0;
    if (s->splices)
        return splice_gathered(s, e);
    s->from = s->to = 0;
    return write_out(s, s->buf, n, e);
}

/* Bytes that still fit into the current piece. */
static size_t room(const struct sink *s)
{
    size_t end = s->from + PIECE;

    return (s->splices && end > HUGE_PAGE ? HUGE_PAGE : end) - s->to;
}

int sink_put(struct sink *s, const void *data, size_t n, struct err *e)
{
    const uint8_t *p = data;

    while (n) {
        size_t k = room(s);

        /* large: written without gathering */
        if (!s->splices && s->to == 0 && n >= PIECE) {
            k = n - n % PIECE;
            if (write_out(s, p, k, e) < 0)
                return e->code;
        } else {
            k = k < n ? k : n;
            memcpy(s->buf + s->to, p, k);
            s->to += k;
            if (!room(s) && sink_flush(s, e) < 0)
                return e->code;
        }
        p += k;
        n -= k;
    }
    return 0;
}

int sink_lend(struct sink *s, const void *data, size_t n, struct err *e)
{
    if (!s->splices || n < PIECE)
        return sink_put(s, data, n, e);
    return sink_flush(s, e) < 0 ? e->code : splice_all(s, data, n, e);
}

int sink_reader(const struct sink *s)
{
    return s->pub ? publish_reader(s->pub) : -1;
}

uint64_t sink_there(const struct sink *s)
{
    return s->pub ? publish_there(s->pub) : 0;
}

/* Standard output may be a file that was opened without truncation (1<>FILE):
 * truncate it behind END. */
static int cut_output(const struct sink *s, struct err *e)
{
    struct stat st;
    off_t at;

    if (s->pub || fstat(s->fd, &st) || !S_ISREG(st.st_mode))
        return 0;
    at = lseek(s->fd, 0, SEEK_CUR);
    if (at < 0 || (at < st.st_size && ftruncate(s->fd, at)))
        return err_set(e, E_IO, "cannot write '%s':", s->name);
    return 0;
}

/* The reader of a pipe, or of a socket, which some shells take for one, has its end
 * now, not when this process has freed its memory and ended: in a chain of tools each
 * would wait for that. */
static int end_pipe(const struct sink *s, struct err *e)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int rc = null < 0 ? null : dup2(null, s->fd);

    if (null >= 0)
        close(null);
    return rc < 0 ? err_set(e, E_TEMP, "cannot open '/dev/null':") : 0;
}

/* Network file systems and full disks may report errors only at close(2). */
static int close_output(struct sink *s, struct err *e)
{
    struct publish *pub = s->pub;
    struct stat st;
    int copy;

    s->pub = NULL;
    if (pub)
        return publish_commit(pub, e);
    if (!fstat(s->fd, &st) && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
        return end_pipe(s, e);
    /* 1 itself stays open, so that no other file gets its number */
    copy = dup(s->fd);
    if (copy >= 0 && close(copy))
        return err_set(e, E_IO, "cannot write '%s':", s->name);
    return 0;
}

int sink_finish(struct sink *s, struct err *e)
{
    if (sink_flush(s, e) < 0 || cut_output(s, e) < 0)
        return e->code;
    return close_output(s, e);
}
