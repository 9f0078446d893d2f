/* npy.h - ids from a NumPy array file. */
#ifndef FORGE_NPY_H
#define FORGE_NPY_H

#include "tokens/input.h"
#include "tokens/sequence_list.h"

/* int32 or int64, [n, T] or [T], little-endian.  E_DATA: something else, or an
 * id not below vocab_size; E_USAGE: params that do not fit ids. */
MUST_CHECK int sequences_npy(struct sequences *s,
                             const struct sequences_params *p, struct input *in,
                             struct err *e);

#endif
