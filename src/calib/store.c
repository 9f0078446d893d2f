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

/* Elements per row needed for the activations of any layer, plus `reference`
 * elements for the reference stream's (0: none); but not at POINT_MLP_MID, if
 * its linear writes into the residual stream: the reference has passed that
 * linear by then. */
static int64_t widest(const struct model_config *c, int64_t reference)
{
    int64_t w = 0;

    for (int64_t i = 0; i < c->n_layers; i++)
        for (enum point p = POINT_ATTN_IN; p < POINT_OUT; p++) {
            bool alone = p == POINT_MLP_MID && point_adds(c, i, p);
            int64_t n = point_width(c, i, p) + (alone ? 0 : reference);

            if (point_exists(c, i, p) && n > w)
                w = n;
        }
    return w;
}

/* The same for the activations that a reference stream keeps. */
static int64_t widest_reference(const struct model_config *c)
{
    int64_t w = 0;

    for (int64_t i = 0; i < c->n_layers; i++)
        for (enum point p = POINT_ATTN_IN; p < POINT_OUT; p++)
            if (point_exists(c, i, p) && !point_adds(c, i, p) &&
                point_width(c, i, p) > w)
                w = point_width(c, i, p);
    return w;
}

void store_init(struct store *s, const struct model *m, const char *dir)
{
    *s = (struct store){ .m = m, .widest = widest(model_config(m), 0) };
    region_init(&s->x, dir);
    region_init(&s->act, dir);
}

void store_init_reference(struct store *o, struct store *s)
{
    const struct model_config *c = model_config(s->m);

    store_init(o, s->m, s->x.dir);
    o->primary = s;
    o->widest = widest_reference(c);
    s->widest = widest(c, o->widest);
}

/* Blocks that were lent, or memory of our own. */
static void leave_device(struct store *s)
{
    bool blocks = s->lends && !s->primary;
    bool differences = s->primary && s->primary->lends;

    if (blocks)
        device_functions()->drop(device_gpu(), s->device_act);
    else
        model_free(s->m, s->device_act);
    if (differences)
        device_functions()->drop(device_gpu(), s->difference);
    else
        model_free(s->m, s->difference);
    s->device_act = s->difference = NULL;
}

void store_release(struct store *s)
{
    if (s->m) {
        model_free(s->m, s->device_x);
        leave_device(s);
    }
    region_release(&s->x);
    region_release(&s->act);
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

int store_place(struct store *s, struct err *e)
{
    if (!model_on_device(s->m))
        return 0;
    if (model_alloc(s->m, &s->device_x, store_bytes(s), true, NULL, e) < 0)
        return e->code;
    return model_put(s->m, s->device_x, s->x.p, store_bytes(s), e);
}

int store_fetch(const struct store *s, const struct span *b, struct err *e)
{
    if (!s->device_x)
        return 0;
    return model_get(s->m, store_x(s, b->row), store_rows(s, b->row),
                     (size_t)b->rows * x_row(s), e);
}

static size_t act_at(const struct store *s, int64_t row)
{
    return (size_t)row * (size_t)s->widest * item(s);
}

void *store_act(const struct store *s, const struct span *b)
{
    const struct store *o = s->primary;

    if (!o)
        return (char *)s->act.p + act_at(s, b->row);
    return (char *)o->act.p + act_at(o, b->row + b->rows) - act_at(s, b->rows);
}

static int append(struct store *s, const struct batch *b, struct err *e)
{
    struct span to = { s->n_sequences, b->n, s->rows, b->s.rows };

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
    if (region_reserve(&s->x, (size_t)(s->rows + b->s.rows) * x_row(s), e) < 0)
        return e->code;
    threads_copy(store_x(s, s->rows), b->s.x, (size_t)b->s.rows * x_row(s));
    for (int64_t i = 0; i < b->n; i++)
        s->sequence[s->n_sequences++] =
            (struct sequence){ b->length[i], b->sequence[i] };
    s->batch[s->n_batches++] = to;
    s->rows += b->s.rows;
    return 0;
}

int store_fill(struct store *s, struct batch_reader *f, struct err *e)
{
    struct batch *b = mem_zero(1, sizeof(*b), "batch", e);
    int rc = b ? 1 : e->code;

    while (rc > 0 && (rc = batch_reader_next(f, b, e)) > 0)
        if (append(s, b, e) < 0)
            rc = e->code;
    if (b)
        state_release(&b->s);
    free(b);
    return rc;
}

int store_copy(struct store *t, const struct store *s, struct err *e)
{
    size_t n = (size_t)s->n_sequences, k = (size_t)s->n_batches;

    if (mem_grow(&t->sequence, n * sizeof(*t->sequence), "sequences", e) < 0 ||
        mem_grow(&t->batch, k * sizeof(*t->batch), "batches", e) < 0 ||
        region_reserve(&t->x, (size_t)s->rows * x_row(s), e) < 0)
        return e->code;
    if (n) /* else s->sequence may be NULL */
        memcpy(t->sequence, s->sequence, n * sizeof(*t->sequence));
    if (k)
        memcpy(t->batch, s->batch, k * sizeof(*t->batch));
    threads_copy(t->x.p, s->x.p, (size_t)s->rows * x_row(s));
    t->n_sequences = t->cap = s->n_sequences;
    t->n_batches = t->batches_cap = s->n_batches;
    t->rows = s->rows;
    return 0;
}

/* ---- on a device ---- */

/* Batches begin at multiples of LINE bytes: cuBLAS may choose a product's
 * algorithm by the alignment of its operands, and results must not depend on
 * it. */
enum { LINE = 256 };

static size_t device_at(const struct store *s, const struct span *b)
{
    size_t at = act_at(s, b->row) + (size_t)b->first * LINE;

    return at / LINE * LINE;
}

static size_t device_bytes(const struct store *s)
{
    return act_at(s, s->rows) + (size_t)(s->n_sequences + 1) * LINE;
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

static void *device_difference(const struct store *o, const struct span *b)
{
    return o->primary->lends ? (char *)o->difference + device_at(o, b) :
                               o->difference;
}

void store_refer(const struct store *s, const struct span *b, size_t at,
                 struct frame *f)
{
    f->loan = s->loan;
    f->loan.offset = device_at(s, b) + at;
    f->lent = true;
    f->data = s->lends ? NULL : (char *)store_act(s, b) + at;
}

void store_refer_difference(const struct store *o, const struct span *b,
                            size_t at, struct frame *f)
{
    f->loan = o->loan;
    f->loan.offset = device_at(o, b) + at;
    f->lent = true;
    f->data = o->primary->lends ? NULL : (char *)host_difference(o, b) + at;
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

static int block(void **p, size_t n, struct loan *loan, struct err *e)
{
    return device_functions()->block(device_gpu(), p, n, e) < 0 ?
               e->code :
               ledger_loan(*p, 0, loan, e);
}

/* The same where the next tool reads them: all in blocks, or nothing. */
static void open_blocks(struct store *s, struct store *o, size_t room)
{
    size_t both = o ? 2 * device_bytes(o) : 0;
    struct err why;

    if (device_bytes(s) + both > room ||
        !ledger_lends(s->ledger, LEDGER_ACTIVATIONS))
        return;
    s->lends = true;
    if (block(&s->device_act, device_bytes(s), &s->loan, &why) >= 0 &&
        (!o || (block(&o->difference, device_bytes(o), &o->loan, &why) >= 0 &&
                model_alloc(o->m, &o->device_act, device_bytes(o), false, NULL,
                            &why) >= 0)))
        return;
    leave_device(s);
    if (o)
        leave_device(o);
    s->lends = false;
    s->loan.lent = 0;
    if (o)
        o->loan.lent = 0;
}

/* Put the activations of both streams on the device, if all of them fit; else
 * none. */
static int open_device(struct store *s, struct store *o, struct err *e)
{
    size_t room, need = device_bytes(s) + (o ? device_bytes(o) : 0);
    struct err why;

    if (s->device_act)
        return 0;
    if (model_spare_bytes(s->m, &room, e) < 0)
        return e->code;
    if (s->ledger)
        open_blocks(s, o, room);
    if (s->lends)
        return 0;
    if (o && !o->difference && open_difference(o, e) < 0)
        return e->code;
    if (need > room)
        return 0;
    if (model_alloc(s->m, &s->device_act, device_bytes(s), false, NULL, &why) >=
            0 &&
        o)
        (void)!model_alloc(s->m, &o->device_act, device_bytes(o), false, NULL,
                           &why);
    if (o && !o->device_act) {
        model_free(s->m, s->device_act);
        s->device_act = NULL;
    }
    return 0;
}

int store_open_act(struct store *s, struct store *o, struct err *e)
{
    if (model_on_device(s->m) && open_device(s, o, e) < 0)
        return e->code;
    if (s->lends)
        return 0;
    if (region_reserve(&s->act, act_at(s, s->rows + SLACK_ROWS), e) < 0 ||
        (o && region_reserve(&o->act, act_at(o, o->rows + SLACK_ROWS), e) < 0))
        return e->code;
    return 0;
}

int store_subtract(const struct store *o, const struct span *b, const void *a,
                   const void *here, const float *bias, int64_t width,
                   struct err *e)
{
    size_t bytes = (size_t)(b->rows * width) * item(o);
    void *host = host_difference(o, b), *to;

    if (!model_on_device(o->m))
        return model_subtract(o->m, host, a ? a : store_act(o, b), here, bias,
                              b->rows, width, e);
    to = device_difference(o, b);
    if (!a && o->device_act)
        a = device_act(o, b);
    if (!a) {
        if (model_put(o->m, to, store_act(o, b), bytes, e) < 0)
            return e->code;
        a = to;
    }
    if (model_subtract(o->m, to, a, here, bias, b->rows, width, e) < 0)
        return e->code;
    return o->primary->lends ? device_functions()->settle(device_gpu(), e) :
                               model_get(o->m, host, to, bytes, e);
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

    st->end = !apart        ? store_act(s, b) :
              s->device_act ? device_act(s, b) :
                              NULL;
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
    if (!model_on_device(s->m) || st->at == POINT_OUT ||
        (s->device_act && !emit))
        return 0;
    if (s->lends)
        return device_functions()->settle(device_gpu(), e);
    return model_get(s->m, store_act(s, b), st->act,
                     act_bytes(s, b, layer, st->at), e);
}

int store_fetch_act(const struct store *s, const struct span *b, int64_t layer,
                    enum point at, struct err *e)
{
    return s->device_act ? model_get(s->m, store_act(s, b), device_act(s, b),
                                     act_bytes(s, b, layer, at), e) :
                           0;
}

int store_put_act(const struct store *s, const struct span *b, int64_t layer,
                  enum point at, struct err *e)
{
    return s->device_act ? model_put(s->m, device_act(s, b), store_act(s, b),
                                     act_bytes(s, b, layer, at), e) :
                           0;
}

void store_leave(const struct store *s, const struct span *b)
{
    region_leave(&s->x, (size_t)b->row * x_row(s), (size_t)b->rows * x_row(s));
    region_leave(&s->act, act_at(s, b->row), act_at(s, b->rows));
}
