/* hessian.h - GPTQ's Hessian of a linear layer's input x (arXiv 2210.17323,
 * 3.1): H = mean over tokens of 2 x xᵀ.
 *
 * Tokens are collected into chunks of HESSIAN_CHUNK; a chunk's products are
 * summed in f32, tile by tile, and added to the total.  Products of bf16 inputs
 * are exact in f32.  The order of the sums, and with it the rounding, depends
 * only on the order of the tokens: not on how they are cut into frames nor on
 * the number of threads.
 *
 * Layouts of the result, C = cols:
 *     block 0   [C(C+1)/2]   lower triangle by rows: (i, j <= i) at i(i+1)/2+j
 *     block G   [ceil(C/G), G, G]  the diagonal blocks, each whole; inputs that
 *               the last block lacks are zero rows and columns */
#ifndef FORGE_HESSIAN_H
#define FORGE_HESSIAN_H

#include "common/base.h"
#include "common/io/stream.h"
#include "common/math/dtype.h"
#include "hessian/hessian_shape.h"

enum { HESSIAN_CHUNK = 4096 };

struct hessian; /* an accumulator */
/* Memory of the device that a result is put into, lent to the solver. */
struct hessian_lease {
    void *block; /* NULL: none */
    struct loan loan;
};

/* *n = elements of the result.  E_DATA: its size overflows. */
MUST_CHECK int hessian_elements(uint64_t cols, uint64_t block, uint64_t *n,
                                struct err *e);
/* The C with C(C+1)/2 = n; 0: there is none. */
uint64_t hessian_cols(uint64_t n);

/* An accumulator, on the GPU where one is open and takes it.  E_TEMP; E_DATA:
 * too large; E_CONFIG: no OpenBLAS (needed by f32, and by blocks that are no
 * multiple of 32); E_DEVICE. */
MUST_CHECK int hessian_open(struct hessian **h, const struct hessian_shape *s,
                            struct err *e);
/* Tokens to add. */
struct hessian_part {
    const void *x;    /* [tokens, cols] */
    enum dtype dtype; /* any float type; converted to shape.dtype */
    uint64_t tokens;
    uint64_t first;    /* index of x's first token in its frame, for messages */
    bool there;        /* x is the device's: only if hessian_is_there() */
    const float *root; /* then: what its rows are multiplied by, of
                        * token_weights.h; NULL: 1 */
    /* NULL, or x of the whole current chunk, these tokens included, already
     * packed as in syrk.h and finite (cross_packed()); valid until the next
     * call of hessian_add() or hessian_finish().  Then tokens <=
     * hessian_room(). */
    uint16_t *packed;
};
/* E_DATA: "token 3: input 17 is not finite", or no float type; E_TEMP;
 * E_DEVICE. */
MUST_CHECK int hessian_add(struct hessian *h, const struct hessian_part *p,
                           struct err *e);
/* Tokens until the current chunk is full: at least one. */
uint64_t hessian_room(const struct hessian *h);
/* A finished accumulator for an H that was computed elsewhere: data is the mean
 * over so many tokens, hessian_elements() floats from mem_pages(), owned by *h
 * on success; NULL: it is where hessian_finish_there() will be told.  E_TEMP. */
MUST_CHECK int hessian_given(struct hessian **h, const struct hessian_shape *s,
                             uint64_t tokens, float *data, struct err *e);
uint64_t hessian_tokens(const struct hessian *h);
/* *data = H over all tokens added, hessian_elements() floats, owned by h.
 * Nothing can be added afterwards.  Memory of tokens is given back by
 * hessian_close(), not here, where others wait for H.  E_DATA: there was no token;
 * E_TEMP; E_DEVICE. */
MUST_CHECK int hessian_finish(struct hessian *h, const float **data,
                              struct err *e);
/* Whether it is made on the device, of bf16 tokens. */
bool hessian_is_there(const struct hessian *h);
/* As hessian_finish(), into memory of the device. */
MUST_CHECK int hessian_finish_there(struct hessian *h, float *out,
                                    struct err *e);
void hessian_close(struct hessian *h); /* NULL is allowed */

#endif
