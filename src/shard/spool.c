/* spool.c - see spool.h.
 *
 * Payloads begin at multiples of BLOCK, so that spool_drop() gives all of each
 * back. */
#include "shard/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/io/hash.h"

enum { BLOCK = 4096 };

struct spool {
    int fd;
    uint64_t begin, end; /* of the payload that is being written */
    XXH3_state_t *hash;
};

/* A file in dir that has lost its name. */
static int open_nameless(const char *dir, struct err *e)
{
    char path[PATH_MAX];
    int fd;

    if ((size_t)snprintf(path, sizeof(path), "%s/stdin", dir) >= sizeof(path))
        return err_set(e, E_CREATE, "'%s': the path is too long", dir);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, E_CREATE, "cannot create '%s':", path);
    if (!unlink(path))
        return fd;
    err_set(e, E_CREATE, "cannot remove '%s':", path);
    close(fd);
    return e->code;
}

int spool_open(struct spool **s, const char *dir, struct err *e)
{
    *s = mem_zero(1, sizeof(**s), "spool", e);
    if (!*s)
        return e->code;
    (*s)->fd = -1;
    (*s)->hash = XXH3_createState();
    if (!(*s)->hash)
        return err_set(e, E_TEMP, "XXH3: out of memory");
    XXH3_64bits_reset((*s)->hash);
    (*s)->fd = open_nameless(dir, e);
    return (*s)->fd < 0 ? e->code : 0;
}

int spool_add(struct spool *s, const void *buf, size_t n, struct err *e)
{
    const char *p = buf;

    XXH3_64bits_update(s->hash, buf, n);
    while (n) {
        ssize_t k = pwrite(s->fd, p, n, (off_t)s->end);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(e, E_IO, "cannot write what comes from '<stdin>':");
        p += k;
        n -= (size_t)k;
        s->end += (uint64_t)k;
    }
    return 0;
}

uint64_t spool_end(struct spool *s, uint64_t *hash)
{
    uint64_t at = s->begin;

    *hash = XXH3_64bits_digest(s->hash);
    XXH3_64bits_reset(s->hash);
    s->begin = s->end = (s->end + BLOCK - 1) / BLOCK * BLOCK;
    return at;
}

int spool_read(const struct spool *s, uint64_t at, void *buf, size_t n,
               struct err *e)
{
    char *p = buf;

    while (n) {
        ssize_t k = pread(s->fd, p, n, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return err_set(e, E_IO, "cannot read what came from '<stdin>':");
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return 0;
}

void spool_drop(const struct spool *s, uint64_t at, uint64_t n)
{
    n = (n + BLOCK - 1) / BLOCK * BLOCK;
    if (n) /* without holes, the file keeps its size */
        (void)!fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         (off_t)at, (off_t)n);
}

void spool_close(struct spool *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    XXH3_freeState(s->hash);
    free(s);
}
