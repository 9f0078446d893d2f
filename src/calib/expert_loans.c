/* expert_loans.c - see expert_loans.h. */
#include "calib/expert_loans.h"

#include "arch/device_bytes.h"
#include "device/device.h"

static int64_t width_of(const struct expert_loans *l,
                        enum expert_rows_kind kind)
{
    const struct model_config *c = model_config(l->m);

    return kind == EXPERT_ROWS_MID ? c->moe.width : c->hidden_size;
}

static size_t row_bytes(const struct expert_loans *l,
                        enum expert_rows_kind kind)
{
    return (size_t)width_of(l, kind) * dtype_bits(model_dtype(l->m)) / 8;
}

/* Whether there are blocks of a kind. */
static bool is_lent(enum expert_rows_kind kind, bool both)
{
    return both || kind == EXPERT_ROWS_IN || kind == EXPERT_ROWS_MID;
}

static void drop_blocks(struct expert_loans *l)
{
    for (int k = 0; k < EXPERT_ROWS_KINDS; k++)
        for (int i = 0; i < 2; i++) {
            if (l->block[k][i].p && !l->shared)
                device_functions()->drop(device_gpu(), l->block[k][i].p);
            l->block[k][i].p = NULL;
        }
    l->rows = 0;
    l->shared = false;
}

/* All blocks, of l->rows rows, or none. */
static void open_blocks(struct expert_loans *l, bool both)
{
    const struct device_table *d = device_functions();
    struct err why;

    for (int k = 0; k < EXPERT_ROWS_KINDS; k++)
        for (int i = 0; i < 2 && is_lent(k, both); i++)
            if (d->block(device_gpu(), &l->block[k][i].p,
                         (size_t)l->rows * row_bytes(l, k), &why) < 0 ||
                ledger_loan(l->block[k][i].p, 0, &l->block[k][i].loan, &why) <
                    0) {
                drop_blocks(l);
                return;
            }
}

static size_t block_bytes(const struct expert_loans *l,
                          enum expert_rows_kind kind)
{
    return device_lines((size_t)l->rows * row_bytes(l, kind));
}

/* Parts of the memory that activations are lent in, which has room for l->rows. */
static void share_blocks(struct expert_loans *l, const struct lending *lending,
                         bool both)
{
    size_t at = 0;

    l->shared = true;
    for (int k = 0; k < EXPERT_ROWS_KINDS; k++)
        for (int i = 0; i < 2 && is_lent(k, both); i++) {
            l->block[k][i].p = (char *)lending->block + at;
            l->block[k][i].loan = lending->loan;
            l->block[k][i].loan.offset += at;
            at += block_bytes(l, k);
        }
}

int expert_loans_open(struct expert_loans *l, const struct store *s, bool both,
                      struct err *e)
{
    const struct lending *lending = store_lending(s);
    size_t room, shared = 0, row = 0,
                 lines = 2 * EXPERT_ROWS_KINDS * DEVICE_LINE;
    size_t most;

    if (l->opened)
        return 0;
    l->opened = true;
    l->m = s->m;
    if (!model_on_device(s->m) || !ledger_lends(s->ledger, LEDGER_ACTIVATIONS))
        return 0;
    if (model_spare_bytes(s->m, &room, e) < 0)
        return e->code;
    for (int k = 0; k < EXPERT_ROWS_KINDS; k++)
        row += is_lent(k, both) ? 2 * row_bytes(l, k) : 0;
    most = (size_t)expert_rows_lent(model_config(s->m), s->rows);
    room = room / row < most ? room / row : most;
    if (lending && lending->bytes > lines)
        shared = (lending->bytes - lines) / row;
    l->rows = (int64_t)(shared < room ? room : shared < most ? shared : most);
    if (l->rows && shared >= room)
        share_blocks(l, lending, both);
    else if (l->rows)
        open_blocks(l, both);
    return 0;
}

void expert_loans_close(struct expert_loans *l)
{
    drop_blocks(l);
}

bool expert_loans_fit(const struct expert_loans *l, int64_t rows)
{
    return rows && rows <= l->rows;
}

void *expert_loans_rows(const struct expert_loans *l,
                        enum expert_rows_kind kind, int64_t turn, int64_t first)
{
    return (char *)l->block[kind][turn % 2].p +
           (size_t)first * row_bytes(l, kind);
}

int expert_loans_lend(const struct expert_loans *l, enum expert_rows_kind kind,
                      int64_t turn, struct frame *f, struct err *e)
{
    f->loan = l->block[kind][turn % 2].loan;
    f->data = NULL;
    return device_functions()->settle(device_gpu(), e);
}
