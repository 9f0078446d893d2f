/* publish.c - see file.h: a file under its final name is complete.
 *
 * rename(2) alone lost a file in a power cut on ext4 right after the tool had
 * said that it was done; with the directory fsynced too it was whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"

struct publish {
    char *path, *tmp; /* tmp NULL: path is a device or a pipe, written to */
    int fd;
    uint64_t written;
};

static int open_special(struct publish *p, const struct stat *st, struct err *e)
{
    if (S_ISDIR(st->st_mode))
        return err_set(e, E_CREATE, "'%s': is a directory", p->path);
    p->fd = open(p->path, O_WRONLY | O_CLOEXEC);
    if (p->fd < 0)
        return err_set(e, E_CREATE, "cannot open '%s':", p->path);
    return 0;
}

static int open_temporary(struct publish *p, struct err *e)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    size_t cap = strlen(p->path) + 40;
    unsigned char r[6];
    char suffix[7] = "";

    p->tmp = mem_alloc(cap, p->path, e);
    if (!p->tmp)
        return e->code;
    for (int tries = 0; tries < 100; tries++) {
        if (getrandom(r, sizeof(r), 0) != (ssize_t)sizeof(r))
            memset(r, tries, sizeof(r)); /* O_EXCL makes it unique */
        for (size_t i = 0; i < sizeof(r); i++)
            suffix[i] = letters[r[i] & 31];
        snprintf(p->tmp, cap, "%s.tmp.%ld.%s", p->path, (long)getpid(), suffix);
        p->fd = open(
            p->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (p->fd >= 0 || errno != EEXIST)
            break;
    }
    if (p->fd < 0) {
        err_set(e, E_CREATE, "cannot create '%s':", p->path);
        free(p->tmp);
        p->tmp = NULL;
        return e->code;
    }
    return 0;
}

int publish_create(struct publish **out, const char *path, struct err *e)
{
    struct publish *p = mem_zero(1, sizeof(*p), path, e);
    struct stat st;
    int rc;

    if (!p)
        return e->code;
    p->fd = -1;
    p->path = mem_alloc(strlen(path) + 1, path, e);
    if (!p->path) {
        free(p);
        return e->code;
    }
    strcpy(p->path, path);
    rc = stat(path, &st) == 0 && !S_ISREG(st.st_mode) ?
             open_special(p, &st, e) :
             open_temporary(p, e);
    if (rc < 0) {
        publish_discard(p);
        return rc;
    }
    *out = p;
    return 0;
}

int publish_write(struct publish *p, const void *buf, size_t n, struct err *e)
{
    const char *b = buf;

    while (n) {
        ssize_t k = write(p->fd, b, n < (1 << 20) ? n : 1 << 20);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(e, E_IO, "cannot write '%s':", p->path);
        b += k;
        n -= (size_t)k;
        p->written += (uint64_t)k;
    }
    return 0;
}

int publish_sync_dir(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;

    if (fd < 0)
        return err_set(e, E_IO, "cannot open '%s':", path);
    if (fsync(fd) && errno != EINVAL) /* some file systems know no such thing */
        rc = err_set(e, E_IO, "cannot sync '%s':", path);
    close(fd);
    return rc;
}

static int sync_parent(const struct publish *p, struct err *e)
{
    char *dir = mem_alloc(strlen(p->path) + 2, p->path, e);
    char *slash;
    int rc;

    if (!dir)
        return e->code;
    strcpy(dir, p->path);
    slash = strrchr(dir, '/');
    if (!slash)
        strcpy(dir, ".");
    else
        slash[slash == dir] = 0;
    rc = publish_sync_dir(dir, e);
    free(dir);
    return rc;
}

/* NFS may say that a rename failed when only the answer was lost. */
static bool arrived(const struct publish *p, const struct stat *ours)
{
    struct stat st;

    return stat(p->path, &st) == 0 && st.st_ino == ours->st_ino &&
           st.st_dev == ours->st_dev;
}

static int commit(struct publish *p, struct err *e)
{
    struct stat st;
    int fd = p->fd;

    if (p->tmp && fsync(fd))
        return err_set(e, E_IO, "cannot write '%s':", p->path);
    if (p->tmp && fstat(fd, &st))
        return err_set(e, E_IO, "cannot check '%s':", p->path);
    p->fd = -1;
    if (close(fd)) /* a network file system may speak up only here */
        return err_set(e, E_IO, "cannot write '%s':", p->path);
    if (!p->tmp)
        return 0;
    if ((uint64_t)st.st_size != p->written)
        return err_set(e, E_IO, "'%s': %llu bytes were written, %llu are there",
                       p->path, (unsigned long long)p->written,
                       (unsigned long long)st.st_size);
    if (rename(p->tmp, p->path) && !arrived(p, &st))
        return err_set(e, E_CREATE, "cannot rename to '%s':", p->path);
    free(p->tmp);
    p->tmp = NULL; /* nothing is left to remove */
    return sync_parent(p, e);
}

int publish_commit(struct publish *p, struct err *e)
{
    int rc = commit(p, e);

    publish_discard(p);
    return rc;
}

void publish_discard(struct publish *p)
{
    if (!p)
        return;
    if (p->fd >= 0)
        close(p->fd);
    if (p->tmp)
        unlink(p->tmp);
    free(p->tmp);
    free(p->path);
    free(p);
}

int publish_text(const char *path, const char *text, size_t len, struct err *e)
{
    struct publish *p;

    if (publish_create(&p, path, e) < 0)
        return e->code;
    if (publish_write(p, text, len, e) < 0) {
        publish_discard(p);
        return e->code;
    }
    return publish_commit(p, e);
}
