/* store.c - see store.h. */
#include "calib/store.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "device/device.h"

/* Products read whole steps of rows, up to so many beyond the end. */
enum { SLACK_ROWS = 64 };

static size_t item(const struct store *s)
{
    return model_dtype(s->m) == DT_BF16 ? 2 : 4;
}

static size_t x_row(const struct store *s)
{
    return (size_t)model_row(model_config(s->m)) * item(s);
}

void store_init(struct store *s, const struct model *m, const char *dir)
{
    *s = (struct store){ .m = m,
                         .widest = store_width(model_config(m), false).act };
    region_init(&s->x, dir);
    region_init(&s->act, dir);
}

void store_init_reference(struct store *o, struct store *s)
{
    struct store_width w = store_width(model_config(s->m), true);

    store_init(o, s->m, s->x.dir);
    o->primary = s;
    o->widest = w.companion;
    s->widest = w.act;
}

static void leave_device(struct store *s)
{
    model_free(s->m, s->device_act);
    s->device_act = NULL;
    s->device_rows = 0;
}

static void drop_tokens(struct store *s)
{
    free(s->tokens);
    s->tokens = NULL;
    s->tokens_cap = 0;
}

static void leave_lending(struct store *s)
{
    if (s->lending)
        lending_close(s->lending);
    free(s->lending);
    s->lending = NULL;
}

void store_release(struct store *s)
{
    if (s->m) {
        model_free(s->m, s->device_x);
        model_free(s->m, s->difference);
        leave_device(s);
        leave_lending(s);
    }
    region_release(&s->x);
    region_release(&s->act);
    drop_tokens(s);
    free(s->sequence);
    free(s->batch);
}

int64_t store_longest(const struct store *s)
{
    int64_t n = 0;

    for (int64_t i = 0; i < s->n_sequences; i++)
        n = s->sequence[i].length > n ? s->sequence[i].length : n;
    return n;
}

size_t store_bytes(const struct store *s)
{
    return (size_t)s->rows * x_row(s);
}

void *store_x(const struct store *s, int64_t row)
{
    return (char *)s->x.p + (size_t)row * x_row(s);
}

void *store_rows(const struct store *s, int64_t row)
{
    return s->device_x ? (char *)s->device_x + (size_t)row * x_row(s) :
                         store_x(s, row);
}

int store_embed(struct store *s, struct err *e)
{
    if (!s->tokens)
        return 0;
    if (region_reserve(&s->x, store_bytes(s), e) < 0)
        return e->code;
    /* a batch at a time, whose pages may leave memory */
    for (int64_t i = 0; i < s->n_batches; i++) {
        const struct span *b = &s->batch[i];

        if (model_embed_there(s->m, s->tokens + b->row, b->rows,
                              store_x(s, b->row), e) < 0)
            return e->code;
    }
    drop_tokens(s);
    return 0;
}

int store_place(struct store *s, struct err *e)
{
    if (!model_on_device(s->m))
        return store_embed(s, e);
    if (model_alloc(s->m, &s->device_x, store_bytes(s), true, NULL, e) < 0 ||
        (s->tokens ?
             model_embed_there(s->m, s->tokens, s->rows, s->device_x, e) < 0 :
             model_put(s->m, s->device_x, s->x.p, store_bytes(s), e) < 0) ||
        device_functions()->settle(device_gpu(), e) < 0)
        return e->code;
    drop_tokens(s);
    region_release(&s->x);
    return 0;
}

int store_host_x(const struct store *s, const struct span *b,
                 struct buffer *room, const void **rows, struct err *e)
{
    const struct device_table *d = device_functions();

    *rows = store_rows(s, b->row);
    if (!s->device_x)
        return 0;
    if (buffer_reserve(room, b->rows, 1, x_row(s), "hidden states", e) < 0 ||
        d->settle(device_gpu(), e) < 0 ||
        d->fetch(device_gpu(), room->p, *rows, (size_t)b->rows * x_row(s), e) <
            0)
        return e->code;
    *rows = room->p;
    return 0;
}

static size_t act_at(const struct store *s, int64_t row)
{
    return (size_t)row * (size_t)s->widest * item(s);
}

/* Whether the batch's activations are on the device. */
static bool there(const struct store *s, const struct span *b)
{
    return b->row < s->device_rows;
}

struct lending *store_lending(const struct store *s)
{
    const struct store *o = s->primary ? s->primary : s;

    return o->lending;
}

void *store_act(const struct store *s, const struct span *b)
{
    const struct store *o = s->primary;

    return o ? (char *)o->act.p + act_at(o, b->row + b->rows) -
                   act_at(s, b->rows) :
               (char *)s->act.p + act_at(s, b->row);
}

/* Tokens, or rows of x. */
static int append_rows(struct store *s, const struct batch *b, struct err *e)
{
    int64_t rows = s->rows + b->rows, cap = rows + rows / 2;

    if (!b->tokens.p) {
        if (region_reserve(&s->x, (size_t)rows * x_row(s), e) < 0)
            return e->code;
        threads_copy(store_x(s, s->rows), b->s.x, (size_t)b->rows * x_row(s));
        return 0;
    }
    if (rows > s->tokens_cap) {
        if (mem_grow(&s->tokens, (size_t)cap * sizeof(*s->tokens), "tokens",
                     e) < 0)
            return e->code;
        s->tokens_cap = cap;
    }
    memcpy(s->tokens + s->rows, b->tokens.p,
           (size_t)b->rows * sizeof(*s->tokens));
    return 0;
}

static int append(struct store *s, const struct batch *b, struct err *e)
{
    struct span to = { s->n_sequences, b->n, s->rows, b->rows };

    if (s->n_sequences + b->n > s->cap) {
        int64_t cap = 2 * s->cap + b->n;

        if (mem_grow(&s->sequence, (size_t)cap * sizeof(*s->sequence),
                     "sequences", e) < 0)
            return e->code;
        s->cap = cap;
    }
    if (s->n_batches == s->batches_cap) {
        int64_t cap = 2 * s->batches_cap + 16;

        if (mem_grow(&s->batch, (size_t)cap * sizeof(*s->batch), "batches", e) <
            0)
            return e->code;
        s->batches_cap = cap;
    }
    if (append_rows(s, b, e) < 0)
        return e->code;
    for (int64_t i = 0; i < b->n; i++)
        s->sequence[s->n_sequences++] =
            (struct sequence){ b->length[i], b->sequence[i] };
    s->batch[s->n_batches++] = to;
    s->rows += b->rows;
    return 0;
}

int store_make(struct store *s, int64_t rows, struct err *e)
{
    s->rows = rows;
    return region_reserve(&s->x, (size_t)rows * x_row(s), e);
}

int store_fill(struct store *s, struct batch_reader *f, struct err *e)
{
    struct batch *b = mem_zero(1, sizeof(*b), "batch", e);
    int rc = b ? 1 : e->code;

    while (rc > 0 && (rc = batch_reader_next(f, b, e)) > 0)
        if (append(s, b, e) < 0)
            rc = e->code;
    if (b) {
        state_release(&b->s);
        buffer_release(&b->tokens);
    }
    free(b);
    return rc;
}

int store_copy(struct store *t, const struct store *s, struct err *e)
{
    size_t n = (size_t)s->n_sequences, k = (size_t)s->n_batches;

    if (mem_grow(&t->sequence, n * sizeof(*t->sequence), "sequences", e) < 0 ||
        mem_grow(&t->batch, k * sizeof(*t->batch), "batches", e) < 0 ||
        (s->tokens ? mem_grow(&t->tokens, (size_t)s->rows * sizeof(*t->tokens),
                              "tokens", e) < 0 :
                     region_reserve(&t->x, (size_t)s->rows * x_row(s), e) < 0))
        return e->code;
    if (n) /* else s->sequence may be NULL */
        memcpy(t->sequence, s->sequence, n * sizeof(*t->sequence));
    if (k)
        memcpy(t->batch, s->batch, k * sizeof(*t->batch));
    if (s->tokens)
        memcpy(t->tokens, s->tokens, (size_t)s->rows * sizeof(*t->tokens));
    else
        threads_copy(t->x.p, s->x.p, (size_t)s->rows * x_row(s));
    t->n_sequences = t->cap = s->n_sequences;
    t->n_batches = t->batches_cap = s->n_batches;
    t->rows = s->rows;
    return 0;
}

/* ---- on a device ---- */

static size_t device_at(const struct store *s, const struct span *b)
{
    size_t at = act_at(s, b->row) + (size_t)b->first * DEVICE_LINE;

    return at / DEVICE_LINE * DEVICE_LINE;
}

/* Of so many rows' activations. */
static size_t device_bytes(const struct store *s, int64_t rows)
{
    return act_at(s, rows) + (size_t)(s->n_sequences + 1) * DEVICE_LINE;
}

static void *device_act(const struct store *s, const struct span *b)
{
    return (char *)s->device_act + device_at(s, b);
}

/* ---- what goes out ---- */

static void *host_difference(const struct store *o, const struct span *b)
{
    return (char *)o->act.p + act_at(o, b->row);
}

void store_refer(const struct store *s, const struct span *b, size_t at,
                 struct frame *f)
{
    f->data = (char *)store_act(s, b) + at;
}

void store_refer_difference(const struct store *o, const struct span *b,
                            size_t at, struct frame *f)
{
    f->data = (char *)host_difference(o, b) + at;
}

static size_t act_bytes(const struct store *s, const struct span *b,
                        int64_t layer, enum point p)
{
    return (size_t)(b->rows * point_width(model_config(s->m), layer, p)) *
           item(s);
}

static int open_difference(struct store *o, struct err *e)
{
    int64_t h = model_config(o->m)->hidden_size, rows = 0;

    for (int64_t i = 0; i < o->n_batches; i++)
        rows = o->batch[i].rows > rows ? o->batch[i].rows : rows;
    return model_alloc(o->m, &o->difference,
                       (size_t)(rows * (o->widest > h ? o->widest : h)) *
                           item(o),
                       false, NULL, e);
}

/* The rows of the first batches whose activations, of o, too, fit in `room` bytes. */
static int64_t rows_within(const struct store *s, const struct store *o,
                           size_t room)
{
    int64_t i = 0, rows = 0;

    for (; i < s->n_batches; i++) {
        rows = s->batch[i].row + s->batch[i].rows;
        if (device_bytes(s, rows) + (o ? device_bytes(o, rows) : 0) > room)
            break;
    }
    return i < s->n_batches ? s->batch[i].row : rows;
}

/* Where only this process reads them. */
static void open_own(struct store *s, struct store *o, size_t room)
{
    int64_t rows = rows_within(s, o, room);
    struct err why;

    if (!rows)
        return;
    s->device_rows = rows;
    if (model_alloc(s->m, &s->device_act, device_bytes(s, rows), false, NULL,
                    &why) < 0 ||
        (o && model_alloc(o->m, &o->device_act, device_bytes(o, rows), false,
                          NULL, &why) < 0)) {
        leave_device(s);
        if (o)
            leave_device(o);
    } else if (o) {
        o->device_rows = rows;
    }
}

/* Lend activations, if the reader can map them and there is room: s->lending. */
static int open_lending(struct store *s, bool both, size_t room, struct err *e)
{
    s->lending = mem_zero(1, sizeof(*s->lending), "lending", e);
    if (!s->lending)
        return e->code;
    *s->lending = (struct lending){ .m = s->m,
                                    .ledger = s->ledger,
                                    .batch = s->batch,
                                    .n_batches = s->n_batches,
                                    .both = both };
    if (!lending_open(s->lending, room))
        leave_lending(s);
    return 0;
}

/* Lend activations of both streams, or put those of as many batches as fit on the
 * device. */
static int open_device(struct store *s, struct store *o, struct err *e)
{
    size_t room;

    if (s->lending || s->device_act)
        return 0;
    if (model_spare_bytes(s->m, &room, e) < 0 ||
        (s->ledger && open_lending(s, o, room, e) < 0))
        return e->code;
    if (s->lending)
        return 0;
    if (o && !o->difference && open_difference(o, e) < 0)
        return e->code;
    if (model_spare_bytes(s->m, &room, e) < 0)
        return e->code;
    open_own(s, o, room);
    return 0;
}

int store_open_act(struct store *s, struct store *o, int64_t layer,
                   struct err *e)
{
    int64_t rows = s->rows + SLACK_ROWS;

    if (model_on_device(s->m) && open_device(s, o, e) < 0)
        return e->code;
    if (s->lending) {
        lending_layer(s->lending, layer);
        return 0;
    }
    if (!s->rows)
        return 0;
    if (region_reserve(&s->act, act_at(s, rows), e) < 0 ||
        (o && region_reserve(&o->act, act_at(o, rows), e) < 0))
        return e->code;
    return 0;
}

int store_subtract(const struct store *o, const struct span *b, const void *a,
                   const void *here, const float *bias, int64_t width,
                   struct err *e)
{
    size_t bytes = (size_t)(b->rows * width) * item(o);
    void *to;

    if (!model_on_device(o->m))
        return model_subtract(o->m, host_difference(o, b),
                              a ? a : store_act(o, b), here, bias, b->rows,
                              width, e);
    to = o->difference;
    if (!a && there(o, b))
        a = device_act(o, b);
    if (!a) {
        if (model_put(o->m, to, store_act(o, b), bytes, e) < 0)
            return e->code;
        a = to;
    }
    if (model_subtract(o->m, to, a, here, bias, b->rows, width, e) < 0)
        return e->code;
    return model_get(o->m, host_difference(o, b), to, bytes, e);
}

int store_load(const struct store *s, const struct span *b, enum point at,
               struct state *st, struct err *e)
{
    int64_t length[BATCH_SEQUENCES];

    for (int64_t i = 0; i < b->n; i++)
        length[i] = s->sequence[b->first + i].length;
    if (state_prepare(st, s->m, at, length, b->n, e) < 0)
        return e->code;
    st->x = store_rows(s, b->row);
    return 0;
}

int store_keep(const struct store *s, const struct span *b, int64_t layer,
               struct state *st, struct err *e)
{
    bool apart = model_on_device(s->m);

    st->end = !apart ? store_act(s, b) : there(s, b) ? device_act(s, b) : NULL;
    if (st->at == POINT_IN)
        return 0;
    if (st->end)
        st->act = st->end;
    return st->end ? 0 :
                     model_put(s->m, st->act, store_act(s, b),
                               act_bytes(s, b, layer, st->at), e);
}

int store_take(const struct store *s, const struct span *b, int64_t layer,
               const struct state *st, bool emit, struct err *e)
{
    if (!model_on_device(s->m) || st->at == POINT_OUT || (there(s, b) && !emit))
        return 0;
    return model_get(s->m, store_act(s, b), st->act,
                     act_bytes(s, b, layer, st->at), e);
}

int store_fetch_act(const struct store *s, const struct span *b, int64_t layer,
                    enum point at, struct err *e)
{
    return there(s, b) ? model_get(s->m, store_act(s, b), device_act(s, b),
                                   act_bytes(s, b, layer, at), e) :
                         0;
}

int store_put_act(const struct store *s, const struct span *b, int64_t layer,
                  enum point at, struct err *e)
{
    return there(s, b) ? model_put(s->m, device_act(s, b), store_act(s, b),
                                   act_bytes(s, b, layer, at), e) :
                         0;
}

void store_leave(const struct store *s, const struct span *b)
{
    if (region_fits())
        return;
    region_leave(&s->x, (size_t)b->row * x_row(s), (size_t)b->rows * x_row(s));
    region_leave(&s->act, act_at(s, b->row), act_at(s, b->rows));
}
