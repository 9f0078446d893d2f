/* tmpdir.c - see tmpdir.h. */
#include "common/io/tmpdir.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* EMPTY: the mode of a directory that has no mark in it yet, which nobody else
 * gives. */
enum { TRIES = 100, EMPTY = S_ISVTX | S_IRWXU };

static int open_directory(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

/* Whether `path` is still the directory fd: another process may have removed
 * it as a leftover before the lock was taken. */
static bool is_there(const char *path, int fd)
{
    struct stat a, b;

    return !stat(path, &a) && !fstat(fd, &b) && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

int tmpdir_make(struct tmpdir *t, const char *path, struct err *e)
{
    size_t cap = strlen(path) + 48;

    *t = (struct tmpdir){ mem_alloc(cap, "path", e), -1 };
    if (!t->path)
        return e->code;
    for (int i = 0; i < TRIES; i++) {
        snprintf(t->path, cap, "%s.tmp.%ld.XXXXXX", path, (long)getpid());
        if (!mkdtemp(t->path))
            break;
        (void)!chmod(t->path, EMPTY);
        t->lock = open_directory(AT_FDCWD, t->path);
        /* without locks (some network file systems) leftovers are not told
         * apart */
        if (t->lock >= 0)
            (void)!flock(t->lock, LOCK_EX);
        if (t->lock >= 0 && is_there(t->path, t->lock))
            return 0;
        if (t->lock >= 0)
            close(t->lock);
        t->lock = -1;
    }
    free(t->path);
    t->path = NULL;
    return err_set(e, E_CREATE, "cannot create '%s':", path);
}

/* Call each(fd, name) for all that the directory fd has. */
static void for_each(int fd, void (*each)(int fd, const char *name))
{
    int copy = open_directory(fd, ".");
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *f;

    if (!d && copy >= 0)
        close(copy);
    while (d && (f = readdir(d)))
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0)
            each(fd, f->d_name);
    if (d)
        closedir(d);
}

/* Fails for a directory. */
static void remove_file(int fd, const char *name)
{
    unlinkat(fd, name, 0);
}

/* Remove a file, or a directory, no symbolic link, with its files.  One that has
 * directories stays: we make none such. */
static void remove_entry(int fd, const char *name)
{
    int in;

    if (!unlinkat(fd, name, 0) || (in = open_directory(fd, name)) < 0)
        return;
    for_each(in, remove_file);
    close(in);
    unlinkat(fd, name, AT_REMOVEDIR);
}

static void empty_directory(int fd)
{
    for_each(fd, remove_entry);
}

void tmpdir_renamed(struct tmpdir *t)
{
    if (t->path)
        close(t->lock);
    free(t->path);
    *t = (struct tmpdir){ NULL, -1 };
}

void tmpdir_release(struct tmpdir *t)
{
    if (t->path) {
        empty_directory(t->lock);
        rmdir(t->path);
    }
    tmpdir_renamed(t);
}

bool tmpdir_suffix(const char *rest, long *pid)
{
    char *end;

    if (strncmp(rest, ".tmp.", 5) != 0 || !isdigit((unsigned char)rest[5]))
        return false;
    *pid = strtol(rest + 5, &end, 10);
    if (*end++ != '.' || strlen(end) != 6)
        return false;
    for (; *end; end++)
        if (!isalnum((unsigned char)*end))
            return false;
    return true;
}

static bool is_marked(int fd, const char *const *marks)
{
    struct stat st;

    for (; *marks; marks++)
        if (!fstatat(fd, *marks, &st, AT_SYMLINK_NOFOLLOW) &&
            S_ISREG(st.st_mode))
            return true;
    return false;
}

/* Whether it has a mark, or may be empty before its maker gave it one. */
static bool is_ours(int fd, const char *const *marks)
{
    struct stat st;

    return is_marked(fd, marks) ||
           (!fstat(fd, &st) && (st.st_mode & 07777) == EMPTY);
}

/* A directory in use is locked. */
static bool remove_one(int parent, const char *name, const char *const *marks)
{
    int fd = open_directory(parent, name);
    bool removed = false;

    if (fd >= 0 && is_ours(fd, marks) && !flock(fd, LOCK_EX | LOCK_NB)) {
        if (is_marked(fd, marks))
            empty_directory(fd);
        removed = !unlinkat(parent, name, AT_REMOVEDIR);
    }
    if (fd >= 0)
        close(fd);
    return removed;
}

int tmpdir_remove_stale(const char *path, const char *const *marks)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char parent[PATH_MAX];
    struct dirent *f;
    int n = 0;
    long pid;
    DIR *d;

    snprintf(parent, sizeof(parent), "%.*s",
             slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    d = opendir(parent);
    while (d && (f = readdir(d)))
        if (!strncmp(f->d_name, base, strlen(base)) &&
            tmpdir_suffix(f->d_name + strlen(base), &pid))
            n += remove_one(dirfd(d), f->d_name, marks);
    if (d)
        closedir(d);
    return n;
}
