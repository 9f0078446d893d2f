/* lanes.h - blocks of 16 x 16 numbers from rows to columns and back: between
 * how matrices are stored and how kernels want them. */
#ifndef FORGE_LANES_H
#define FORGE_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 16 };

/* Elements of vectors a and b by number, those of b counted on from a's; mask
 * is a type of as many integers of the same width.  (GCC 11 has one spelling,
 * clang the other.) */
#ifdef __clang__
#define SHUFFLE(a, b, mask, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, mask, ...) __builtin_shuffle(a, b, (mask){ __VA_ARGS__ })
#endif

/* to[c][r] = from[r][c], r and c below LANES; the two do not overlap. */
typedef void lanes_transpose_fn(float *const to[LANES],
                                const float *const from[LANES]);
/* The fastest of the level in use, and the plain one. */
lanes_transpose_fn *lanes_transpose_best(void);
lanes_transpose_fn lanes_transpose_plain;
/* Of bytes: to[c * ld + r] = from[r * LANES + c]. */
void lanes_transpose_bytes(uint8_t *to, size_t ld, const uint8_t *from);
/* to[n] += from[n]; next[n] is asked for meanwhile: rows of a tile are too short
 * for that to happen by itself.  No overlap. */
void lanes_add(float *to, const float *from, size_t n, const float *next);
/* Whether n floats are neither infinite nor NaN; and n of bf16. */
bool lanes_finite(const float *x, size_t n);
bool lanes_finite_bf16(const uint16_t *x, size_t n);

#endif
