/* pickle.h - runs the pickles of torch.save; can build tensors and nothing
 * else.
 *
 * A pickle is a program that may call any Python function.  This machine knows
 * only the opcodes and names that a dict of tensors needs (a subset of what
 * torch allows with weights_only=True); anything else is refused with a
 * message that names it. */
#ifndef FORGE_PICKLE_H
#define FORGE_PICKLE_H

#include "checkpoint/checkpoint.h"

enum { PICKLE_NAME = 250 }; /* bytes of a name in a dict, at most */

/* A tensor of the dict: a view of a storage. */
struct pickle_tensor {
    const char *name; /* NUL-terminated */
    const char *key;  /* of the storage: its data is the record data/KEY */
    uint64_t storage_bytes;
    enum dtype dtype;
    int ndim;
    uint64_t dims[CHECKPOINT_MAX_DIMS];
    uint64_t stride[CHECKPOINT_MAX_DIMS]; /* in elements */
    uint64_t offset;                      /* in elements */
};

typedef int pickle_each(void *arg, const struct pickle_tensor *t,
                        struct err *e);

/* Run text[len] and call each() for every tensor of the resulting dict, in its
 * order; those of a list or tuple under NAME are called NAME[0], NAME[1], ...  *t
 * is valid during the call; a non-zero result of each() ends the run and is
 * returned.  what: prefix of messages.  E_DATA: not such a pickle, with the offset;
 * E_TEMP. */
MUST_CHECK int pickle_run(const void *text, size_t len, const char *what,
                          pickle_each *each, void *arg, struct err *e);

#endif
