/* publish.c - see file.h: a file under its final name is complete.
 *
 * The directory is fsynced after rename(2): without that, ext4 lost a file in
 * a power cut right after the tool had reported success. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io/file.h"
#include "common/io/write_behind.h"

/* From this size on writes are asynchronous; a multiple of 1 MiB. */
enum { PLAIN = 4 << 20 };

struct publish {
    char *path;
    const char *base; /* last component of path, looked up in dirfd */
    char *tmp;        /* temporary name in dirfd */
    int dirfd;        /* -1: path is a device or a pipe, written directly */
    int fd;
    bool named; /* the file has the name tmp */
    uint64_t written;
    bool may_queue; /* asynchronous writing has not been tried yet */
    struct write_behind *behind; /* asynchronous writer, from PLAIN bytes on;
                                  * NULL: write(2) */
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

/* Open the directory of the file before anything is written: an unusable path
 * fails early. */
static int open_directory(struct publish *p, struct err *e)
{
    char *slash = strrchr(p->path, '/'), *dir = p->path;
    char keep = 0;

    p->base = slash ? slash + 1 : p->path;
    /* terminate the path there for a moment; "/" stays "/" */
    if (slash) {
        keep = slash[slash == dir];
        slash[slash == dir] = 0;
    }
    p->dirfd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (slash)
        slash[slash == dir] = keep;
    return p->dirfd >= 0 ? 0 :
                           err_set(e, E_CREATE, "cannot create '%s':", p->path);
}

static int make_name(struct publish *p, struct err *e)
{
    size_t cap = strlen(p->base) + 40;

    p->tmp = mem_alloc(cap, p->path, e);
    if (!p->tmp)
        return e->code;
    snprintf(p->tmp, cap, "%s.tmp.%ld.", p->base, (long)getpid());
    return 0;
}

/* Call make(p) with names until one is free. */
static int with_free_name(struct publish *p, int (*make)(struct publish *p))
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    char *suffix = p->tmp + strlen(p->tmp);
    unsigned char r[6];

    for (int tries = 0; tries < 100; tries++) {
        if (getrandom(r, sizeof(r), 0) != (ssize_t)sizeof(r))
            memset(r, tries, sizeof(r));
        for (size_t i = 0; i < sizeof(r); i++)
            suffix[i] = letters[r[i] & 31];
        suffix[sizeof(r)] = 0;
        if (make(p) == 0) {
            p->named = true;
            return 0;
        }
        if (errno != EEXIST)
            break;
    }
    return -1;
}

static int create_named(struct publish *p)
{
    p->fd = openat(p->dirfd, p->tmp,
                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return p->fd >= 0 ? 0 : -1;
}

static void own_link(const struct publish *p, char *buf, size_t cap)
{
    snprintf(buf, cap, "/proc/self/fd/%d", p->fd);
}

static int link_named(struct publish *p)
{
    char self[40];

    own_link(p, self, sizeof(self));
    return linkat(AT_FDCWD, self, p->dirfd, p->tmp, AT_SYMLINK_FOLLOW);
}

/* Open a file without a name if the file system can: a killed process then
 * leaves nothing. */
static int open_temporary(struct publish *p, struct err *e)
{
    char self[40];

    if (open_directory(p, e) < 0 || make_name(p, e) < 0)
        return e->code;
    p->fd = openat(p->dirfd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (p->fd >= 0) {
        own_link(p, self, sizeof(self));
        if (access(self, F_OK) == 0)
            return 0;
        close(p->fd); /* without /proc it cannot be linked to a name */
    }
    if (with_free_name(p, create_named))
        return err_set(e, E_CREATE, "cannot create '%s':", p->path);
    return 0;
}

int publish_create(struct publish **out, const char *path, struct err *e)
{
    struct publish *p = mem_zero(1, sizeof(*p), path, e);
    struct stat st;
    int rc;

    if (!p)
        return e->code;
    p->fd = p->dirfd = -1;
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
    p->may_queue = p->dirfd >= 0;
    *out = p;
    return 0;
}

static int write_plain(struct publish *p, const char *b, size_t n,
                       struct err *e)
{
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

static int write_error(const struct publish *p, int rc, struct err *e)
{
    errno = -rc;
    return rc ? err_set(e, E_IO, "cannot write '%s':", p->path) : 0;
}

int publish_write(struct publish *p, const void *buf, size_t n, struct err *e)
{
    const char *b = buf;

    if (p->may_queue && p->written < PLAIN) {
        size_t k = PLAIN - p->written < n ? PLAIN - p->written : n;

        if (write_plain(p, b, k, e) < 0)
            return e->code;
        b += k;
        n -= k;
    }
    if (p->may_queue && n) {
        p->behind = write_behind_open(p->fd, p->written);
        p->may_queue = false;
    }
    if (!p->behind)
        return write_plain(p, b, n, e);
    p->written += n;
    return write_error(p, write_behind_write(p->behind, b, n), e);
}

int publish_reader(const struct publish *p)
{
    char self[40];

    if (p->dirfd < 0)
        return -1;
    own_link(p, self, sizeof(self));
    return open(self, O_RDONLY | O_CLOEXEC);
}

uint64_t publish_there(const struct publish *p)
{
    return p->behind ? write_behind_there(p->behind) : p->written;
}

static int sync_dir(int fd, const char *path, struct err *e)
{
    if (fsync(fd) && errno != EINVAL) /* EINVAL: the file system has no fsync
                                       * for directories */
        return err_set(e, E_IO, "cannot sync the directory of '%s':", path);
    return 0;
}

int publish_sync_dir(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

    if (fd < 0)
        return err_set(e, E_IO, "cannot open '%s':", path);
    rc = sync_dir(fd, path, e);
    close(fd);
    return rc;
}

/* Whether the file has its name after all: NFS may report an error for a
 * rename whose reply was lost. */
static bool arrived(const struct publish *p, const struct stat *ours)
{
    struct stat st;

    return fstatat(p->dirfd, p->base, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           st.st_ino == ours->st_ino && st.st_dev == ours->st_dev;
}

static int close_checked(struct publish *p, struct err *e)
{
    int fd = p->fd;

    p->fd = -1;
    if (close(fd)) /* network file systems may report write errors here */
        return err_set(e, E_IO, "cannot write '%s':", p->path);
    return 0;
}

static int finish_queue(struct publish *p, struct err *e)
{
    struct write_behind *b = p->behind;

    p->behind = NULL;
    return b ? write_error(p, write_behind_finish(b), e) : 0;
}

int publish_rewrite(struct publish *p, const void *buf, size_t n, uint64_t off,
                    struct err *e)
{
    const char *b = buf;

    if (p->dirfd < 0)
        return 0;
    if (finish_queue(p, e) < 0)
        return e->code;
    while (n) {
        ssize_t k = pwrite(p->fd, b, n, (off_t)off);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return err_set(e, E_IO, "cannot write '%s':", p->path);
        b += k;
        n -= (size_t)k;
        off += (uint64_t)k;
    }
    return 0;
}

static int commit(struct publish *p, struct err *e)
{
    struct stat st;

    if (p->dirfd < 0)
        return close_checked(p, e);
    if (finish_queue(p, e) < 0)
        return e->code;
    if (fsync(p->fd))
        return err_set(e, E_IO, "cannot write '%s':", p->path);
    if (fstat(p->fd, &st))
        return err_set(e, E_IO, "cannot check '%s':", p->path);
    if ((uint64_t)st.st_size != p->written)
        return err_set(e, E_IO, "'%s': %llu bytes were written, %llu are there",
                       p->path, (unsigned long long)p->written,
                       (unsigned long long)st.st_size);
    if (!p->named && with_free_name(p, link_named))
        return err_set(e, E_CREATE, "cannot create '%s':", p->path);
    if (close_checked(p, e) < 0)
        return e->code;
    if (renameat(p->dirfd, p->tmp, p->dirfd, p->base) && !arrived(p, &st))
        return err_set(e, E_CREATE, "cannot rename to '%s':", p->path);
    p->named = false;
    return sync_dir(p->dirfd, p->path, e);
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
    write_behind_drop(p->behind);
    if (p->fd >= 0)
        close(p->fd);
    if (p->named)
        unlinkat(p->dirfd, p->tmp, 0);
    if (p->dirfd >= 0)
        close(p->dirfd);
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

int file_in_place(int *out, const char *path, int flags, struct err *e)
{
    /* O_NONBLOCK: a FIFO is refused, not waited for */
    int fd =
        open(path, flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
    struct stat st;

    if (fd < 0 && errno != ELOOP && errno != ENXIO)
        return err_set(e, E_CREATE, "'%s': cannot be written to:", path);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            close(fd);
        return err_set(e, E_CREATE, "'%s': not a regular file", path);
    }
    *out = fd;
    return 0;
}
