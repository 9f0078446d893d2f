/* modeldir.c - opening files beneath a directory, symbolic links included, and what
 * it is called. */
#include "common/io/modeldir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* O_NONBLOCK: opening a FIFO must not wait for a writer. */
enum { OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK };

int modeldir_open(struct modeldir *d, const char *path, struct err *e)
{
    *d = (struct modeldir){ .path = path };
    d->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd < 0)
        return err_set(e, err_open_code(errno), "'%s': cannot open:", path);
    return 0;
}

void modeldir_close(struct modeldir *d)
{
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
}

/* Whether name[n] is one component, as modeldir_name_ok() says. */
static bool component_ok(const char *name, size_t n)
{
    if (!n || n > NAME_MAX || name[0] == '-' || name[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == '/')
            return false;
    return true;
}

bool modeldir_name_ok(const char *name, const char *suffix)
{
    size_t n = strlen(name), s = strlen(suffix);

    return n > s && !strcmp(name + n - s, suffix) && component_ok(name, n);
}

bool modeldir_path_ok(const char *name)
{
    size_t n = strcspn(name, "/");
    const char *file = name + n + 1; /* if there is a slash */

    return component_ok(name, n) &&
           (!name[n] || component_ok(file, strlen(file)));
}

bool modeldir_has(const struct modeldir *d, const char *name)
{
    struct stat st;

    return fstatat(d->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Where the Hugging Face cache has its files, from a directory of it. */
static const char *blobs_of(const struct modeldir *d)
{
    return d->within ? "../../../blobs" : "../../blobs";
}

/* The HASH of a link target "../../blobs/HASH", 40 (git) to 64 (SHA-256)
 * hexadecimal digits; NULL: another target. */
static const char *cache_blob(const struct modeldir *d, const char *target)
{
    const char *blobs = blobs_of(d), *hash = target + strlen(blobs) + 1;
    size_t n;

    if (strncmp(target, blobs, strlen(blobs)) != 0 || hash[-1] != '/')
        return NULL;
    n = strspn(hash, "0123456789abcdef");
    return n >= 40 && n <= 64 && !hash[n] ? hash : NULL;
}

static int open_blob(const struct modeldir *d, const char *hash)
{
    int fd, blobs = openat(d->fd, blobs_of(d),
                           O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (blobs < 0)
        return -1;
    fd = openat(blobs, hash, OPEN_FLAGS | O_NOFOLLOW);
    close(blobs);
    return fd;
}

static int open_beneath(const struct modeldir *d, const char *name)
{
    struct open_how how = { .flags = OPEN_FLAGS,
                            .resolve =
                                RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };

    return (int)syscall(SYS_openat2, d->fd, name, &how, sizeof(how));
}

/* Open `name`, which is a symbolic link. */
static int open_link(const struct modeldir *d, const char *name, struct err *e)
{
    char target[4096];
    ssize_t n = readlinkat(d->fd, name, target, sizeof(target) - 1);
    const char *hash;
    int fd;

    if (n < 0)
        return err_set(e, err_open_code(errno),
                       "'%s/%s': cannot read the link:", d->path, name);
    target[n] = '\0';
    hash = cache_blob(d, target);
    fd = hash ? open_blob(d, hash) : open_beneath(d, name);
    if (fd >= 0)
        return fd;
    if (errno == EXDEV || errno == ENOSYS || errno == EPERM)
        return err_set(e, E_DATA,
                       "'%s/%s': a symbolic link to '%.100s', out of the "
                       "directory",
                       d->path, name, target);
    return err_set(e, err_open_code(errno),
                   "'%s/%s': cannot open what it links to, '%.100s':", d->path,
                   name, target);
}

/* *fd = the directory `name` of d. */
static int open_within(const struct modeldir *d, const char *name, int *fd,
                       struct err *e)
{
    *fd = openat(d->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (*fd >= 0)
        return 0;
    if (errno == ENOTDIR || errno == ELOOP)
        return err_set(e, E_DATA, "'%s/%s': not a directory", d->path, name);
    return err_set(e, err_open_code(errno), "'%s/%s': cannot open:", d->path,
                   name);
}

int modeldir_list(const struct modeldir *d, const char *name,
                  struct dirent ***list, int *n, struct err *e)
{
    int fd, rc = open_within(d, name, &fd, e);

    if (rc)
        return rc;
    *n = scandirat(fd, ".", list, NULL, alphasort);
    if (*n < 0)
        rc = err_set(e, err_open_code(errno), "cannot list '%s/%s':", d->path,
                     name);
    close(fd);
    return rc;
}

/* Open FILE of d, one component. */
static int open_file(const struct modeldir *d, const char *name,
                     struct file **f, struct err *e)
{
    char path[4096];
    struct stat st;
    int fd = openat(d->fd, name, OPEN_FLAGS | O_NOFOLLOW);

    if (fd < 0 && errno == ELOOP)
        fd = open_link(d, name, e);
    else if (fd < 0)
        err_set(e, errno == ENXIO ? E_DATA : err_open_code(errno),
                "'%s/%s': cannot open:", d->path, name);
    if (fd < 0)
        return e->code;
    snprintf(path, sizeof(path), "%s/%s", d->path, name);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return err_set(e, E_DATA, "'%s': not a regular file", path);
    }
    return file_from_fd(f, fd, path, e);
}

int modeldir_file(const struct modeldir *d, const char *name, struct file **f,
                  struct err *e)
{
    const char *slash = strchr(name, '/');
    char path[4096];
    struct modeldir in = { .path = path, .within = true };
    char *dir;
    int rc;

    if (!slash)
        return open_file(d, name, f, e);
    dir = mem_text(name, (size_t)(slash - name), name, e);
    if (!dir)
        return e->code;
    snprintf(path, sizeof(path), "%s/%s", d->path, dir);
    rc = open_within(d, dir, &in.fd, e);
    free(dir);
    if (rc)
        return rc;
    rc = open_file(&in, slash + 1, f, e);
    modeldir_close(&in);
    return rc;
}

int modeldir_read(const char *dir, const char *name, size_t max, char **text,
                  size_t *len, struct err *e)
{
    struct modeldir d;
    int rc = modeldir_open(&d, dir, e);

    if (rc)
        return rc;
    rc = modeldir_slurp(&d, name, max, text, len, e);
    modeldir_close(&d);
    return rc;
}

int modeldir_slurp(const struct modeldir *d, const char *name, size_t max,
                   char **text, size_t *len, struct err *e)
{
    struct file *f;
    uint64_t size;
    int r = modeldir_file(d, name, &f, e);

    if (r)
        return r;
    size = file_size(f);
    *text = NULL;
    if (size > max)
        r = err_set(e, E_DATA, "'%s/%s': %llu bytes, more than %zu", d->path,
                    name, (unsigned long long)size, max);
    else if (!(*text = mem_alloc(size + 1, name, e)))
        r = e->code;
    else if (!(r = file_read(f, *text, size, 0, e)))
        (*text)[size] = '\0';
    file_close(f);
    if (r) {
        free(*text);
        *text = NULL;
        return r;
    }
    *len = size;
    return 0;
}

/* ---- names ---- */

/* ".../models--ORG--NAME/snapshots/REVISION": "ORG/NAME" */
static bool cached_name(char *to, size_t cap, const char *path)
{
    const char *org = strstr(path, "/models--"), *name, *end;

    org = org ? org + strlen("/models--") : NULL;
    name = org ? strstr(org, "--") : NULL;
    end = name ? strstr(name, "/snapshots/") : NULL;
    if (!end)
        return false;
    snprintf(to, cap, "%.*s/%.*s", (int)(name - org), org,
             (int)(end - name - 2), name + 2);
    return true;
}

void path_title(char *to, size_t cap, const char *path)
{
    size_t n = strlen(path), begin;

    if (cached_name(to, cap, path))
        return;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (begin = n; begin && path[begin - 1] != '/';)
        begin--;
    snprintf(to, cap, "%.*s", (int)(n - begin), path + begin);
}
