/* syrk.h - tiles of XᵀX (BLAS's syrk) for X [tokens, cols] in bf16, by the
 * kernels of common/math/bf16_kernel.h.
 *
 * X is packed once for all tiles, into panels of SYRK_PANEL columns of token
 * pairs, the layout of the kernels' right operand:
 *
 *     panel p, pair t:  x[2t][32p] x[2t+1][32p] x[2t][32p+1] x[2t+1][32p+1] ...
 *
 * Kernels of tiles (AMX) need the left operand transposed; memory for that
 * follows each panel (syrk_prepare()).  `room` below: the number of tokens that
 * the packed array is made for, even, the same in all calls. */
#ifndef FORGE_SYRK_H
#define FORGE_SYRK_H

#include "common/math/bf16_kernel.h"

enum {
    SYRK_PANEL = KERNEL_COLS,
    SYRK_TILE = 288 /* rows and columns of a tile: whole steps of all kernels */
};

/* Elements of the packed array. */
uint64_t syrk_packed(uint64_t room, uint64_t cols);
/* Index of a panel's first element. */
uint64_t syrk_packed_at(uint64_t room, uint64_t panel);
/* Number of panels. */
uint64_t syrk_panels(uint64_t cols);
/* The least number of panels of so many tokens (> 0) that is worth a thread:
 * new tokens are in the caches of the thread that read them, and a smaller
 * piece is packed before another thread has woken up. */
size_t syrk_pack_grain(uint64_t tokens);
/* Pack panels begin..end-1 of x[tokens, cols] as the tokens from number `first`
 * on.  If the number of tokens is odd, the last pair is completed by zeros.
 * False: an element is not finite. */
MUST_CHECK bool syrk_pack(uint16_t *packed, uint64_t room, uint64_t first,
                          const uint16_t *x, uint64_t tokens, uint64_t cols,
                          uint64_t begin, uint64_t end);
/* Call once after the last syrk_pack() and before syrk_tile().  By all
 * threads. */
void syrk_prepare(uint16_t *packed, uint64_t room, uint64_t tokens,
                  uint64_t panels);
/* p[rows, cols], row stride SYRK_TILE, = X[:, i..]ᵀ X[:, j..] over the first
 * `tokens` tokens, in f32.  i and j are multiples of SYRK_PANEL; rows, cols <=
 * SYRK_TILE.  On the diagonal (i == j) only the lower triangle is valid. */
void syrk_tile(float *p, const uint16_t *packed, uint64_t room, uint64_t tokens,
               uint64_t i, uint64_t j, uint64_t rows, uint64_t cols);

#endif
