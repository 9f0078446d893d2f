/* store.h - the states of all sequences: the residual stream x, and the
 * activation at the point that all sequences have reached.
 *
 * Sequences are grouped, once, into batches of at most BATCH_ROWS rows.  A
 * batch runs in place: the x of its struct state is memory of the store.
 *
 * If layers run on a device, store_place() moves x there, or to pinned memory of
 * the host if it does not fit, and the host keeps none of it.  Activations are lent
 * there (lending.h); or, if they cannot be, they are on the device of as many batches,
 * from the first on, as fit, and the host has copies of them, after store_take(), and
 * those of the other batches. */
#ifndef FORGE_STORE_H
#define FORGE_STORE_H

#include "calib/batch.h"
#include "calib/lending.h"
#include "common/io/region.h"

struct sequence {
    int64_t length;  /* tokens: rows of the store */
    uint64_t number; /* as in frames, from 1 */
};

struct store {
    const struct model *m;
    struct sequence *sequence;
    int64_t n_sequences, cap;
    struct span *batch;
    int64_t n_batches, batches_cap;
    int64_t rows;
    int64_t widest; /* elements per row reserved for activations */
    /* Reference stream: the store whose activation memory this one's share;
     * `act` then holds the companions, differences between the two streams.
     * NULL: no reference stream. */
    struct store *primary;
    int32_t *tokens; /* [rows] until x is made of them; or NULL */
    int64_t tokens_cap;
    struct region x, act;        /* the host's */
    void *device_x, *device_act; /* on the device; NULL: not there */
    int64_t device_rows;         /* rows whose activations are in device_act */
    void *difference; /* reference stream, on the device: a batch's companion */
    struct ledger *ledger; /* to lend activations by; or NULL */
    struct lending *lending;
};

/* Elements of a token's states in a store and its reference stream's: of x, which
 * each has; of activations; of companions (without a reference stream 0). */
struct store_width {
    int64_t x, act, companion;
};
struct store_width store_width(const struct model_config *c, bool reference);

/* dir: for temporary files.  m and dir must outlive the store. */
void store_init(struct store *s, const struct model *m, const char *dir);
/* Initialise o as the reference stream of s.  On the host o's activations use
 * the memory that s's leave free in s->act: they stay valid until s keeps an
 * activation of a later point.  Activations in front of linears that write into
 * the residual stream are not kept, since the reference passes that linear at
 * once. */
void store_init_reference(struct store *o, struct store *s);
void store_release(struct store *s);
/* Make room for so many rows of x, of no sequence.  Errors of region_reserve(). */
MUST_CHECK int store_make(struct store *s, int64_t rows, struct err *e);
/* Append all sequences of the reader, states or tokens.  Errors of batch_reader_next(),
 * region_reserve(). */
MUST_CHECK int store_fill(struct store *s, struct batch_reader *f,
                          struct err *e);
/* Copy the sequences and states of s to t, which is initialised and empty. */
MUST_CHECK int store_copy(struct store *t, const struct store *s,
                          struct err *e);
/* Call after the store is filled with tokens, and before they are used, if layers run
 * on the host: make x of them. */
MUST_CHECK int store_embed(struct store *s, struct err *e);
/* The same, and if layers run on a device make x there, or move it there.  From
 * then on store_host_x() has the host's rows. */
MUST_CHECK int store_place(struct store *s, struct err *e);
/* Reserve memory for the activations of all rows of s in a layer, and of its reference
 * stream o (NULL: none) with the companions. */
MUST_CHECK int store_open_act(struct store *s, struct store *o, int64_t layer,
                              struct err *e);
/* Where activations of s, or of the store whose reference stream it is, are lent; NULL:
 * they are not.  Then the functions from store_act() to store_put_act() have nothing to
 * do. */
struct lending *store_lending(const struct store *s);
/* Tokens of the longest sequence. */
int64_t store_longest(const struct store *s);
/* Bytes of x, all rows. */
size_t store_bytes(const struct store *s);
/* Address of row `row` of x, where layers run. */
void *store_rows(const struct store *s, int64_t row);
/* Address of row `row` of the host's x, which is not on a device. */
void *store_x(const struct store *s, int64_t row);
/* *rows = the batch's rows of x on the host: the store's, or if x is on a device a
 * copy in `room`.  Any thread may call it with a room of its own while the rows do
 * not change.  Errors of copying; E_TEMP. */
MUST_CHECK int store_host_x(const struct store *s, const struct span *b,
                            struct buffer *room, const void **rows,
                            struct err *e);
/* Address of the batch's activation on the host: contiguous rows of the point's
 * width. */
void *store_act(const struct store *s, const struct span *b);
/* Set f->data to `at` bytes into a batch's activation: memory that stays as it is until
 * the batch's mark is back. */
void store_refer(const struct store *s, const struct span *b, size_t at,
                 struct frame *f);
/* The same of the batch's companion, in a reference stream's store. */
void store_refer_difference(const struct store *o, const struct span *b,
                            size_t at, struct frame *f);
/* Companion of a batch: [b->rows, width] = a - here - bias, rounded to the model's
 * dtype.  here, a: [b->rows, width] where layers run; a NULL: the reference
 * stream's activation.  bias [width]; NULL: none. */
MUST_CHECK int store_subtract(const struct store *o, const struct span *b,
                              const void *a, const void *here,
                              const float *bias, int64_t width, struct err *e);
/* Set up the state st for batch b at a point: x is the store's, the activation
 * in memory of the state. */
MUST_CHECK int store_load(const struct store *s, const struct span *b,
                          enum point at, struct state *st, struct err *e);
/* Then let st's activations be in the store: st->act is the one stored for the
 * point where the state is, and layer_run() writes the one of its end there. */
MUST_CHECK int store_keep(const struct store *s, const struct span *b,
                          int64_t layer, struct state *st, struct err *e);
/* After layer_run(): if layers run on a device, copy st's activation to the
 * host where it is needed: there is no room on the device, or emit (it will be
 * written). */
MUST_CHECK int store_take(const struct store *s, const struct span *b,
                          int64_t layer, const struct state *st, bool emit,
                          struct err *e);
/* Copy the batch's activation at point `at`, if it is on the device, to the host;
 * and from there to where store_keep() expects it. */
MUST_CHECK int store_fetch_act(const struct store *s, const struct span *b,
                               int64_t layer, enum point at, struct err *e);
MUST_CHECK int store_put_act(const struct store *s, const struct span *b,
                             int64_t layer, enum point at, struct err *e);
/* Hint: the batch's rows are not needed soon; their pages may leave memory. */
void store_leave(const struct store *s, const struct span *b);

#endif
