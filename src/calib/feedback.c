/* feedback.c - see feedback.h. */
#include "calib/feedback.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/io/sync.h"
#include "device/ledger.h"

/* How long feedback_abandon() waits for the writer. */
enum { WRITER_SECONDS = 10 };

/* A received frame of codes or grids, not yet fetched by feedback_wait(). */
struct waiting {
    struct waiting *next;
    struct frame f; /* data: its own */
};

struct feedback {
    const char *path, *loans;
    int fd;
    struct ledger *ledger; /* the thread's */
    struct stream_reader *in;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t news;
    /* under lock: */
    struct waiting *first, **last;
    uint64_t returned; /* number of the last mark that came back */
    bool ended;
    int rc; /* the thread's result */
    struct err err;
};

static void drop(struct waiting *w)
{
    free((void *)(uintptr_t)w->f.data);
    free(w);
}

static int keep(struct feedback *b, const struct frame *f, struct err *e)
{
    struct waiting *w = mem_alloc(sizeof(*w), f->name, e);
    void *data = w ? mem_alloc(f->len + 1, f->name, e) : NULL;
    const void *from;

    if (!data || ledger_payload(b->ledger, f, &from, e) < 0) {
        free(data);
        free(w);
        return e->code;
    }
    w->next = NULL;
    w->f = *f;
    w->f.modules = NULL;
    w->f.loan.lent = 0;
    w->f.data = memcpy(data, from, f->len);
    ledger_return(b->ledger, &f->loan);
    pthread_mutex_lock(&b->lock);
    *b->last = w;
    b->last = &w->next;
    pthread_mutex_unlock(&b->lock);
    return 0;
}

static int take(struct feedback *b, const struct frame *f, struct err *e)
{
    uint64_t number;

    if (f->role == ROLE_CODES || f->role == ROLE_QMETA)
        return keep(b, f, e);
    if (!sync_read(f, &number))
        return 0;
    pthread_mutex_lock(&b->lock);
    b->returned = number;
    pthread_cond_broadcast(&b->news);
    pthread_mutex_unlock(&b->lock);
    return 0;
}

/* A non-blocking pipe without a writer reads as ended; poll(2) waits for the
 * first writer. */
static int open_stream(struct feedback *b, struct err *e)
{
    struct stream_expect expect = { .loans = b->loans };
    struct pollfd p = { .fd = b->fd, .events = POLLIN };

    while (poll(&p, 1, -1) < 0 && errno == EINTR)
        ;
    fcntl(b->fd, F_SETFL, fcntl(b->fd, F_GETFL) & ~O_NONBLOCK);
    b->fd = -1;
    return stream_open_fd(&b->in, p.fd, b->path, &expect, e);
}

static void *drain(void *arg)
{
    struct feedback *b = arg;
    struct frame f;
    struct err e;
    int rc = ledger_open(&b->ledger, b->loans, &e);

    if (rc >= 0)
        rc = ledger_reads(b->ledger, LEDGER_CODES, &e);
    if (rc >= 0)
        rc = open_stream(b, &e);
    while (rc >= 0 && (rc = stream_next(b->in, &f, &e)) > 0)
        rc = take(b, &f, &e);
    if (rc < 0) { /* the writer must get EPIPE, not block */
        stream_close(b->in);
        b->in = NULL;
    }
    ledger_close(b->ledger);
    pthread_mutex_lock(&b->lock);
    b->ended = true;
    b->rc = rc;
    if (rc < 0)
        b->err = e;
    pthread_cond_broadcast(&b->news);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Move standard input to a descriptor of our own and leave /dev/null in its
 * place: a copy left open would keep the writer from getting EPIPE when the
 * stream is closed. */
static int take_stdin(void)
{
    int fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && null >= 0)
        dup2(null, 0);
    if (null >= 0)
        close(null);
    return fd;
}

int feedback_open(struct feedback **out, const char *path, const char *loans,
                  struct err *e)
{
    struct feedback *b = mem_zero(1, sizeof(*b), "feedback", e);
    struct stat st;

    if (!b)
        return e->code;
    b->path = path;
    b->loans = loans;
    b->last = &b->first;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->news, NULL);
    b->fd = strcmp(path, "-") ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) :
                                take_stdin();
    if (b->fd < 0)
        err_set(e, err_open_code(errno), "cannot open '%s':", path);
    else if (fstat(b->fd, &st) || !S_ISFIFO(st.st_mode))
        err_set(e, E_USAGE, "--feedback: '%s' is no pipe (mkfifo)", path);
    else if (pthread_create(&b->thread, NULL, drain, b))
        err_set(e, E_TEMP, "feedback: cannot start a thread");
    else
        b->running = true;
    if (!b->running) {
        feedback_close(b);
        return e->code;
    }
    *out = b;
    return 0;
}

/* The thread's error, or that the stream ended too soon.  Called with the lock
 * held. */
static int failure(const struct feedback *b, struct err *e)
{
    if (b->rc < 0) {
        *e = b->err;
        return b->rc;
    }
    return err_set(e, E_DATA, "'%s': ends before all codes have come", b->path);
}

int feedback_wait(struct feedback *b, uint64_t number, struct quantized *c,
                  struct err *e)
{
    struct waiting *w = NULL;
    int rc = 0;

    pthread_mutex_lock(&b->lock);
    while (b->returned < number && !b->ended)
        pthread_cond_wait(&b->news, &b->lock);
    if (b->returned < number || b->rc < 0)
        rc = failure(b, e);
    if (rc >= 0 && c) {
        w = b->first;
        b->first = NULL;
        b->last = &b->first;
    }
    pthread_mutex_unlock(&b->lock);
    while (w) {
        struct waiting *next = w->next;

        if (rc >= 0) {
            if (quantized_add(c, &w->f, e) < 0)
                rc = err_prefix(e, "'%s'", b->path);
            w->f.data = NULL;
        }
        drop(w);
        w = next;
    }
    return rc;
}

int feedback_finish(struct feedback *b, struct err *e)
{
    pthread_join(b->thread, NULL);
    b->running = false;
    if (b->rc < 0)
        *e = b->err;
    return b->rc;
}

/* Read and drop until the writer, which may not have opened the pipe yet, has
 * closed it. */
static void outlast_writer(const char *path)
{
    struct pollfd p = { .fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC),
                        .events = POLLIN };
    struct stat st;
    char drop[4096];

    if (p.fd >= 0 && fstat(p.fd, &st) == 0 && S_ISFIFO(st.st_mode))
        while (poll(&p, 1, WRITER_SECONDS * 1000) > 0 &&
               read(p.fd, drop, sizeof(drop)) > 0)
            ;
}

void feedback_abandon(struct feedback *b, const char *path)
{
    struct timespec until;
    bool unread; /* the thread has failed without the pipe */

    close(1); /* the tools downstream, and so the writer, end with our output */
    if (!b) {
        outlast_writer(path);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WRITER_SECONDS;
    pthread_mutex_lock(&b->lock);
    while (!b->ended &&
           pthread_cond_timedwait(&b->news, &b->lock, &until) != ETIMEDOUT)
        ;
    unread = b->ended && b->fd >= 0;
    pthread_mutex_unlock(&b->lock);
    if (unread)
        outlast_writer(path);
}

void feedback_close(struct feedback *b)
{
    if (!b)
        return;
    while (b->first) {
        struct waiting *next = b->first->next;

        drop(b->first);
        b->first = next;
    }
    if (b->fd >= 0)
        close(b->fd);
    stream_close(b->in);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->news);
    free(b);
}
