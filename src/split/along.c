/* along.c - see along.h. */
#include "split/along.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };

struct along {
    const char *files;
    int out;
    int64_t next; /* the layer that is to be written */
    char *piece;  /* PIECE bytes */
    pthread_t thread;
    struct err err;

    pthread_mutex_t lock;
    pthread_cond_t news;
    /* Guarded: the layer that the tool is writing or has written last; -1: none yet. */
    int64_t layer;
    int fd; /* the layer's, -1: none, or the thread has taken it */
    uint64_t there;
    bool whole, closing;
};

void layer_path(const char *files, int64_t layer, char path[PATH_MAX])
{
    const char *percent = strchr(files, '%');

    snprintf(path, PATH_MAX, "%.*s%lld%s", (int)(percent - files), files,
             (long long)layer, percent + 1);
}

/* Wait until more than `at` bytes of a layer are there, or all, or another one has
 * begun.  Returns the bytes that are; UINT64_MAX: all. */
static uint64_t await(struct along *a, int64_t layer, uint64_t at)
{
    uint64_t there = UINT64_MAX;

    pthread_mutex_lock(&a->lock);
    while (a->layer == layer && !a->whole && a->there <= at && !a->closing)
        pthread_cond_wait(&a->news, &a->lock);
    if (a->layer == layer && !a->whole)
        there = a->there;
    pthread_mutex_unlock(&a->lock);
    return there;
}

/* 0; 1: the reader is gone. */
static int put(struct along *a, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(a->out, p, n);

        if (k < 0 && errno == EPIPE)
            return 1;
        if (k < 0 && errno != EINTR)
            return err_set(&a->err, E_IO, "cannot write beside the layers:");
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return 0;
}

/* Copy a layer's file while it grows.  0; 1: the reader is gone. */
static int copy(struct along *a, int64_t layer, int fd)
{
    uint64_t at = 0, there = 0;
    int rc = 0;

    while (!rc) {
        uint64_t left;
        ssize_t n;

        if (at == there)
            there = await(a, layer, at);
        left = there - at;
        n = pread(fd, a->piece, left < PIECE ? (size_t)left : PIECE, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(&a->err, E_IO, "layer %lld: cannot read its file:",
                           (long long)layer);
        if (!n) /* only where all is there */
            return 0;
        rc = put(a, a->piece, (size_t)n);
        at += (uint64_t)n;
    }
    return rc;
}

/* Of a layer that has its name.  ENOENT: it is none of the run's. */
static int copy_named(struct along *a, int64_t layer)
{
    char path[PATH_MAX];
    int fd, rc;

    layer_path(a->files, layer, path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return ENOENT;
    if (fd < 0)
        return err_set(&a->err, err_open_code(errno),
                       "cannot open '%s':", path);
    rc = copy(a, layer, fd);
    close(fd);
    return rc;
}

/* Wait for what is to be done next.  *fd: from which the next layer can be read while it
 * is written; -1: it has its name.  False: no layers are left but those with names. */
static bool await_layer(struct along *a, int *fd)
{
    bool more;

    pthread_mutex_lock(&a->lock);
    while (!a->closing && a->layer < a->next)
        pthread_cond_wait(&a->news, &a->lock);
    *fd = -1;
    if (a->layer == a->next) {
        *fd = a->fd;
        a->fd = -1;
        while (*fd < 0 && !a->whole && !a->closing && a->layer == a->next)
            pthread_cond_wait(&a->news, &a->lock);
    }
    more = a->layer >= a->next;
    pthread_mutex_unlock(&a->lock);
    return more;
}

static void *follow(void *arg)
{
    struct along *a = arg;
    int rc = 0;

    for (bool more = true; !rc; a->next++) {
        int fd = -1;

        more = more && await_layer(a, &fd);
        rc = fd < 0 ? copy_named(a, a->next) : copy(a, a->next, fd);
        if (fd >= 0)
            close(fd);
        if (rc == ENOENT && more)
            rc = 0; /* the input has not this layer */
    }
    if (!a->err.code) {
        close(a->out); /* its reader may go on */
        a->out = -1;
    }
    return NULL;
}

int along_open(struct along **out, const char *path, const char *files,
               struct err *e)
{
    struct along *a = mem_zero(1, sizeof(*a), "layers", e);
    int rc = a ? 0 : e->code;

    if (rc)
        return rc;
    *a = (struct along){ .files = files,
                         .out = open(path, O_WRONLY | O_CLOEXEC),
                         .piece = mem_pages(PIECE, "layers", e),
                         .layer = -1,
                         .fd = -1,
                         .lock = PTHREAD_MUTEX_INITIALIZER,
                         .news = PTHREAD_COND_INITIALIZER };
    if (a->out < 0)
        rc = err_set(e, E_CREATE, "cannot open '%s':", path);
    else if (!a->piece)
        rc = e->code;
    else
        fcntl(a->out, F_SETPIPE_SZ, PIECE); /* a hint */
    if (!rc && pthread_create(&a->thread, NULL, follow, a))
        rc = err_set(e, E_TEMP, "cannot start a thread");
    if (!rc) {
        *out = a;
        return 0;
    }
    if (a->out >= 0)
        close(a->out);
    free(a->piece);
    free(a);
    return rc;
}

void along_begin(struct along *a, int64_t layer, int fd)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    if (a->fd >= 0)
        close(a->fd);
    a->layer = layer;
    a->fd = fd;
    a->there = 0;
    a->whole = false;
    pthread_cond_signal(&a->news);
    pthread_mutex_unlock(&a->lock);
}

void along_there(struct along *a, uint64_t bytes)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    if (bytes != a->there) {
        a->there = bytes;
        pthread_cond_signal(&a->news);
    }
    pthread_mutex_unlock(&a->lock);
}

void along_end(struct along *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->whole = true;
    pthread_cond_signal(&a->news);
    pthread_mutex_unlock(&a->lock);
}

int along_close(struct along *a, struct err *e)
{
    int rc;

    if (!a)
        return 0;
    pthread_mutex_lock(&a->lock);
    a->closing = true;
    pthread_cond_signal(&a->news);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    if (a->fd >= 0)
        close(a->fd);
    if (a->out >= 0)
        close(a->out);
    rc = a->err.code;
    if (rc)
        *e = a->err;
    free(a->piece);
    free(a);
    return rc;
}
