/* rope.h - rotary position embedding: frequencies and tables.
 *
 * Pairs are halves: element i of a head turns with element i + d/2
 * (x_i c - x_j s, x_j c + x_i s).  Angles are formed in single precision, as
 * the reference implementation does: at position 4,000 a frequency that is
 * more exact by one rounding would already turn the vector elsewhere. */
#ifndef FORGE_ROPE_H
#define FORGE_ROPE_H

#include "arch/config.h"

/* inv[dim/2] = inverse frequencies of heads of `dim`.  Formulas: default,
 * linear (factor), llama3 (three bands), yarn (Peng et al. 2023, eq. 17-25);
 * dynamic is default. */
void rope_frequencies(const struct rope *r, int64_t dim, float *inv);

/* cos and sin of positions 0..n-1, times the attention factor. */
struct rope_table {
    int64_t n, half; /* positions, dim / 2 */
    float *cs;       /* [n][2][half]: cos, then sin */
};

/* Make *t hold at least n positions (it starts zeroed, and grows). */
MUST_CHECK int rope_table_reserve(struct rope_table *t, const struct rope *r,
                                  int64_t dim, int64_t n, struct err *e);
void rope_table_release(struct rope_table *t);

#endif
