/* expert_loans.h - device memory in which the rows of experts are lent to the
 * next tool (device/ledger.h).
 *
 * An expert's rows of a kind lie one behind the other in a block and go out in one
 * frame: each frame costs a wait for the device, which the processes that share it
 * get in turns.  The pass over the experts (model/moe.h) sends those of expert e + 2
 * after it has got the codes made of those of e, so two blocks of each kind are
 * enough.  An expert with more rows than a block has goes as bytes. */
#ifndef FORGE_EXPERT_LOANS_H
#define FORGE_EXPERT_LOANS_H

#include "calib/store.h"

enum expert_rows_kind {
    EXPERT_ROWS_IN,
    EXPERT_ROWS_DRIFT, /* companion of IN */
    EXPERT_ROWS_MID,
    EXPERT_ROWS_GAP, /* companion of MID */
    EXPERT_ROWS_KINDS
};

struct expert_loans {
    const struct model *m;
    int64_t rows;        /* of a block; 0: none are lent */
    bool opened, shared; /* shared: the blocks are parts of the store's */
    struct {
        void *p;
        struct loan loan;
    } block[EXPERT_ROWS_KINDS][2]; /* of an expert with an even turn; odd */
};

/* At the first call take the blocks from the memory that s lends activations in, which
 * is not used while experts run, or allocate them, of layers with experts of the model of
 * s; both: with companions.  None where the reader cannot map them, or
 * the device has no room. */
MUST_CHECK int expert_loans_open(struct expert_loans *l, const struct store *s,
                                 bool both, struct err *e);
void expert_loans_close(struct expert_loans *l); /* zeroed is allowed */
/* Whether an expert of so many rows has room. */
bool expert_loans_fit(const struct expert_loans *l, int64_t rows);
/* Where row number `first` of an expert that fits is put before it is lent: device
 * memory. */
void *expert_loans_rows(const struct expert_loans *l,
                        enum expert_rows_kind kind, int64_t turn,
                        int64_t first);
/* Make f a loan of all rows of the expert, which have been put there. */
MUST_CHECK int expert_loans_lend(const struct expert_loans *l,
                                 enum expert_rows_kind kind, int64_t turn,
                                 struct frame *f, struct err *e);

#endif
