/* input.c - see input.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokens/input.h"

#include "common/io/file.h"

int input_open(struct input *s, const char *path, struct err *e)
{
    struct stat st;

    *s = (struct input){ .name = path && strcmp(path, "-") ? path : NULL };
    if (s->name)
        s->fd = open(s->name, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0)
        return err_set(e, err_open_code(errno), "cannot open '%s':", s->name);
    if (!s->name)
        s->name = "<stdin>";
    if (!fstat(s->fd, &st) && S_ISDIR(st.st_mode)) {
        input_close(s);
        return err_set(e, E_NOINPUT, "'%s' is a directory", s->name);
    }
    return file_guarded(s->fd, s->name, e);
}

void input_close(struct input *s)
{
    if (s->fd > 0)
        close(s->fd);
    s->fd = -1;
    sha256_close(s->digest);
    s->digest = NULL;
    free(s->data);
    s->data = NULL;
}

/* Room for more of n bytes, in steps: n may be a header's claim. */
static int grow(struct input *s, size_t n, struct err *e)
{
    size_t cap = n + n / 2, step = 2 * s->cap + 65536;

    if (cap > step)
        cap = step;
    if (mem_grow(&s->data, cap, "input", e) < 0)
        return e->code;
    s->cap = cap;
    return 0;
}

int input_fill(struct input *s, size_t n, struct err *e)
{
    while (s->len < n && !s->ended) {
        ssize_t got;

        if (s->len == s->cap && grow(s, n, e) < 0)
            return e->code;
        got = read(s->fd, s->data + s->len, s->cap - s->len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(e, E_IO, "cannot read:");
        if (!got)
            s->ended = true;
        if (s->digest)
            sha256_add(s->digest, s->data + s->len, (size_t)got);
        s->len += (size_t)got;
    }
    return 0;
}

void input_drop(struct input *s, size_t n)
{
    if (!n)
        return;
    memmove(s->data, s->data + n, s->len - n);
    s->len -= n;
    s->at += n;
}

void input_drain(struct input *s)
{
    struct stat st;
    ssize_t got = 1;
    char buf[65536];

    if (s->ended || fstat(s->fd, &st) ||
        (!S_ISFIFO(st.st_mode) && !(S_ISREG(st.st_mode) && s->digest)))
        return;
    while (got > 0 || (got < 0 && errno == EINTR)) {
        got = read(s->fd, buf, sizeof(buf));
        if (s->digest && got > 0)
            sha256_add(s->digest, buf, (size_t)got);
    }
}
