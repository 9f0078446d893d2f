/* hessian.h - H = mean over tokens of 2 x xᵀ, of the inputs of linear layers.
 *
 * Tokens are gathered into chunks of HESSIAN_CHUNK; a chunk's products are
 * summed in f32 tile by tile and the tile's sum is then added to the total.
 * Products of bf16 inputs are exact in f32, so only the order of the sums
 * matters, and that depends on the order of the tokens alone: neither on how
 * they are cut into frames nor on the number of threads.
 *
 * Layouts of the result, C = cols:
 *     block 0   [C(C+1)/2]   lower triangle by rows: (i, j <= i) at i(i+1)/2+j
 *     block G   [ceil(C/G), G, G]  the diagonal blocks, each whole; inputs that
 *               the last block lacks are zero rows and columns */
#ifndef FORGE_HESSIAN_H
#define FORGE_HESSIAN_H

#include "common/base.h"
#include "common/math/dtype.h"
#include "hessian/hessian_shape.h"

enum { HESSIAN_CHUNK = 4096 };

struct hessian; /* an accumulator */

/* Elements of the result; E_DATA when it cannot be addressed. */
MUST_CHECK int hessian_elements(uint64_t cols, uint64_t block, uint64_t *n,
                                struct err *e);
/* cols of a packed lower triangle of n elements; 0 when there is none. */
uint64_t hessian_cols(uint64_t n);

/* E_TEMP; E_CONFIG when OpenBLAS is missing (f32 only). */
MUST_CHECK int hessian_open(struct hessian **h, const struct hessian_shape *s,
                            struct err *e);
/* x[tokens, cols] of any float dtype, which is converted to shape.dtype. */
struct hessian_part {
    const void *x;
    enum dtype dtype;
    uint64_t tokens;
    uint64_t first; /* how many of its frame came before, for messages */
    /* NULL, or x of the whole chunk as syrk.h has it, finite, by somebody who
     * gets the same parts; it stays until the next one or hessian_finish() */
    uint16_t *packed;
};
/* Add it.  With `packed` it is at most hessian_room() tokens.
 * E_DATA, "token 3: input 17 is not finite"; E_TEMP. */
MUST_CHECK int hessian_add(struct hessian *h, const struct hessian_part *p,
                           struct err *e);
/* Tokens that the chunk at hand has room for: at least one. */
uint64_t hessian_room(const struct hessian *h);
/* An accumulator that is finished: the mean over so many tokens, of
 * hessian_elements(), is data, which belongs to it from here on.  E_TEMP. */
MUST_CHECK int hessian_given(struct hessian **h, const struct hessian_shape *s,
                             uint64_t tokens, float *data, struct err *e);
uint64_t hessian_tokens(const struct hessian *h);
/* The mean over all tokens added, hessian_elements() floats that belong to h.
 * Nothing can be added afterwards.  E_DATA when there was no token. */
MUST_CHECK int hessian_finish(struct hessian *h, const float **data,
                              struct err *e);
void hessian_close(struct hessian *h); /* NULL is allowed */

/* Whether n numbers of DT_BF16 or DT_F32 are neither infinite nor NaN; by all
 * threads. */
bool hessian_finite(const void *x, enum dtype t, uint64_t n);

/* ---- parts of one mean: (n1 H1 + n2 H2 + ...) / (n1 + n2 + ...) ---- */

/* sum[n] += samples * part[n], in double. */
void hessian_merge_add(double *sum, const float *part, uint64_t n,
                       uint64_t samples);
/* out[n] = sum[n] / samples, rounded once; out may be sum. */
void hessian_merge_mean(float *out, const double *sum, uint64_t n,
                        uint64_t samples);

#endif
