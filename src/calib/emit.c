/* emit.c - see emit.h. */
#include "calib/emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/math/threads.h"
#include "device/device.h"

/* From one look at a place to the next. */
enum { PLACE_NS = 100000 };

void emit_name(int64_t layer, enum point at, char name[FRAME_NAME_MAX + 1])
{
    bool inside = at > POINT_IN && at < POINT_OUT;

    layer_tensor_name(layer, inside ? point_name(at) : "", name);
}

/* The frame of sequence i, with the fields that hidden states and activations
 * share. */
static struct frame frame_of(const struct store *s, int64_t i, int64_t layer,
                             enum point at)
{
    const struct sequence *x = &s->sequence[i];
    int64_t width = point_width(model_config(s->m), layer, at);
    struct frame f = { .role = at == POINT_IN ? ROLE_HIDDEN : ROLE_ACTIVATION,
                       .dtype = model_dtype(s->m),
                       .ndim = 2,
                       .dims = { (uint64_t)x->length, (uint64_t)width },
                       .sequence = x->number,
                       .last = i == s->n_sequences - 1 };

    f.len = (size_t)(x->length * width) * (f.dtype == DT_BF16 ? 2 : 4);
    emit_name(layer, at, f.name);
    return f;
}

void emit_modules(const struct model_config *c, int64_t layer,
                  enum input_class input, int64_t expert, char to[EMIT_MODULES])
{
    struct linear l;
    int64_t begin, end;

    model_linear_range(c, layer, expert, &begin, &end);
    *to = 0;
    for (int64_t i = begin; i < end; i++) {
        model_linear(c, layer, i, &l);
        if (l.input == input) {
            if (*to)
                strcat(to, "\n");
            strcat(to, l.module);
        }
    }
}

int emit_hidden(struct stream_writer *w, const struct store *s,
                const struct span *b, int64_t layer, enum companion companion,
                struct buffer *room, struct err *e)
{
    const struct emit_place p = { layer, POINT_IN, companion };

    return emit_state(w, s, b, &p, ROLE_HIDDEN, room, e);
}

void emit_state_name(const struct emit_place *p, char name[FRAME_NAME_MAX + 1])
{
    layer_tensor_name(p->layer, p->at == POINT_IN ? "" : point_name(p->at),
                      name);
    strcat(name, companion_suffix(p->companion)); /* these names are short */
}

int emit_state(struct stream_writer *w, const struct store *s,
               const struct span *b, const struct emit_place *p, enum role role,
               struct buffer *room, struct err *e)
{
    bool hidden = role == ROLE_HIDDEN;
    const void *first = NULL;
    const char *rows;

    if (hidden && store_host_x(s, b, room, &first, e) < 0)
        return e->code;
    rows = hidden ? first : store_act(s, b);
    for (int64_t i = b->first; i < b->first + b->n; i++) {
        struct frame f = frame_of(s, i, p->layer, hidden ? POINT_IN : p->at);

        emit_state_name(p, f.name);
        f.data = rows;
        rows += f.len;
        if (stream_write(w, &f, e) < 0)
            return e->code;
    }
    return 0;
}

/* ---- companions ---- */

int emit_companion(struct stream_writer *w, const struct frame *f,
                   enum companion companion, uint64_t width, struct err *e)
{
    struct frame g = *f;

    g.dims[1] = width;
    g.len = g.dims[0] * width * dtype_bits(g.dtype) / 8;
    g.modules = NULL;
    strcat(g.name, companion_suffix(companion)); /* emit_name()'s are short */
    return stream_write(w, &g, e);
}

/* The companion of the activations at a point. */
struct difference {
    enum companion companion; /* COMPANION_NONE: there is none */
    bool adds;         /* difference of residual streams, not of activations */
    size_t width, row; /* of a row: elements, bytes */
};

static struct difference difference_of(const struct emission *t)
{
    const struct model_config *c = model_config(t->s->m);
    struct difference d = { 0 };
    char modules[EMIT_MODULES];

    if (!t->reference)
        return d;
    emit_modules(c, t->layer, point_input(t->at), -1, modules);
    if (!*modules) /* no linear reads it, so there is no target to move */
        return d;
    d.adds = point_adds(c, t->layer, t->at);
    d.companion = d.adds ? COMPANION_OUTPUT : COMPANION_DRIFT;
    d.width =
        (size_t)(d.adds ? c->hidden_size : point_width(c, t->layer, t->at));
    d.row = d.width * dtype_bits(model_dtype(t->s->m)) / 8;
    return d;
}

/* ---- activations ---- */

/* The payload of f, `at` bytes into the batch's activations or their companions. */
static void refer(const struct emission *t, const struct span *b,
                  bool companion, size_t at, struct frame *f)
{
    const struct lending *l = store_lending(t->s);
    int64_t i = b - t->s->batch;

    if (l && companion)
        lending_refer_companion(l, i, t->at, at, f);
    else if (l)
        lending_refer(l, i, t->at, at, f);
    else if (companion)
        store_refer_difference(t->reference, b, at, f);
    else
        store_refer(t->s, b, at, f);
}

/* Write a batch's activations, each behind its companion.  rows NULL: the
 * store's, which are lent to the pipe. */
static int write_batch(const struct emission *t, const struct span *b,
                       const void *rows, struct err *e)
{
    struct difference d = difference_of(t);
    size_t at = 0, companion_at = 0;
    char modules[EMIT_MODULES];

    emit_modules(model_config(t->s->m), t->layer, point_input(t->at), -1,
                 modules);
    for (int64_t i = b->first; i < b->first + b->n; i++) {
        struct frame f = frame_of(t->s, i, t->layer, t->at);

        f.modules = modules;
        f.samples = f.dims[0];
        f.lent = !rows && !t->goes_on;
        if (d.companion) {
            refer(t, b, true, companion_at, &f);
            if (emit_companion(t->w, &f, d.companion, d.width, e) < 0)
                return e->code;
            companion_at += f.dims[0] * d.row;
        }
        f.loan = (struct loan){ 0 };
        if (rows)
            f.data = (const char *)rows + at;
        else
            refer(t, b, false, at, &f);
        at += f.len;
        if (stream_write(t->w, &f, e) < 0)
            return e->code;
    }
    return 0;
}

int emit_activation(struct stream_writer *w, const struct store *s,
                    const struct span *b, int64_t layer, enum point at,
                    const void *rows, struct err *e)
{
    struct emission t = { .w = w, .s = s, .layer = layer, .at = at };

    return write_batch(&t, b, rows, e);
}

/* ---- the thread ---- */

/* Wait until batch i is ready.  False: stop. */
static bool await(struct emission *t, int64_t i)
{
    bool go;

    pthread_mutex_lock(&t->lock);
    while (t->ready <= i && !t->stop)
        pthread_cond_wait(&t->news, &t->lock);
    go = !t->stop;
    pthread_mutex_unlock(&t->lock);
    return go;
}

static void *emit_all(void *arg)
{
    struct emission *t = arg;
    const struct store *s = t->s;
    struct err e;
    int rc = 0;

    for (int64_t i = 0; i < s->n_batches && !rc && await(t, i); i++) {
        const struct span *b = &s->batch[i];

        rc = write_batch(t, b, NULL, &e);
        if (rc >= 0 && store_lending(s)) /* somebody may wait for its place */
            rc = stream_flush(t->w, &e);
        store_leave(s, b);
        if (t->reference)
            store_leave(t->reference, b);
    }
    pthread_mutex_lock(&t->lock);
    t->rc = rc;
    if (rc < 0)
        t->err = e;
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int emission_start(struct emission *t, struct err *e)
{
    t->ready = 0;
    t->stop = false;
    t->rc = 0;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->news, NULL);
    if (!pthread_create(&t->thread, NULL, emit_all, t))
        return 0;
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->news);
    return err_set(e, E_TEMP, "activations: cannot start a thread");
}

/* The thread's error, if its writing has failed. */
static int failure(struct emission *t, struct err *e)
{
    int rc;

    pthread_mutex_lock(&t->lock);
    rc = t->rc;
    if (rc < 0)
        *e = t->err;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int emission_place(struct emission *t, int64_t i, struct err *e)
{
    struct lending *l = store_lending(t->s);

    while (!lending_is_free(l, i, t->at)) {
        if (failure(t, e) < 0)
            return e->code;
        nanosleep(&(struct timespec){ .tv_nsec = PLACE_NS }, NULL);
    }
    lending_take(l, i, t->at);
    return 0;
}

bool emission_drifts(const struct emission *t)
{
    struct difference d = difference_of(t);

    return d.companion && !d.adds;
}

/* The companion of a batch whose activations are lent. */
static int subtract_there(const struct emission *t, int64_t i,
                          const struct difference *d, struct err *e)
{
    const struct lending *l = store_lending(t->s);
    const struct span *b = &t->s->batch[i];
    void *to = lending_companion(l, i, t->at);

    return d->adds ?
               model_subtract(t->s->m, to, store_rows(t->reference, b->row),
                              store_rows(t->s, b->row), t->bias, b->rows,
                              (int64_t)d->width, e) :
               model_subtract(t->s->m, to, to, lending_rows(l, i, t->at), NULL,
                              b->rows, (int64_t)d->width, e);
}

/* All that is lent of a batch is there. */
static int make_companion(const struct emission *t, int64_t i,
                          const struct state *here, struct err *e)
{
    struct difference d = difference_of(t);

    if (store_lending(t->s))
        return d.companion && subtract_there(t, i, &d, e) < 0 ?
                   e->code :
                   device_functions()->settle(device_gpu(), e);
    if (!d.companion)
        return 0;
    return store_subtract(
        t->reference, &t->s->batch[i],
        d.adds ? store_rows(t->reference, t->s->batch[i].row) : NULL,
        d.adds ? here->x : here->act, d.adds ? t->bias : NULL, (int64_t)d.width,
        e);
}

int emission_ready(struct emission *t, int64_t i, const struct state *here,
                   struct err *e)
{
    if (make_companion(t, i, here, e) < 0)
        return e->code;
    pthread_mutex_lock(&t->lock);
    t->ready = i + 1;
    pthread_cond_signal(&t->news);
    pthread_mutex_unlock(&t->lock);
    return failure(t, e);
}

int emission_finish(struct emission *t, bool stop, struct err *e)
{
    if (stop) {
        pthread_mutex_lock(&t->lock);
        t->stop = true;
        pthread_cond_signal(&t->news);
        pthread_mutex_unlock(&t->lock);
    }
    pthread_join(t->thread, NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->news);
    if (t->rc < 0 && !stop)
        *e = t->err;
    return t->rc;
}
