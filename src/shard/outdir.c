/* outdir.c - see outdir.h. */
#include "shard/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io/file.h"
#include "checkpoint/digests.h"

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    signalled = number;
}

static void watch_signals(void)
{
    static const int watched[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction sa = { .sa_handler = on_signal }; /* no SA_RESTART */
    struct sigaction old;

    for (size_t i = 0; i < ARRAY_LEN(watched); i++)
        if (!sigaction(watched[i], NULL, &old) && old.sa_handler != SIG_IGN)
            sigaction(watched[i], &sa, NULL);
}

int outdir_signal(void)
{
    return signalled;
}

int outdir_go_on(struct err *e)
{
    return signalled ? err_set(e, E_TEMP,
                               "stopped by signal %d: nothing is "
                               "published",
                               signalled) :
                       0;
}

/* OUT must not exist or be an empty directory, which rename(2) replaces. */
static int check_target(const char *path, struct err *e)
{
    struct stat st;
    struct dirent *d;
    bool empty = true;
    DIR *dir;

    if (lstat(path, &st))
        return errno == ENOENT ? 0 : err_set(e, E_CREATE, "'%s':", path);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, E_CREATE, "'%s': exists and is no directory", path);
    dir = opendir(path);
    if (!dir)
        return err_set(e, E_CREATE, "cannot open '%s':", path);
    while (empty && (d = readdir(dir)))
        empty = !strcmp(d->d_name, ".") || !strcmp(d->d_name, "..");
    closedir(dir);
    return empty ? 0 :
                   err_set(e, E_CREATE, "'%s': exists and is not empty", path);
}

/* The mark by which outdir_collect() knows our directories; it is there until they have
 * their name. */
static const char unfinished[] = ".forge-unfinished";
static const char *const marks[] = { unfinished, NULL };

int outdir_collect(const char *path)
{
    return tmpdir_remove_stale(path, marks);
}

static int put_mark(const struct outdir *o, struct err *e)
{
    int fd =
        openat(o->tmp.lock, unfinished, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);

    if (fd < 0)
        return err_set(e, E_CREATE, "cannot create '%s':", o->path);
    close(fd);
    return 0;
}

int outdir_begin(struct outdir *o, const char *path, struct err *e)
{
    size_t n = strlen(path);
    const char *slash;

    *o =
        (struct outdir){ .digests = mem_zero(1, sizeof(*o->digests), path, e) };
    if (!o->digests)
        return e->code;
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (!n)
        return err_set(e, E_USAGE, "OUT is empty");
    o->path = mem_text(path, n, "path", e);
    if (!o->path || check_target(o->path, e))
        return e->code;
    slash = strrchr(o->path, '/');
    o->parent =
        slash ?
            mem_text(o->path, slash > o->path ? (size_t)(slash - o->path) : 1,
                     "path", e) :
            mem_text(".", 1, "path", e);
    if (!o->parent)
        return e->code;
    outdir_collect(o->path);
    if (tmpdir_make(&o->tmp, o->path, e) || put_mark(o, e))
        return e->code;
    watch_signals();
    return 0;
}

char *outdir_file(const struct outdir *o, const char *name, struct err *e)
{
    size_t cap = strlen(o->tmp.path) + strlen(name) + 2;
    char *p = mem_alloc(cap, "path", e);

    if (p)
        snprintf(p, cap, "%s/%s", o->tmp.path, name);
    return p;
}

/* Make the directory of DIR/FILE, if it is not there. */
static int make_directory(const struct outdir *o, const char *name,
                          struct err *e)
{
    const char *slash = strchr(name, '/');
    char *dir = slash ? mem_text(name, (size_t)(slash - name), name, e) : NULL;
    int rc = 0;

    if (!slash)
        return 0;
    if (!dir)
        return e->code;
    if (mkdirat(o->tmp.lock, dir, 0777) && errno != EEXIST)
        rc = err_set(e, E_CREATE, "cannot create '%s/%s':", o->tmp.path, dir);
    free(dir);
    return rc;
}

int outdir_text(const struct outdir *o, const char *name, const char *text,
                size_t len, struct err *e)
{
    char *path = outdir_file(o, name, e), hex[SHA256_HEX + 1];
    int rc = path ? make_directory(o, name, e) : e->code;

    if (!rc)
        rc = publish_text(path, text, len, e);
    free(path);
    if (rc || sha256_of(text, len, hex, e))
        return e->code;
    return digests_add(o->digests, name, hex, e);
}

int outdir_rename(const struct outdir *o, const char *from, const char *to,
                  struct err *e)
{
    return renameat(o->tmp.lock, from, o->tmp.lock, to) ?
               err_set(e, E_CREATE, "cannot rename '%s' to '%s':", from, to) :
               0;
}

int outdir_commit(struct outdir *o, struct err *e)
{
    mode_t mask = umask(0);
    int rc;

    umask(mask);
    if (outdir_go_on(e))
        return e->code;
    if (chmod(o->tmp.path, 0777 & ~mask))
        return err_set(e, E_CREATE,
                       "cannot set the mode of '%s':", o->tmp.path);
    if (publish_sync_dir(o->tmp.path, e))
        return e->code;
    if (rename(o->tmp.path, o->path))
        return err_set(e, E_CREATE, "cannot rename to '%s':", o->path);
    rc = unlinkat(o->tmp.lock, unfinished, 0);
    tmpdir_renamed(&o->tmp);
    if (rc)
        return err_set(e, E_IO, "cannot remove a file of '%s':", o->path);
    return publish_sync_dir(o->parent, e);
}

void outdir_release(struct outdir *o)
{
    tmpdir_release(&o->tmp);
    free(o->path);
    free(o->parent);
    if (o->digests)
        digests_release(o->digests);
    free(o->digests);
    *o = (struct outdir){ 0 };
}
