/* npy.h - reads token ids from a NumPy array file (.npy). */
#ifndef FORGE_NPY_H
#define FORGE_NPY_H

#include "tokens/input.h"
#include "tokens/sequence_list.h"

/* Add a sequence per row of the array in `in`: int32 or int64, little-endian,
 * [n, T] or [T], in C order.  E_DATA: another file, or an id not below
 * vocab_size; E_USAGE: p->skip_chars, which is for text; E_IO; E_TEMP. */
MUST_CHECK int sequences_npy(struct sequences *s,
                             const struct sequences_params *p, struct input *in,
                             struct err *e);

#endif
