/* hessian_entry.h - the inside of struct hessian_set: hessian_set.c adds to it,
 * hessian_tokens.c its tokens, hessian_emit.c writes out what is complete. */
#ifndef FORGE_HESSIAN_ENTRY_H
#define FORGE_HESSIAN_ENTRY_H

#include "arch/tensor_name.h"
#include "common/io/stream.h"
#include "hessian/blend.h"
#include "hessian/cross.h"
#include "hessian/hessian.h"
#include "hessian/hessian_shape.h"
#include "hessian/merging.h"

/* The companions of an activation x, in front of it (arch/tensor_name.h): y of
 * the cross moments E (drift), G (output), F (gap) of gptq/solve/target.h. */
enum { DRIFT, OUTPUT, GAP, PAIRS };
extern const enum companion pair_companion[PAIRS];

/* What is accumulated under a name. */
struct entry {
    char *name, *modules; /* modules: NULL when the frames list none */
    struct hessian *acc;  /* accumulator of activations, or NULL */
    struct cross *cross[PAIRS];
    uint64_t cross_rows[PAIRS];               /* that are wanted, */
    uint64_t cross_of[PAIRS];                 /* of so many */
    struct merging whole, cross_whole[PAIRS]; /* of parts that are merged */
    uint64_t cross_samples[PAIRS];
    uint64_t cols; /* of the activations */
    int64_t part;  /* of the tokens in acc and cross; params.parts */
    uint64_t elements, samples;
    uint64_t dims[3];
    int ndim;
    uint32_t block;
    struct hessian_lease lease; /* memory of the result, on the device */
    bool *given;                /* [n_inputs]: this input has given its part */
    bool emitted;
};

/* Memory of the host. */
struct room {
    void *p;
    size_t cap;
};

/* The last companion of a kind, a copy unless it is a loan, until its activation
 * comes. */
struct pair {
    struct frame f; /* role 0: none */
    struct room room;
};

struct hessian_set {
    struct hessian_set_params params;
    struct ledger *lends; /* what is written; NULL: nothing is lent */
    struct blend blend;
    struct pair pair[PAIRS];
    struct room fetched;
    struct room weighted, pair_weighted[PAIRS]; /* rows times root weights */
    struct entry *entry;
    size_t count;
};

/* At least n bytes; what is there stays.  E_TEMP. */
MUST_CHECK int room_need(struct room *r, size_t n, const char *what,
                         struct err *e);
/* Add the first n tokens of the activation f, whose companions have been matched, to
 * the moments of t.  Errors of hessian_add(), cross_add(); E_DEVICE, E_TEMP. */
MUST_CHECK int entry_add(struct hessian_set *c, struct entry *t,
                         const struct frame *f, uint64_t n, struct err *e);
/* Set t->cols, of its Hessian or of cross moments, which have as many.  E_DATA: names
 * the frame f. */
MUST_CHECK int entry_cols(struct entry *t, uint64_t cols, const struct frame *f,
                          struct err *e);
/* Free its accumulators. */
void entry_drop(struct entry *t);
/* Add what its accumulators hold, if there are, to the sums, and close them.
 * E_TEMP, E_DEVICE. */
MUST_CHECK int entry_merge(struct entry *t, struct err *e);

#endif
