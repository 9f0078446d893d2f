/* syrk.h - tiles of XᵀX for bf16 X, on CPUs that multiply bf16 themselves.
 *
 * X is packed once for all tiles, into panels of SYRK_PANEL columns of token
 * pairs, as the instruction wants them and for both sides of the product:
 *
 *     panel p, pair t:  x[2t][16p] x[2t+1][16p] x[2t][16p+1] x[2t+1][16p+1] ...
 *
 * oneDNN would pack each tile's two sides anew: 1.2 times ssyrk instead of 2. */
#ifndef FORGE_SYRK_H
#define FORGE_SYRK_H

#include "common/base.h"

enum {
    SYRK_PANEL = 16,
    SYRK_TILE = 240 /* rows and columns of a tile: whole steps of the kernel */
};

bool syrk_usable(void);
/* Elements of the packed form of up to `room` tokens (even). */
uint64_t syrk_packed(uint64_t room, uint64_t cols);
/* The element at which a panel begins. */
uint64_t syrk_packed_at(uint64_t room, uint64_t panel);
/* Panels begin..end-1 of x[tokens, cols], which become the tokens from `first`
 * on; there are syrk_panels(cols).  With an odd number of tokens in all the
 * last pair is filled up with zeros.  False: an element is not finite. */
uint64_t syrk_panels(uint64_t cols);
/* Panels of so many tokens that are worth a thread of their own: what has just
 * come is in the caches of the thread that read it, and less is packed before
 * another one is awake. */
size_t syrk_pack_grain(uint64_t tokens);
MUST_CHECK bool syrk_pack(uint16_t *packed, uint64_t room, uint64_t first,
                          const uint16_t *x, uint64_t tokens, uint64_t cols,
                          uint64_t begin, uint64_t end);
/* p[SYRK_TILE, SYRK_TILE] = columns i.. of X, transposed, times columns j..;
 * i and j are multiples of SYRK_PANEL; rows x cols of p are made, of a tile
 * on the diagonal (i == j) the lower triangle. */
void syrk_tile(float *p, const uint16_t *packed, uint64_t room, uint64_t tokens,
               uint64_t i, uint64_t j, uint64_t rows, uint64_t cols);

#endif
