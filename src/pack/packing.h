/* packing.h - nibbles into the words of the runtimes' layouts.
 *
 * In: codes as FTS1 has them, rows of U4 with the first input in the low
 * nibble, read as little-endian words of eight.  rows (outputs) and words
 * (inputs / 8) are whole; the callers have checked it.  Threads as
 * threads_set() said; results do not depend on them. */
#ifndef FORGE_PACKING_H
#define FORGE_PACKING_H

#include "common/base.h"

/* out[words][rows] = in[rows][words]: GPTQ's qweight.  Element size 4. */
void pack_transpose_u32(uint32_t *out, const uint32_t *in, size_t rows,
                        size_t words);
/* The same for 16-bit elements: scales [rows, groups] -> [groups, rows]. */
void pack_transpose_u16(uint16_t *out, const uint16_t *in, size_t rows,
                        size_t cols);
/* AWQ's qweight out[8 * words][rows / 8]: nibble i of a word is output
 * 8c + {0,2,4,6,1,3,5,7}[i].  rows is a multiple of 8. */
void pack_awq(uint32_t *out, const uint32_t *in, size_t rows, size_t words);

/* Zeros z[rows][groups], one a byte, into words of eight outputs.
 * AWQ and GPTQ: out[groups][rows / 8]; awq: in AWQ's order of nibbles.
 * minus_one: GPTQ v1, one subtracted from every nibble of the word. */
void pack_zeros(uint32_t *out, const uint8_t *z, size_t rows, size_t groups,
                bool awq, bool minus_one);
/* compressed-tensors: out[rows / 8][groups]. */
void pack_zeros_ct(uint32_t *out, const uint8_t *z, size_t rows, size_t groups);

#endif
