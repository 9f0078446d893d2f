/* lending.c - see lending.h. */
#include "calib/lending.h"

#include "arch/device_bytes.h"
#include "device/device.h"

enum { ATTENTION, MLP };

static int group_of(enum point p)
{
    return p <= POINT_MLP_IN ? ATTENTION : MLP;
}

/* Bytes of a row of the activation. */
static size_t row_bytes(const struct lending *l, int64_t layer, enum point p)
{
    return (size_t)point_width(model_config(l->m), layer, p) *
           dtype_bits(model_dtype(l->m)) / 8;
}

/* Of its companion (emit.h), which may be as wide as the residual stream. */
static size_t companion_bytes(const struct lending *l, int64_t layer,
                              enum point p)
{
    const struct model_config *c = model_config(l->m);

    if (!l->both)
        return 0;
    return point_adds(c, layer, p) ?
               (size_t)c->hidden_size * dtype_bits(model_dtype(l->m)) / 8 :
               row_bytes(l, layer, p);
}

static size_t widest(const struct lending *l, int64_t layer, int group)
{
    const struct model_config *c = model_config(l->m);
    size_t most = 0;

    for (enum point p = POINT_ATTN_IN; p < POINT_OUT; p++) {
        size_t n = row_bytes(l, layer, p) + companion_bytes(l, layer, p);

        if (group_of(p) == group && point_exists(c, layer, p) && n > most)
            most = n;
    }
    return most;
}

/* Bytes of the places of the first n batches: two begin at lines in each. */
static size_t stay_bytes(const struct lending *l, size_t row, int64_t n)
{
    int64_t rows = n ? l->batch[n - 1].row + l->batch[n - 1].rows : 0;

    return device_lines((size_t)rows * row + 2 * DEVICE_LINE * (size_t)n);
}

static size_t turn_bytes(const struct lending *l, size_t row)
{
    int64_t rows = 0;

    for (int64_t i = 0; i < l->n_batches; i++)
        rows = l->batch[i].rows > rows ? l->batch[i].rows : rows;
    return device_lines((size_t)rows * row) + DEVICE_LINE;
}

static void lay_out(const struct lending *l, struct lending_places *p,
                    size_t row)
{
    size_t turns;

    *p = (struct lending_places){ .row = row,
                                  .stay = l->n_batches,
                                  .turn = turn_bytes(l, row) };
    if (stay_bytes(l, row, l->n_batches) <= l->bytes)
        return;
    turns = l->bytes / 2 / p->turn;
    p->turns = turns < 1             ? 1 :
               turns < LENDING_TURNS ? (int64_t)turns :
                                       LENDING_TURNS;
    while (p->stay &&
           stay_bytes(l, row, p->stay) > l->bytes - (size_t)p->turns * p->turn)
        p->stay--;
}

/* The largest of all layers' places, of all batches or of one turn. */
static size_t largest(const struct lending *l, bool all)
{
    size_t most = 0;

    for (int64_t i = 0; i < model_config(l->m)->n_layers; i++)
        for (int k = ATTENTION; k <= MLP; k++) {
            size_t row = widest(l, i, k);
            size_t n =
                all ? stay_bytes(l, row, l->n_batches) : turn_bytes(l, row);

            most = n > most ? n : most;
        }
    return most;
}

bool lending_open(struct lending *l, size_t room)
{
    const struct model_config *c = model_config(l->m);
    size_t item = dtype_bits(model_dtype(l->m)) / 8;
    const struct span *last;
    struct err why;
    double tokens;

    if (!l->n_batches)
        return false;
    last = &l->batch[l->n_batches - 1];
    tokens = (double)(last->row + last->rows);
    l->bytes = (size_t)lent_room((double)largest(l, true),
                                 experts_kept_bytes(c, item, tokens, l->both) +
                                     tokens * experts_pass_bytes(c, item),
                                 tokens * experts_lent_bytes(c, item, l->both),
                                 (double)room);
    if (largest(l, false) > l->bytes ||
        !ledger_lends(l->ledger, LEDGER_ACTIVATIONS))
        return false;
    if (device_functions()->block(device_gpu(), &l->block, l->bytes, &why) >=
            0 &&
        ledger_loan(l->block, 0, &l->loan, &why) >= 0)
        return true;
    lending_close(l);
    return false;
}

void lending_close(struct lending *l)
{
    if (l->block)
        device_functions()->drop(device_gpu(), l->block);
    l->block = NULL;
}

void lending_layer(struct lending *l, int64_t layer)
{
    l->layer = layer;
    for (int k = ATTENTION; k <= MLP; k++)
        lay_out(l, &l->places[k], widest(l, layer, k));
}

/* Which of the turns batch i takes; -1: it has a place of its own. */
static int turn_of(const struct lending *l, int64_t i, enum point at)
{
    const struct lending_places *p = &l->places[group_of(at)];

    return i < p->stay ? -1 : (int)((i - p->stay) % p->turns);
}

bool lending_keeps(const struct lending *l, int64_t i, enum point at)
{
    return (at == POINT_ATTN_OUT || at == POINT_MLP_MID) &&
           turn_of(l, i, at) < 0;
}

bool lending_is_free(const struct lending *l, int64_t i, enum point at)
{
    int turn = turn_of(l, i, at);

    return turn < 0 || ledger_is_back(l->ledger, turn);
}

void lending_take(struct lending *l, int64_t i, enum point at)
{
    int turn = turn_of(l, i, at);

    if (turn >= 0)
        l->lease[turn] = ledger_take(l->ledger, turn);
}

/* Where a batch's activation begins in the block. */
static size_t place(const struct lending *l, int64_t i, enum point at)
{
    const struct lending_places *p = &l->places[group_of(at)];
    int turn = turn_of(l, i, at);

    if (turn >= 0)
        return stay_bytes(l, p->row, p->stay) + (size_t)turn * p->turn;
    return device_lines((size_t)l->batch[i].row * p->row +
                        2 * DEVICE_LINE * (size_t)i);
}

static size_t companion_place(const struct lending *l, int64_t i, enum point at)
{
    return place(l, i, at) +
           device_lines((size_t)l->batch[i].rows * row_bytes(l, l->layer, at));
}

void *lending_rows(const struct lending *l, int64_t i, enum point at)
{
    return (char *)l->block + place(l, i, at);
}

void *lending_companion(const struct lending *l, int64_t i, enum point at)
{
    return (char *)l->block + companion_place(l, i, at);
}

static void refer(const struct lending *l, size_t at, struct frame *f)
{
    f->data = NULL;
    f->loan = l->loan;
    f->loan.offset += at;
}

void lending_refer(const struct lending *l, int64_t i, enum point p, size_t at,
                   struct frame *f)
{
    int turn = turn_of(l, i, p);
    size_t all = (size_t)l->batch[i].rows * row_bytes(l, l->layer, p);

    refer(l, place(l, i, p) + at, f);
    if (turn >= 0 && at + f->len == all)
        f->loan.lease = l->lease[turn];
}

void lending_refer_companion(const struct lending *l, int64_t i, enum point p,
                             size_t at, struct frame *f)
{
    refer(l, companion_place(l, i, p) + at, f);
}
