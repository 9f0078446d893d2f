/* lanes.h - vectors of 16 elements: transposition of 16 x 16 blocks, and small
 * loops. */
#ifndef FORGE_LANES_H
#define FORGE_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/math/dtype.h"

enum { LANES = 16 };

/* SHUFFLE(a, b, mask, i...): the elements of vectors a and b with these
 * numbers, those of b counted on from a's.  mask: integer vector type of the
 * same shape.  (GCC 11 and clang spell it differently.) */
#ifdef __clang__
#define SHUFFLE(a, b, mask, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, mask, ...) __builtin_shuffle(a, b, (mask){ __VA_ARGS__ })
#endif

/* Transpose: to[c][r] = from[r][c] for r, c < LANES.  No overlap. */
typedef void lanes_transpose_fn(float *const to[LANES],
                                const float *const from[LANES]);
/* The fastest version of the current CPU level. */
lanes_transpose_fn *lanes_transpose_best(void);
lanes_transpose_fn lanes_transpose_plain;
/* Transpose a 16 x 16 block of bytes: to[c * ld + r] = from[r * LANES + c]. */
void lanes_transpose_bytes(uint8_t *to, size_t ld, const uint8_t *from);
/* to[i] += from[i] for i < n; prefetches next[0..n) meanwhile: rows of a tile
 * are too short for the hardware prefetcher.  No overlap. */
void lanes_add(float *to, const float *from, size_t n, const float *next);
/* Whether all of n floats (bf16) are finite. */
bool lanes_finite(const float *x, size_t n);
bool lanes_finite_bf16(const uint16_t *x, size_t n);
/* The same of x[n], DT_F32 or DT_BF16, by all threads. */
bool lanes_all_finite(const void *x, enum dtype t, uint64_t n);

#endif
