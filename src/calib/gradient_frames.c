/* gradient_frames.c - see gradient_frames.h. */
#include "calib/gradient_frames.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/math/lanes.h"
#include "device/device.h"
#include "model/backward.h"

enum { PLACE_NS = 100000 };

/* Make the blocks.  False: they do not fit, or have no handles. */
static bool make_blocks(struct gradient_frames *t, size_t n)
{
    const struct device_table *d = device_functions();
    struct err why;

    for (int i = 0; i < 2; i++)
        if (d->block(device_gpu(), &t->block[i], n, &why) < 0 ||
            ledger_loan(t->block[i], 0, &t->loan[i], &why) < 0) {
            d->drop(device_gpu(), t->block[0]);
            d->drop(device_gpu(), t->block[1]);
            return false;
        }
    return true;
}

int gradient_frames_open(struct gradient_frames *t, size_t n, struct err *e)
{
    size_t room;

    if (!t->ledger || !model_on_device(t->m) || !stream_is_pipe(t->out))
        return 0;
    if (backward_spare_bytes(t->m, &room, e) < 0)
        return e->code;
    t->lends = n <= room / 2 && ledger_lends(t->ledger, LEDGER_ACTIVATIONS) &&
               make_blocks(t, n);
    return 0;
}

void gradient_frames_close(struct gradient_frames *t)
{
    threads_join(&t->task);
    free(t->modules);
    buffer_release(&t->host[0]);
    buffer_release(&t->host[1]);
    if (t->m)
        model_buffer_release(t->m, &t->narrow);
}

/* ---- writing ---- */

/* Frame i of those in a room begins `at` bytes into it. */
static void refer(const struct gradient_frames *t, int64_t i, size_t at,
                  struct frame *f)
{
    int room = t->fills ^ 1;

    f->data = t->lends ? NULL : (const char *)t->host[room].p + at;
    if (!t->lends)
        return;
    f->loan = t->loan[room];
    f->loan.offset += at;
    f->loan.lease = i == t->first + t->n - 1 ? t->loan[room].lease : 0;
}

static void write_frames(void *arg)
{
    struct gradient_frames *t = arg;
    struct frame f = t->f;
    size_t at = 0;

    f.modules = t->modules;
    for (int64_t i = t->first; i < t->first + t->n && t->rc >= 0; i++) {
        f.sequence = t->s->sequence[i].number;
        f.last = i == t->last;
        f.dims[0] = f.samples = (uint64_t)t->s->sequence[i].length;
        f.len = (size_t)f.dims[0] * (size_t)f.dims[1] * dtype_bits(f.dtype) / 8;
        refer(t, i, at, &f);
        t->rc = stream_write(t->out, &f, &t->err);
        at += f.len;
    }
    if (t->rc >= 0 && t->lends) /* somebody waits for the room */
        t->rc = stream_flush(t->out, &t->err);
}

int gradient_frames_wait(struct gradient_frames *t, struct err *e)
{
    threads_join(&t->task);
    free(t->modules);
    t->modules = NULL;
    if (t->rc < 0)
        *e = t->err;
    return t->rc;
}

/* ---- filling ---- */

/* Room for n bytes that nobody reads. */
static int take_room(struct gradient_frames *t, size_t n, const char *name,
                     struct err *e)
{
    int i = t->fills;

    if (!t->lends)
        return buffer_reserve(&t->host[i], 1, (int64_t)n, 1, name, e);
    while (!ledger_is_back(t->ledger, i))
        nanosleep(&(struct timespec){ .tv_nsec = PLACE_NS }, NULL);
    t->loan[i].lease = ledger_take(t->ledger, i);
    return 0;
}

static int fill(struct gradient_frames *t, const struct span *b, int64_t n,
                const float *g, int64_t width, struct err *e)
{
    size_t row = (size_t)width * dtype_bits(model_dtype(t->m)) / 8, at = 0;
    int room = t->fills;

    if (t->lends)
        return backward_narrow(t->m, g,
                               (b[n - 1].row + b[n - 1].rows - b->row) * width,
                               t->block[room], e) < 0 ?
                   e->code :
                   device_functions()->settle(device_gpu(), e);
    for (int64_t i = 0; i < n; i++) {
        if (backward_get(t->m, g, b[i].rows * width, &t->narrow,
                         (char *)t->host[room].p + at, e) < 0)
            return e->code;
        g += b[i].rows * width;
        at += (size_t)b[i].rows * row;
    }
    return 0;
}

/* Look at the n elements of f in the room that is filled. */
static int check(const struct gradient_frames *t, const struct frame *f,
                 int64_t n, struct err *e)
{
    int room = t->fills, one = (int)strcspn(f->modules, "\n");
    bool finite;

    if (!t->lends)
        finite =
            lanes_all_finite(t->host[room].p, model_dtype(t->m), (uint64_t)n);
    else if (model_check(t->m, t->block[room], n, &finite, e) < 0)
        return e->code;
    if (finite)
        return 0;
    return f->modules[one] ?
               err_set(e, E_DATA, "'%.*s' and others: a gradient is not finite",
                       one, f->modules) :
               err_set(e, E_DATA, "'%s': a gradient is not finite", f->modules);
}

int gradient_frames_put(struct gradient_frames *t, const struct frame *f,
                        const struct span *b, int64_t n, const float *g,
                        int64_t width, int64_t last, struct err *e)
{
    const struct span *end = &b[n - 1];
    int64_t elements = (end->row + end->rows - b->row) * width;
    size_t bytes = (size_t)elements * dtype_bits(model_dtype(t->m)) / 8;

    if (take_room(t, bytes, f->name, e) < 0 || fill(t, b, n, g, width, e) < 0 ||
        check(t, f, elements, e) < 0 || gradient_frames_wait(t, e) < 0)
        return e->code;
    t->modules = mem_text(f->modules, strlen(f->modules), f->name, e);
    if (!t->modules)
        return e->code;
    t->f = *f;
    t->f.role = ROLE_ACTIVATION;
    t->f.dtype = model_dtype(t->m);
    t->f.ndim = 2;
    t->f.dims[1] = (uint64_t)width;
    t->first = b->first;
    t->n = end->first + end->n - b->first;
    t->last = last;
    t->fills ^= 1;
    threads_start(&t->task, write_frames, t);
    return 0;
}
