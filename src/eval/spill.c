/* spill.c - see spill.h. */
#include "eval/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int spill_open(struct spill *s, const char *dir, struct err *e)
{
    char path[PATH_MAX];

    *s = (struct spill){ -1, dir };
    if ((size_t)snprintf(path, sizeof(path), "%s/forge-eval.XXXXXX", dir) >=
        sizeof(path))
        return err_set(e, E_CREATE, "'%s': path is too long", dir);
    s->fd = mkostemp(path, O_CLOEXEC);
    if (s->fd < 0)
        return err_set(e, E_CREATE,
                       "'%s': cannot create a temporary file:", dir);
    unlink(path);
    return 0;
}

int spill_write(struct spill *s, const void *buf, size_t n, uint64_t off,
                struct err *e)
{
    const char *p = buf;

    while (n) {
        ssize_t k = pwrite(s->fd, p, n, (off_t)off);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return err_set(e, E_IO,
                           "'%s': cannot write a temporary file:", s->dir);
        p += k;
        n -= (size_t)k;
        off += (uint64_t)k;
    }
    return 0;
}

int spill_read(struct spill *s, void *buf, size_t n, uint64_t off,
               struct err *e)
{
    char *p = buf;

    while (n) {
        ssize_t k = pread(s->fd, p, n, (off_t)off);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(e, E_IO,
                           "'%s': cannot read a temporary file:", s->dir);
        if (!k)
            return err_set(e, E_BUG, "'%s': a temporary file ends early",
                           s->dir);
        p += k;
        n -= (size_t)k;
        off += (uint64_t)k;
    }
    return 0;
}

void spill_close(struct spill *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}
