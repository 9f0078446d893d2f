/* store.h - the states of all sequences: the residual stream, and the
 * activation at the point that they have reached.
 *
 * Sequences are grouped into batches of about BATCH_ROWS rows, once.  A batch
 * is run in place: its state's x is the store's.
 *
 * Where layers run on a device, x is there once it is placed (or, where that
 * ends, in memory of the host that the device reaches), and so are activations,
 * if there is room for all of them.  The host's rows are then copies for others:
 * of x when it was fetched, of activations when they were taken. */
#ifndef FORGE_STORE_H
#define FORGE_STORE_H

#include "calib/batch.h"
#include "common/io/region.h"

struct sequence {
    int64_t length;
    uint64_t number; /* as frames count them, from 1 */
};

/* Sequences first .. first + n - 1, rows row .. row + rows - 1. */
struct span {
    int64_t first, n, row, rows;
};

struct store {
    const struct model *m;
    struct sequence *sequence;
    int64_t n_sequences, cap;
    struct span *batch;
    int64_t n_batches, batches_cap;
    int64_t rows;
    int64_t widest; /* of activations: elements that a row has room for */
    /* of a reference stream: the store whose room its activations share; its act
     * then holds the differences between the two.  NULL: this is no reference */
    struct store *primary;
    struct region x, act;
    void *device_x, *device_act; /* NULL: not there */
    void *difference;            /* there, of a batch, in a reference stream */
};

/* dir: of temporary files. */
void store_init(struct store *s, const struct model *m, const char *dir);
/* The same for the reference stream of s.  Its activations in front of linears
 * that write into the residual stream are not kept, and those that are lie in
 * what s's leave free of their room: they stay until s keeps one of a point
 * behind theirs and the linear there. */
void store_init_reference(struct store *o, struct store *s);
void store_release(struct store *s);
/* Append all sequences of the reader. */
MUST_CHECK int store_fill(struct store *s, struct batch_reader *f,
                          struct err *e);
/* The same sequences and states as s has, in t, which store_init() made. */
MUST_CHECK int store_copy(struct store *t, const struct store *s,
                          struct err *e);
/* Move x to where layers run, when all is filled. */
MUST_CHECK int store_place(struct store *s, struct err *e);
/* Room for activations of all rows of s, and of its reference stream (NULL: none),
 * and there for differences. */
MUST_CHECK int store_open_act(struct store *s, struct store *o, struct err *e);
/* Of all rows of x. */
size_t store_bytes(const struct store *s);
/* Row `row` of x where layers run. */
void *store_rows(const struct store *s, int64_t row);
/* x of a batch to the host, if it is not there. */
MUST_CHECK int store_fetch(const struct store *s, const struct span *b,
                           struct err *e);
/* Row `row` of the host's x. */
void *store_x(const struct store *s, int64_t row);
/* Where the host's rows of a batch's activation begin: they are contiguous. */
void *store_act(const struct store *s, const struct span *b);
/* Where the host's rows of the reference stream lie that are put out for a batch:
 * as many rows, no wider than a row of its activations or of x. */
void *store_difference(const struct store *o, const struct span *b);
/* What is put out for a batch of `width` numbers a row: a - here - bias (NULL:
 * none), rounded to elements.  here: where layers run; a NULL: the activation of
 * the reference stream; else it is there, too. */
MUST_CHECK int store_subtract(const struct store *o, const struct span *b,
                              const void *a, const void *here,
                              const float *bias, int64_t width, struct err *e);
/* Point a state at the rows of a batch, at a point; its activation is in the
 * state's own memory. */
MUST_CHECK int store_load(const struct store *s, const struct span *b,
                          enum point at, struct state *st, struct err *e);
/* The same state has its activations in the store: that of the point of the layer
 * where it is, and the one where layer_run() ends, when it was taken. */
MUST_CHECK int store_keep(const struct store *s, const struct span *b,
                          int64_t layer, struct state *st, struct err *e);
/* emit: the host wants it, too. */
MUST_CHECK int store_take(const struct store *s, const struct span *b,
                          int64_t layer, const struct state *st, bool emit,
                          struct err *e);
/* The batch is not looked at for a while. */
void store_leave(const struct store *s, const struct span *b);

#endif
