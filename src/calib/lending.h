/* lending.h - memory of the device in which activations are lent to the next tool
 * (device/ledger.h), with their companions.
 *
 * At a point the first batches have places of their own in one block.  If not all
 * fit, the others take turns in a few places, each when the reader has returned the
 * loan before.  What a turn held is gone: where the layer goes on it is computed from
 * x again, to the same bits (model.h), so no activation leaves the device, and any
 * number of tokens works with room for a batch.
 *
 * Who waits: the thread that runs batches, for forge-hessian to return a turn's loan.
 * - The frames of that turn get into the pipe without the waiting thread: the thread
 *   of the emission (emit.h) writes them, and flushes.  If it fails, the wait ends.
 * - forge-hessian takes frames in their order, and needs no later one to be done with
 *   a turn: an activation and its companion, of which moments need both, are in one
 *   place, and the last frame of a place has its lease.
 * - It waits for room in its output only, whose readers need no further frame of the
 *   point: what is made of the points before is sent.  Their codes are read by the
 *   thread of the feedback, which waits for nobody.
 * - One turn is held at a time, so nobody has one and waits for another.  The
 *   reference stream has none.
 * - If the reader dies its loans count as returned; writing to the pipe then fails. */
#ifndef FORGE_LENDING_H
#define FORGE_LENDING_H

#include "device/ledger.h"
#include "model/model.h"

/* A batch: sequences first..first+n-1, rows row..row+rows-1 of the store. */
struct span {
    int64_t first, n, row, rows;
};

/* Batches begin at multiples of DEVICE_LINE bytes on a device: cuBLAS may choose a
 * product's algorithm by the alignment of its operands, and results must not depend on
 * it. */
enum { DEVICE_LINE = 256 };

static inline size_t device_lines(size_t bytes)
{
    return (bytes + DEVICE_LINE - 1) / DEVICE_LINE * DEVICE_LINE;
}

enum { LENDING_TURNS = 8 };

/* Where the batches are in the block, at the points of a layer's attention up to
 * POINT_MLP_IN, or at POINT_MLP_MID. */
struct lending_places {
    size_t row;   /* bytes of a row and its companion, at the widest point */
    int64_t stay; /* batches with places of their own */
    int64_t turns;
    size_t turn; /* bytes of the place of a turn */
};

struct lending {
    const struct model *m;
    struct ledger *ledger;
    const struct span *batch; /* [n_batches] */
    int64_t n_batches;
    bool both;   /* activations have companions */
    void *block; /* NULL: nothing is lent */
    size_t bytes;
    struct loan loan;
    int64_t layer;
    struct lending_places places[2]; /* in the layer: attention, MLP */
    uint32_t lease[LENDING_TURNS];
};

/* Make the block, of at most `room` bytes; the caller has set what is in front of it.
 * False: nothing is lent, since the reader cannot map it, or there is no room for a
 * batch. */
bool lending_open(struct lending *l, size_t room);
void lending_close(struct lending *l); /* zeroed is allowed */
/* Lay out the block for a layer. */
void lending_layer(struct lending *l, int64_t layer);
/* Whether the activation of batch i at a point is there until that of the next point
 * is written: its place is its own, and no other point shares it. */
bool lending_keeps(const struct lending *l, int64_t i, enum point at);
/* Whether batch i can be written at a point: nobody reads what its place held. */
bool lending_is_free(const struct lending *l, int64_t i, enum point at);
/* Take that place. */
void lending_take(struct lending *l, int64_t i, enum point at);
/* The place: rows of the point's width, and of the companion's. */
void *lending_rows(const struct lending *l, int64_t i, enum point at);
void *lending_companion(const struct lending *l, int64_t i, enum point at);
/* f->loan = that of its payload, `at` bytes into the batch's activation at point p, or
 * into the companion.  The batch's last activation has the lease. */
void lending_refer(const struct lending *l, int64_t i, enum point p, size_t at,
                   struct frame *f);
void lending_refer_companion(const struct lending *l, int64_t i, enum point p,
                             size_t at, struct frame *f);

#endif
