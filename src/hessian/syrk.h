/* syrk.h - tiles of XᵀX for bf16 X, by the kernels of common/math/bf16_kernel.h.
 *
 * X is packed once for all tiles, into panels of SYRK_PANEL columns of token
 * pairs, as kernels want their right side:
 *
 *     panel p, pair t:  x[2t][32p] x[2t+1][32p] x[2t][32p+1] x[2t+1][32p+1] ...
 *
 * Room behind each panel is for the left side of kernels that want it another
 * way (syrk_prepare). */
#ifndef FORGE_SYRK_H
#define FORGE_SYRK_H

#include "common/math/bf16_kernel.h"

enum {
    SYRK_PANEL = KERNEL_COLS,
    SYRK_TILE = 288 /* rows and columns of a tile: whole steps of all kernels */
};

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
/* When all tokens are there, before tiles are made: by all threads. */
void syrk_prepare(uint16_t *packed, uint64_t room, uint64_t tokens,
                  uint64_t panels);
/* p[SYRK_TILE, SYRK_TILE] = columns i.. of X, transposed, times columns j..;
 * i and j are multiples of SYRK_PANEL; rows x cols of p are made, of a tile
 * on the diagonal (i == j) the lower triangle. */
void syrk_tile(float *p, const uint16_t *packed, uint64_t room, uint64_t tokens,
               uint64_t i, uint64_t j, uint64_t rows, uint64_t cols);

#endif
