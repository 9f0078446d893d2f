/* stream_source.c - see stream_source.h. */
#include "common/io/stream_source.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    WINDOW = 64 << 10,
    PIPE_SIZE = 1 << 20,
    DIRECT = 1 << 20 /* a read of a file this large bypasses the window */
};

static int open_fd(struct source *s, const char *path, struct err *e)
{
    if (path && strcmp(path, "-")) {
        s->name = path;
        s->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (s->fd < 0)
            return err_set(e, err_open_code(errno), "cannot open '%s':", path);
        return 0;
    }
    s->name = "<stdin>";
    s->fd = 0;
    if (isatty(0))
        return err_set(e, E_USAGE,
                       "standard input is a terminal: give FILE or a pipe");
    return 0;
}

/* Decide by the type of s->fd how it is read. */
static int look(struct source *s, struct err *e)
{
    struct stat st;
    off_t at;

    if (fstat(s->fd, &st))
        return err_set(e, E_NOINPUT, "cannot open '%s':", s->name);
    if (S_ISDIR(st.st_mode))
        return err_set(e, E_NOINPUT, "'%s': is a directory", s->name);
    s->window = mem_pages(WINDOW, s->name, e);
    if (!s->window)
        return e->code;
    if (S_ISREG(st.st_mode)) {
        /* another program may have read a part: { read x; tool; } < file */
        at = lseek(s->fd, 0, SEEK_CUR);
        s->at = at > 0 ? (uint64_t)at : 0;
        if (file_from_fd(&s->file, s->fd, s->name, e) < 0)
            return e->code;
        s->fd = -1;
        return 0;
    }
    fcntl(s->fd, F_SETPIPE_SZ, PIPE_SIZE); /* a hint */
    return 0;
}

int source_open(struct source *s, const char *path, struct err *e)
{
    *s = (struct source){ .fd = -1 };
    return open_fd(s, path, e) < 0 ? e->code : look(s, e);
}

int source_from_fd(struct source *s, int fd, const char *name, struct err *e)
{
    *s = (struct source){ .fd = fd, .name = name };
    return look(s, e);
}

static int before_wait(struct source *s, struct err *e)
{
    struct pollfd p = { .fd = s->fd, .events = POLLIN };

    return s->idle && poll(&p, 1, 0) == 0 ? s->idle(s->idle_arg, e) : 0;
}

/* Read 1..n bytes; *got = 0 at the end of the input. */
static int read_some(struct source *s, void *buf, size_t n, size_t *got,
                     struct err *e)
{
    ssize_t k;

    if (s->file) {
        uint64_t size = file_size(s->file);
        uint64_t left = s->at < size ? size - s->at : 0;

        *got = left < n ? (size_t)left : n;
        return file_read(s->file, buf, *got, s->at, e);
    }
    if (before_wait(s, e) < 0)
        return e->code;
    do
        k = read(s->fd, buf, n);
    while (k < 0 && errno == EINTR);
    if (k < 0)
        return err_set(e, E_IO, "cannot read '%s':", s->name);
    *got = (size_t)k;
    return 0;
}

int source_read(struct source *s, void *buf, size_t n, size_t *got,
                struct err *e)
{
    uint8_t *p = buf;
    size_t done = 0, k;

    if (s->file && n >= DIRECT)
        /* bytes in the window are read again, directly and aligned */
        s->from = s->to = 0; /* what is in the window is read again, aligned */
    while (done < n) {
        if (s->from == s->to && n - done >= WINDOW) {
            if (read_some(s, p + done, n - done, &k, e) < 0)
                return e->code;
        } else {
            if (s->from == s->to) {
                s->from = s->to = 0;
                if (read_some(s, s->window, WINDOW, &s->to, e) < 0)
                    return e->code;
            }
            k = s->to - s->from < n - done ? s->to - s->from : n - done;
            memcpy(p + done, s->window + s->from, k);
            s->from += k;
        }
        if (!k)
            break;
        done += k;
        s->at += k;
    }
    if (got)
        *got = done;
    return done == n ? 0 : err_set(e, E_DATA, "input ends early");
}

bool source_wait(struct source *s, int other)
{
    struct pollfd p[] = { { .fd = s->fd, .events = POLLIN },
                          { .fd = other, .events = POLLIN } };

    if (s->file || s->from != s->to)
        return true;
    while (poll(p, ARRAY_LEN(p), -1) < 0)
        if (errno != EINTR)
            return true; /* the next read will report the error */
    return p[0].revents;
}

int source_skip(struct source *s, uint64_t n, struct err *e)
{
    if (n > source_left(s))
        return err_set(e, E_DATA, "input ends early");
    s->at += n;
    s->from = n < s->to - s->from ? s->from + n : s->to;
    return 0;
}

uint64_t source_left(const struct source *s)
{
    uint64_t size = s->file ? file_size(s->file) : 0;

    return size > s->at ? size - s->at : 0;
}

void source_close(struct source *s)
{
    file_close(s->file);
    if (s->fd > 0)
        close(s->fd);
    free(s->window);
    *s = (struct source){ .fd = -1 };
}
