/* rope.h - rotary position embedding (Su et al. 2021): frequencies and tables.
 *
 * Element i of a head is rotated with element i + d/2: (x_i c - x_j s, x_j c +
 * x_i s).  Angles are computed in single precision, as transformers does: at
 * position 4,000 one rounding less in a frequency would give a visibly
 * different angle. */
#ifndef FORGE_ROPE_H
#define FORGE_ROPE_H

#include "arch/config.h"

/* inv[dim/2]: inverse frequencies for heads of `dim`.  Formulas as in
 * transformers' modeling_rope_utils: default, linear, llama3, yarn (Peng et
 * al. 2023, eq. 17-25), longrope; dynamic as default. */
void rope_frequencies(const struct rope *r, int64_t dim, float *inv);

/* Cosines and sines of positions 0..n-1, multiplied by attention_factor.
 * Zero-initialise. */
struct rope_table {
    int64_t n, half; /* positions; dim / 2 */
    float *cs;       /* [n, 2, half]: cosines, then sines */
};

/* Extend *t to at least n positions.  E_TEMP. */
MUST_CHECK int rope_table_reserve(struct rope_table *t, const struct rope *r,
                                  int64_t dim, int64_t n, struct err *e);
void rope_table_release(struct rope_table *t);

#endif
