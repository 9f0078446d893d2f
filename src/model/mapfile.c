/* mapfile.c - see moe.h: memory that lies in a file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/moe.h"

static int map(struct mapfile *f, int fd, size_t bytes, const char *dir,
               struct err *e)
{
    /* room is taken now: a full disk must not become a SIGBUS later */
    int rc = posix_fallocate(fd, 0, (off_t)bytes);

    if (rc) {
        errno = rc;
        return err_set(e, E_CREATE,
                       "'%s': no room for a temporary file of "
                       "%zu bytes:",
                       dir, bytes);
    }
    f->p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (f->p == MAP_FAILED) {
        f->p = NULL;
        return err_set(e, E_CREATE, "'%s': cannot map a temporary file:", dir);
    }
    f->bytes = bytes;
    return 0;
}

int mapfile_open(struct mapfile *f, const char *dir, size_t bytes,
                 struct err *e)
{
    char path[PATH_MAX];
    int fd, rc;

    *f = (struct mapfile){ 0 };
    if (snprintf(path, sizeof(path), "%s/forge.XXXXXX", dir) >=
        (int)sizeof(path))
        return err_set(e, E_CREATE, "'%.64s...': path is too long", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return err_set(e, E_CREATE,
                       "'%s': cannot create a temporary file:", dir);
    unlink(path);
    rc = map(f, fd, bytes ? bytes : 1, dir, e);
    close(fd);
    return rc;
}

void mapfile_close(struct mapfile *f)
{
    if (f->p)
        munmap(f->p, f->bytes);
    *f = (struct mapfile){ 0 };
}
