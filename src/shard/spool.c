/* spool.c - see spool.h. */
#include "shard/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "shard/outdir.h"

enum { CHUNK = 1 << 20 };

static int write_all(int fd, const char *buf, size_t n, const char *path,
                     struct err *e)
{
    while (n) {
        ssize_t k = write(fd, buf, n);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(e, E_IO, "cannot write '%s':", path);
        buf += k;
        n -= (size_t)k;
    }
    return 0;
}

static int copy(int fd, char *buf, const char *path, struct err *e)
{
    for (;;) {
        ssize_t n;

        if (outdir_go_on(e))
            return e->code;
        n = read(0, buf, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, E_IO, "cannot read '<stdin>':");
        if (!n)
            return 0;
        if (write_all(fd, buf, (size_t)n, path, e))
            return e->code;
    }
}

int spool_stdin(const char *path, struct err *e)
{
    char *buf;
    int fd, rc;

    if (isatty(0))
        return err_set(e, E_USAGE,
                       "standard input is a terminal: want a "
                       "stream or FILE");
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, E_CREATE, "cannot create '%s':", path);
    fcntl(0, F_SETPIPE_SZ, CHUNK); /* fewer, larger reads; may be refused */
    buf = mem_alloc(CHUNK, "spool", e);
    rc = buf ? copy(fd, buf, path, e) : e->code;
    free(buf);
    if (close(fd) && !rc)
        rc = err_set(e, E_IO, "cannot write '%s':", path);
    return rc;
}
