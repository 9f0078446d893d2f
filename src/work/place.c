/* place.c - see place.h. */
#include "work/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/io/file.h"
#include "common/io/tmpdir.h"
#include "work/place_names.h"
#include "work/settings.h"

static const char mark_kept[] =
    "This is a work directory of forge(1), which removes what it made here.\n";
static const char mark_temporary[] =
    "This is a temporary work directory of forge(1), removed when all is "
    "done.\n";

enum { MARK_MAX = 4096, DAY = 86400, WAIT_MS = 2000, STEP_MS = 20 };

/* ---- directories ---- */

/* Open a directory, not through a symbolic link. */
static DIR *open_dir(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (!d && fd >= 0)
        close(fd);
    return d;
}

static bool dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Remove a checkpoint that a run made in WORK, or a part of one. */
static bool remove_flat(int at, const char *name)
{
    DIR *d = open_dir(at, name);
    struct dirent *f;

    while (d && (f = readdir(d)))
        if (!dots(f->d_name))
            unlinkat(dirfd(d), f->d_name, 0);
    if (d)
        closedir(d);
    return !unlinkat(at, name, AT_REMOVEDIR);
}

void place_drop(const char *checkpoint)
{
    remove_flat(AT_FDCWD, checkpoint);
}

/* Remove the files of a stage's subdirectory, and the subdirectory if it is
 * then empty (true). */
static bool remove_stage(int at, const char *name, enum place_where where)
{
    DIR *d = open_dir(at, name);
    struct dirent *f;
    long pid;

    while (d && (f = readdir(d))) {
        const char *rest = place_made(f->d_name, where);

        if (rest && (!*rest || tmpdir_suffix(rest, &pid)))
            unlinkat(dirfd(d), f->d_name, 0);
    }
    if (d)
        closedir(d);
    return !unlinkat(at, name, AT_REMOVEDIR);
}

/* Whether the process that made the file may still be running; on another host:
 * for a day after the last write. */
static bool in_use(int at, const char *name, const char *host, long pid)
{
    char here[256] = "";
    struct stat st;

    gethostname(here, sizeof(here) - 1);
    if (*host && !strcmp(host, here))
        return !kill((pid_t)pid, 0) || errno == EPERM;
    if (!*host && (!kill((pid_t)pid, 0) || errno == EPERM))
        return true;
    return !fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) &&
           time(NULL) - st.st_mtime < DAY;
}

/* Whether these are the states from which the next layer's Hessians were made, which are
 * there: a step that was killed has not removed them. */
static bool is_passed(int at, const char *name)
{
    int64_t layer;
    char next[64];

    if (!place_hidden(name, &layer))
        return false;
    snprintf(next, sizeof(next), "hessian-%lld.fts", (long long)layer + 1);
    return !faccessat(at, next, F_OK, 0);
}

/* Note the first file that cannot be removed, for its error in errno.  A directory in
 * which something of the user's lies stays, and so does a link to one. */
static bool stays(struct err *e, const char *dir, const char *name)
{
    if (e && !e->code && errno != ENOENT && errno != ENOTEMPTY &&
        errno != ENOTDIR)
        err_set(e, E_CREATE, "'%s/%s': cannot be removed:", dir, name);
    return false;
}

/* dir: the path of `at`. */
static int64_t collect_in(int at, const char *dir, enum place_where where,
                          bool all, struct err *e)
{
    DIR *d = open_dir(at, ".");
    struct dirent *f;
    int64_t n = 0;

    while (d && (f = readdir(d))) {
        const char *rest = place_made(f->d_name, where);
        const char *whole =
            where == IN_TOP ? place_checkpoint(f->d_name) : NULL;
        char host[256] = "";
        long pid = 0;
        bool ours = (rest && tmpdir_suffix(rest, &pid)) ||
                    (whole && tmpdir_suffix(whole, &pid)) ||
                    place_status(f->d_name, host, &pid);

        ours |= all && where == IN_CALIB && is_passed(at, f->d_name);
        if (!ours || (!all && in_use(at, f->d_name, host, pid)))
            continue;
        n += (whole ? remove_flat(at, f->d_name) :
                      !unlinkat(at, f->d_name, 0)) ||
             stays(e, dir, f->d_name);
    }
    if (d)
        closedir(d);
    return n;
}

/* ---- the mark ---- */

static int path_in(char path[PATH_MAX], const char *dir, const char *name,
                   struct err *e)
{
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        return err_set(e, E_CREATE, "'%.200s...': path is too long", dir);
    return 0;
}

/* 1: dir has a mark; *temporary: of a temporary directory; 0: it has none. */
static int read_mark(const char *dir, bool *temporary)
{
    char path[PATH_MAX], *text;
    struct stat st;
    struct err e;
    size_t len;
    int found;

    if (path_in(path, dir, PLACE_MARK, &e) || lstat(path, &st) ||
        !S_ISREG(st.st_mode) || file_slurp(&text, &len, path, MARK_MAX, &e))
        return 0;
    *temporary = !strcmp(text, mark_temporary);
    found = *temporary || !strcmp(text, mark_kept);
    free(text);
    return found;
}

static bool is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    bool empty = d != NULL;

    while (d && empty && (f = readdir(d)))
        empty = dots(f->d_name);
    if (d)
        closedir(d);
    return empty;
}

void place_existing(char path[PATH_MAX])
{
    struct stat st;

    while (stat(path, &st) && strrchr(path, '/')) {
        char *slash = strrchr(path, '/');

        if (slash == path) {
            strcpy(path, "/");
            return;
        }
        *slash = 0;
    }
}

int place_check(const char *dir, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    bool temporary;

    if (path_in(path, dir, PLACE_MARK, e))
        return e->code;
    if (stat(dir, &st)) {
        if (errno != ENOENT)
            return err_set(e, E_CREATE, "'%s': cannot be created:", dir);
        snprintf(path, sizeof(path), "%s", dir);
        place_existing(path);
        return access(path, W_OK | X_OK) || stat(path, &st) ||
                       !S_ISDIR(st.st_mode) ?
                   err_set(e, E_CREATE, "'%s': cannot be created in '%s'", dir,
                           path) :
                   0;
    }
    if (!S_ISDIR(st.st_mode))
        return err_set(e, E_CREATE, "'%s': is no directory", dir);
    if (!read_mark(dir, &temporary) && !is_empty(dir))
        return err_set(e, E_CREATE,
                       "'%s': is not empty, and no work directory of forge: "
                       "name another with --work",
                       dir);
    if (access(dir, W_OK | X_OK))
        return err_set(e, E_CREATE, "'%s': cannot be written to:", dir);
    return 0;
}

static int make_parents(const char *dir, struct err *e)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s", dir);
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(path, 0777) && errno != EEXIST)
            return err_set(e, E_CREATE, "'%s': cannot be created:", path);
        *p = '/';
    }
    return 0;
}

/* Whether the file at `path`, open as `lock`, is locked now.  Not if another forge, which
 * had the lock, removed it, and the directory, at its end. */
static bool locks(int lock, const char *path)
{
    struct stat here, there;

    return !flock(lock, LOCK_EX | LOCK_NB) && !fstat(lock, &here) &&
           !stat(path, &there) && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
}

static int take_lock(struct place *p, bool wait, struct err *e)
{
    char path[PATH_MAX];
    const struct timespec step = { 0, STEP_MS * 1000000 };

    if (path_in(path, p->dir, "lock", e))
        return e->code;
    /* not O_CLOEXEC: steps inherit the lock, so it is held until the last has
     * ended */
    if (file_in_place(&p->lock, path, O_RDWR, e) < 0)
        return e->code;
    for (int ms = 0; !locks(p->lock, path); ms += STEP_MS) {
        if (!wait || ms >= WAIT_MS) {
            close(p->lock);
            p->lock = -1;
            return err_set(e, E_TEMP, "'%s': another forge works there",
                           p->dir);
        }
        nanosleep(&step, NULL);
    }
    return 0;
}

/* E_CREATE: a name that forge gives is that of something else than a file: of a link, whose
 * target a step would overwrite, or of a FIFO, for which it would wait. */
static int only_files(const char *dir, enum place_where where, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    int rc = 0;

    while (d && !rc && (f = readdir(d))) {
        const char *rest = place_made(f->d_name, where);
        int stage = where == IN_TOP ? place_stage(f->d_name) : -1;
        char path[PATH_MAX];
        struct stat st;

        if (stage < 0 && (!rest || *rest))
            continue;
        rc = path_in(path, dir, f->d_name, e);
        if (!rc && stage >= 0)
            rc = only_files(path, (enum place_where)stage, e);
        else if (!rc && !lstat(path, &st) && !S_ISREG(st.st_mode))
            rc = err_set(e, E_CREATE, "'%s': not a regular file", path);
    }
    if (d)
        closedir(d);
    return rc;
}

static int put_mark(const char *dir, bool temporary, struct err *e)
{
    const char *text = temporary ? mark_temporary : mark_kept;
    char path[PATH_MAX];

    return path_in(path, dir, PLACE_MARK, e) ?
               e->code :
               publish_text(path, text, strlen(text), e);
}

/* Create dir by renaming, so that it appears with its mark in it: an empty
 * directory would be taken for the user's. */
static int make_temporary(const char *dir, struct err *e)
{
    static const char *const marks[] = { PLACE_MARK, NULL };
    mode_t mask = umask(0);
    struct tmpdir t;
    int rc;

    umask(mask);
    tmpdir_remove_stale(dir, marks);
    if (tmpdir_make(&t, dir, e) < 0)
        return e->code;
    rc = put_mark(t.path, true, e);
    if (!rc && !chmod(t.path, 0777 & ~mask) && !rename(t.path, dir))
        tmpdir_renamed(&t);
    else if (!rc && errno != ENOTEMPTY && errno != EEXIST)
        rc = err_set(e, E_CREATE, "'%s': cannot be created:", dir);
    tmpdir_release(&t); /* if another forge was first, take_lock() decides */
    return rc;
}

int place_open(struct place *p, const char *dir, bool keep, struct err *e)
{
    struct stat st;

    *p = (struct place){ .dir = dir, .lock = -1 };
    if (place_check(dir, e) < 0 || make_parents(dir, e) < 0)
        return e->code;
    if (!keep && lstat(dir, &st) && make_temporary(dir, e) < 0)
        return e->code;
    if (keep && mkdir(dir, 0777) && errno != EEXIST)
        return err_set(e, E_CREATE, "'%s': cannot be created:", dir);
    if (!read_mark(dir, &p->temporary) || (keep && p->temporary)) {
        p->temporary = false;
        if (put_mark(dir, false, e) < 0)
            return e->code;
    }
    if (take_lock(p, true, e) < 0)
        return e->code;
    if (only_files(dir, IN_TOP, e) < 0)
        place_close(p);
    return p->lock < 0 ? e->code : 0;
}

int place_visit(struct place *p, const char *dir, bool *running, struct err *e)
{
    struct stat st;

    *p = (struct place){ .dir = dir, .lock = -1 };
    if (stat(dir, &st))
        return settings_none(dir, errno, e);
    if (!S_ISDIR(st.st_mode) || !read_mark(dir, &p->temporary))
        return settings_none(dir, 0, e);
    *running = take_lock(p, false, e) == E_TEMP;
    return 0;
}

int64_t place_collect(const struct place *p, bool all, struct err *e)
{
    int at = open(p->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = at < 0 ? NULL : open_dir(at, ".");
    struct dirent *f;
    int64_t n = at < 0 ? 0 : collect_in(at, p->dir, IN_TOP, all, e);

    while (d && (f = readdir(d))) {
        int stage = place_stage(f->d_name), fd;

        if (stage < 0)
            continue;
        fd = openat(at, f->d_name,
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0) {
            struct err no_path;
            char path[PATH_MAX];

            if (path_in(path, p->dir, f->d_name, &no_path) < 0)
                path[0] = 0;
            n += collect_in(fd, path, (enum place_where)stage, all, e);
            close(fd);
        }
    }
    if (d)
        closedir(d);
    if (at >= 0)
        close(at);
    return n;
}

int64_t place_collect_passing(const char *dir)
{
    DIR *d = open_dir(AT_FDCWD, dir);
    struct dirent *f;
    int64_t n = 0;

    while (d && (f = readdir(d))) {
        const char *rest = place_made(f->d_name, IN_PASSING);

        if (rest && !*rest)
            n += !unlinkat(dirfd(d), f->d_name, 0);
    }
    if (d)
        closedir(d);
    return n;
}

static bool is_kept(const char *name, const char *const *kept)
{
    for (; *kept; kept++)
        if (!strcmp(name, *kept))
            return true;
    return false;
}

int64_t place_forget(const struct place *p, const char *const *kept,
                     struct err *e)
{
    DIR *d = opendir(p->dir);
    struct dirent *f;
    int64_t n = 0;

    while (d && (f = readdir(d))) {
        int stage = place_stage(f->d_name);
        const char *whole = place_checkpoint(f->d_name);

        if (is_kept(f->d_name, kept))
            continue;
        if (stage >= 0)
            n += remove_stage(dirfd(d), f->d_name, (enum place_where)stage) ||
                 stays(e, p->dir, f->d_name);
        else if (whole && !*whole)
            n +=
                remove_flat(dirfd(d), f->d_name) || stays(e, p->dir, f->d_name);
    }
    if (d)
        closedir(d);
    return n;
}

void place_remove(const struct place *p)
{
    static const char *const none[] = { NULL };
    DIR *d;
    struct dirent *f;

    place_collect(p, true, NULL);
    place_forget(p, none, NULL);
    d = opendir(p->dir);
    while (d && (f = readdir(d))) {
        const char *rest = place_made(f->d_name, IN_TOP);

        /* the mark last, so that the rest of an interrupted removal is still
         * forge's */
        if (rest && !*rest && strcmp(f->d_name, PLACE_MARK) != 0)
            unlinkat(dirfd(d), f->d_name, 0);
    }
    if (d) {
        unlinkat(dirfd(d), PLACE_MARK, 0);
        closedir(d);
    }
    if (rmdir(p->dir))
        warning("'%s': not removed, others' files are in it", p->dir);
}

void place_remove_unused(const struct place *p)
{
    static const char *const begun[] = { PLACE_MARK, PLACE_TEXT, "lock", NULL };
    DIR *d = p->temporary ? opendir(p->dir) : NULL;
    struct dirent *f;
    bool unused = d != NULL;

    while (unused && (f = readdir(d)))
        unused = dots(f->d_name) || is_kept(f->d_name, begun);
    if (d)
        closedir(d);
    if (unused)
        place_remove(p);
}

void place_close(struct place *p)
{
    if (p->lock >= 0)
        close(p->lock);
    p->lock = -1;
}
