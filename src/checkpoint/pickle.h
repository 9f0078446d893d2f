/* pickle.h - a machine that runs the pickles of torch.save, and can build
 * tensors and nothing else.
 *
 * A pickle is a program, and may name any function of the Python that loads
 * it.  This machine knows the opcodes and the dozen names that a dict of
 * tensors needs (those that torch itself allows with weights_only); at
 * anything else it stops and says what the file wanted to run. */
#ifndef FORGE_PICKLE_H
#define FORGE_PICKLE_H

#include "checkpoint/checkpoint.h"

/* One tensor of the dict: a view of a storage. */
struct pickle_tensor {
    const char *name; /* NUL-terminated */
    const char *key;  /* of the storage, NUL-terminated: data/KEY */
    uint64_t storage_bytes;
    enum dtype dtype;
    int ndim;
    uint64_t dims[CHECKPOINT_MAX_DIMS];
    uint64_t stride[CHECKPOINT_MAX_DIMS]; /* in elements */
    uint64_t offset;                      /* in elements */
};

/* Run len bytes and call each() for the tensors of the dict that results, in
 * its order; each() is lent *t, and its non-zero return ends all.  what: for
 * messages.  E_DATA: not such a pickle, with the byte at which; E_TEMP. */
MUST_CHECK int pickle_run(const void *text, size_t len, const char *what,
                          int (*each)(void *arg, const struct pickle_tensor *t,
                                      struct err *e),
                          void *arg, struct err *e);

#endif
