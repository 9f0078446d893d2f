/* unpack.h - the packed words of 4-bit checkpoints, back to codes and zeros.
 *
 * Rows are outputs (O), cols inputs (C), groups G per row.  A word is a
 * little-endian u32; nibble j is bits 4j..4j+3.  All layouts come to one:
 * codes [O, ceil(C/8)] words, input 8w+j in nibble j (so byte k/2 of a row,
 * low nibble first), unused nibbles 0; zeros [O, G], a byte each, 0..15.
 *
 *     AWQ gemm     qweight [C, O/8]        nibble i of word c: output
 *                  qzeros  [G, O/8]          8c + (0,2,4,6,1,3,5,7)[i]
 *     GPTQ         qweight [ceil(C/8), O]  nibble j of word r: input 8r+j
 *                  qzeros  [G, ceil(O/8)]  nibble j of word c: output 8c+j;
 *                                          v1 stores zero-1
 *     compressed-  weight_packed [O, ceil(C/8)]      as ours
 *     tensors      weight_zero_point [ceil(O/8), G]  nibble j: output 8w+j */
#ifndef FORGE_UNPACK_H
#define FORGE_UNPACK_H

#include "common/base.h"

C_BEGIN

static inline uint64_t unpack_words(uint64_t n)
{
    return n / 8 + (n % 8 != 0);
}

/* rows must be a multiple of 8. */
void unpack_awq_codes(uint32_t *codes, const uint32_t *qweight, uint64_t rows,
                      uint64_t cols);
void unpack_awq_zeros(uint8_t *zeros, const uint32_t *qzeros, uint64_t rows,
                      uint64_t groups);

void unpack_gptq_codes(uint32_t *codes, const uint32_t *qweight, uint64_t rows,
                       uint64_t cols);
/* v1: one is added to every nibble by adding 0x11111111 to the word, so that
 * a stored 15 carries into its neighbour: what GPTQModel subtracts when it
 * saves, it adds when it loads. */
void unpack_gptq_zeros(uint8_t *zeros, const uint32_t *qzeros, uint64_t rows,
                       uint64_t groups, bool v1);

void unpack_ct_codes(uint32_t *codes, const uint32_t *packed, uint64_t rows,
                     uint64_t cols);
void unpack_ct_zeros(uint8_t *zeros, const uint32_t *packed, uint64_t rows,
                     uint64_t groups);

C_END

#endif
