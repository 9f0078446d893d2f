/* packing.h - rearranges codes of 4 bits, or of 8, into the 32-bit words of the runtimes'
 * layouts (forge-layouts(5)).
 *
 * Input: codes as streams store them (forge-stream(5)): rows (outputs) of U4,
 * the first input in the low nibble, read as little-endian words of eight
 * inputs; `words` = inputs / 8 per row.  Callers have checked that sizes are
 * multiples.  By all threads; results do not depend on their number. */
#ifndef FORGE_PACKING_H
#define FORGE_PACKING_H

#include "common/base.h"

/* GPTQ's qweight: out[words][rows] = in[rows][words]. */
void pack_transpose_u32(uint32_t *out, const uint32_t *in, size_t rows,
                        size_t words);
/* Transpose 16-bit elements: scales [rows, cols = groups] -> out[groups,
 * rows]. */
void pack_transpose_u16(uint16_t *out, const uint16_t *in, size_t rows,
                        size_t cols);
/* AWQ's qweight, out[8 * words (inputs)][rows / 8]: nibble i of word c is
 * output 8c + {0,2,4,6,1,3,5,7}[i].  rows is a multiple of 8. */
void pack_awq(uint32_t *out, const uint32_t *in, size_t rows, size_t words);

/* Zeros z[rows][groups], one per byte, into words of eight outputs (8 bits: four):
 * qzeros of AWQ and GPTQ, out[groups][rows / 8].  awq: AWQ's order of nibbles.
 * minus_one: GPTQ v1 stores zero - 1; all zeros must be > 0. */
void pack_zeros(uint32_t *out, const uint8_t *z, size_t rows, size_t groups,
                int bits, bool awq, bool minus_one);
/* The same for compressed-tensors' weight_zero_point, out[rows / 8][groups]. */
void pack_zeros_ct(uint32_t *out, const uint8_t *z, size_t rows, size_t groups,
                   int bits);

#endif
