/* prefetch.c - see prefetch.h. */
#include "common/io/prefetch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Buffer of one payload.  Buffers are reused: layers are alike, and the kernel
 * would zero fresh pages. */
struct buffer {
    void *p;
    size_t cap;
    bool busy;
};

enum {
    FIRST = 32,      /* batches grow from bytes / FIRST by doubling */
    LARGE = 64 << 10 /* bytes that are exchanged with the reader, not copied */
};

struct batch {
    struct frame *frame; /* data: a busy buffer; modules: malloced */
    bool *keep;
    int n, cap;
    size_t bytes;
    bool borrowed; /* the last frame's data and texts are the reader's */
    int rc; /* stream_next()'s result behind the last frame; 1: not at an end */
    struct err err;
};

struct prefetch {
    struct stream_reader *in;
    struct stream_writer *out;
    struct prefetch_params params;
    size_t full;                 /* payload bytes at which a batch is full */
    struct batch batch[2], *now; /* now: the caller's batch; NULL: none yet */
    struct buffer *buffer;
    size_t n_buffers, idle; /* idle: bytes of the buffers that are not busy */
    pthread_t thread;
    bool running;
    int wanted; /* eventfd: readable while the caller waits for a batch */
    char *head;
};

int prefetch_open(struct prefetch **out, struct stream_reader *r,
                  struct stream_writer *w, const struct prefetch_params *p,
                  struct err *e)
{
    struct prefetch *a = mem_zero(1, sizeof(*a), "reading ahead", e);

    if (!a)
        return e->code;
    a->in = r;
    a->out = w;
    a->params = *p;
    a->full = p->bytes / FIRST; /* a small first batch comes soon */
    a->batch[0].rc = a->batch[1].rc = 1;
    a->wanted = eventfd(0, EFD_CLOEXEC);
    if (a->wanted < 0) {
        free(a);
        return err_set(e, E_TEMP, "reading ahead: no event descriptor:");
    }
    if (!p->bytes)
        stream_tie(r, w);
    *out = a;
    return 0;
}

/* ---- memory ---- */

void *prefetch_alloc(struct prefetch *a, size_t n, struct err *e)
{
    struct buffer *r;

    for (size_t i = 0; i < a->n_buffers; i++) {
        r = &a->buffer[i];
        if (!r->busy && r->cap >= n && r->cap / 2 <= n) {
            r->busy = true;
            a->idle -= r->cap;
            return r->p;
        }
    }
    if (mem_grow(&a->buffer, (a->n_buffers + 1) * sizeof(*r), "reading ahead",
                 e) < 0)
        return NULL;
    r = &a->buffer[a->n_buffers];
    *r = (struct buffer){ .cap = n, .busy = true };
    r->p = mem_pages(n, "reading ahead", e);
    a->n_buffers += r->p != NULL;
    return r->p;
}

static struct buffer *buffer_of(struct prefetch *a, const void *p)
{
    struct buffer *r = a->buffer;

    while (r->p != p)
        r++;
    return r;
}

static void release_buffer(struct prefetch *a, const void *p)
{
    struct buffer *r = buffer_of(a, p);

    r->busy = false;
    a->idle += r->cap;
    if (a->idle <= a->params.bytes)
        return;
    a->idle -= r->cap;
    free(r->p);
    *r = a->buffer[--a->n_buffers];
}

static void release_frame(struct prefetch *a, const struct frame *f)
{
    free((char *)(uintptr_t)f->modules);
    release_buffer(a, f->data);
}

static int reserve(struct batch *b, int n, struct err *e)
{
    if (b->n + n <= b->cap)
        return 0;
    if (mem_grow(&b->frame, (size_t)(b->n + n + 32) * sizeof(*b->frame),
                 "reading ahead", e) < 0 ||
        mem_grow(&b->keep, (size_t)(b->n + n + 32) * sizeof(*b->keep),
                 "reading ahead", e) < 0)
        return e->code;
    b->cap = b->n + n + 32;
    return 0;
}

/* ---- the thread ---- */

/* Append f, whose data is in a buffer of ours; its texts are copied. */
static int append(struct batch *b, const struct frame *f, struct err *e)
{
    struct frame *to;
    char *text = NULL;

    if (reserve(b, 1, e) < 0)
        return e->code;
    if (f->modules) {
        text = mem_alloc(strlen(f->modules) + 1, "reading ahead", e);
        if (!text)
            return e->code;
        strcpy(text, f->modules);
    }
    to = &b->frame[b->n];
    *to = *f;
    to->modules = text;
    b->keep[b->n++] = false;
    b->bytes += f->loan.lent == LENT_HOST ? f->len : frame_bytes(f);
    return 0;
}

/* f's payload in the buffer with memory p, [n]: large ones as the reader's memory, for
 * which it gets p; others are copied. */
static void take_payload(struct prefetch *a, struct frame *f, void *p, size_t n)
{
    struct buffer *to = buffer_of(a, p);

    if (n < LARGE || !stream_exchange(a->in, n, &to->p, &to->cap))
        memcpy(p, f->data, n);
    f->data = to->p;
}

static int append_copy(struct prefetch *a, struct batch *b, struct frame *f,
                       struct err *e)
{
    size_t n = frame_bytes(f);
    void *p = prefetch_alloc(a, n ? n : 1, e);

    if (!p)
        return e->code;
    if (n)
        take_payload(a, f, p, n);
    else
        f->data = p;
    return append(b, f, e);
}

static int take(struct prefetch *a, struct batch *b, struct frame *f,
                struct err *e)
{
    struct frame more = { .role = ROLE_NONE };
    int rc = a->params.before ? a->params.before(a->params.arg, a, f, b->frame,
                                                 b->n, &more, e) :
                                0;

    if (rc < 0 || (rc > 0 && append(b, &more, e) < 0))
        return e->code;
    return append_copy(a, b, f, e);
}

static void *gather(void *arg)
{
    struct prefetch *a = arg;
    struct batch *b = a->now == a->batch ? a->batch + 1 : a->batch;
    struct frame f;

    b->rc = 1;
    a->full = a->full * 2 < a->params.bytes ? a->full * 2 : a->params.bytes;
    while (!b->n || (b->bytes < a->full && b->n < a->params.frames)) {
        if (b->n && !stream_wait(a->in, a->wanted))
            break;
        b->rc = stream_next(a->in, &f, &b->err);
        if (b->rc > 0 && take(a, b, &f, &b->err) < 0)
            b->rc = b->err.code;
        if (b->rc <= 0)
            break;
    }
    return NULL;
}

/* ---- frame by frame ---- */

/* End the use of the reader's memory: a frame to be kept is copied, another
 * dropped. */
static int give_back(struct prefetch *a, struct batch *b, struct err *e)
{
    struct frame f;

    if (!b->borrowed)
        return 0;
    b->borrowed = false;
    f = b->frame[--b->n];
    if (!b->keep[b->n])
        return 0;
    if (append_copy(a, b, &f, e) < 0)
        return e->code;
    b->keep[b->n - 1] = true;
    return 0;
}

static int borrow_frame(struct prefetch *a, struct batch *b, struct err *e)
{
    if ((a->now && give_back(a, a->now, e) < 0) || reserve(b, 1, e) < 0)
        return e->code;
    b->rc = stream_next(a->in, b->frame, &b->err);
    b->borrowed = b->rc > 0;
    b->n = b->borrowed;
    b->keep[0] = false;
    return 0;
}

/* ---- the caller ---- */

/* Get the thread's batch, or gather it here if there is no thread yet. */
static int finish_gathering(struct prefetch *a, struct err *e)
{
    const uint64_t one = 1;
    uint64_t count;

    if (a->out && stream_flush(a->out, e) < 0)
        return e->code;
    if (write(a->wanted, &one, sizeof(one)) < 0)
        return err_set(e, E_IO, "reading ahead: cannot wake the reader:");
    if (a->running)
        pthread_join(a->thread, NULL);
    else
        gather(a);
    a->running = false;
    if (read(a->wanted, &count, sizeof(count)) < 0)
        return err_set(e, E_IO, "reading ahead: lost a count:");
    return 0;
}

/* Put the frames that the caller keeps in front of b and release the others. */
static int move_kept(struct prefetch *a, struct batch *b, struct err *e)
{
    struct batch *old = a->now;
    int kept = 0;

    for (int i = 0; i < old->n; i++)
        kept += old->keep[i];
    if (reserve(b, kept, e) < 0)
        return e->code;
    memmove(b->frame + kept, b->frame, (size_t)b->n * sizeof(*b->frame));
    memset(b->keep, 0, (size_t)(b->n + kept) * sizeof(*b->keep));
    b->n += kept;
    kept = 0;
    for (int i = 0; i < old->n; i++)
        if (old->keep[i])
            b->frame[kept++] = old->frame[i];
        else
            release_frame(a, &old->frame[i]);
    old->n = 0;
    old->bytes = 0;
    return 0;
}

static int keep_head(struct prefetch *a, struct err *e)
{
    const char *head = stream_head(a->in);

    if (a->head || !head)
        return 0;
    a->head = mem_alloc(strlen(head) + 1, "reading ahead", e);
    if (!a->head)
        return e->code;
    strcpy(a->head, head);
    return 0;
}

int prefetch_next(struct prefetch *a, const struct frame **frame, int *n,
                  struct err *e)
{
    struct batch *b = a->now == a->batch ? a->batch + 1 : a->batch;

    if (a->now && a->now->rc <= 0) { /* end or error behind the batch before */
        *e = a->now->err;
        return a->now->rc;
    }
    if ((a->params.bytes ? finish_gathering(a, e) : borrow_frame(a, b, e)) < 0)
        return e->code;
    if (!b->n) { /* the caller's last batch stays valid */
        *e = b->err;
        if (a->now)
            a->now->rc = b->rc, a->now->err = b->err;
        return b->rc;
    }
    if (keep_head(a, e) < 0 || (a->now && move_kept(a, b, e) < 0))
        return e->code;
    a->now = b;
    *frame = b->frame;
    *n = b->n;
    if (b->rc > 0 && a->params.bytes) /* if no thread can be made, the next
                                       * call gathers */
        a->running = !pthread_create(&a->thread, NULL, gather, a);
    return 1;
}

int prefetch_drop(struct prefetch *a, struct err *e)
{
    const struct frame *f;
    int n, rc;

    while ((rc = prefetch_next(a, &f, &n, e)) > 0)
        ;
    return rc < 0 ? rc : err_set(e, E_DATA, "input ends early");
}

void prefetch_keep(struct prefetch *a, int i)
{
    a->now->keep[i] = true;
}

const char *prefetch_head(const struct prefetch *a)
{
    return a->head;
}

void prefetch_close(struct prefetch *a)
{
    if (!a)
        return;
    if (a->running)
        pthread_join(a->thread, NULL);
    for (int k = 0; k < 2; k++) {
        a->batch[k].n -= a->batch[k].borrowed;
        for (int i = 0; i < a->batch[k].n; i++)
            free((char *)(uintptr_t)a->batch[k].frame[i].modules);
        free(a->batch[k].frame);
        free(a->batch[k].keep);
    }
    for (size_t i = 0; i < a->n_buffers; i++)
        free(a->buffer[i].p);
    free(a->buffer);
    close(a->wanted);
    free(a->head);
    free(a);
}
