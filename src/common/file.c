/* file.c - see file.h: reading. */
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux moves at most this much in a call. */
enum { CALL_MAX = 0x7ffff000 };

struct file {
    int fd;
    uint64_t size;
    char *path;
};

int file_from_fd(struct file **out, int fd, const char *path, struct err *e)
{
    struct file *f;
    struct stat st;

    if (fstat(fd, &st))
        return err_set(e, E_IO, "'%s':", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, E_DATA, "'%s': not a regular file", path);
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

int file_read(struct file *f, void *buf, size_t n, uint64_t off, struct err *e)
{
    char *p = buf;

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

void file_ahead(struct file *f, uint64_t off, uint64_t n)
{
    posix_fadvise(f->fd, (off_t)off, (off_t)n, POSIX_FADV_WILLNEED);
}

void file_close(struct file *f)
{
    if (!f)
        return;
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
