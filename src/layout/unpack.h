/* unpack.h - unpacks codes and zeros of 4-bit checkpoints, and of 8-bit ones.
 *
 * O outputs (rows), C inputs (cols), G groups per row.  A word is a
 * little-endian u32; nibble j is its bits 4j..4j+3.  Results are the same for
 * all layouts:
 *
 *     codes [O, ceil(C/8)] words: input 8w+j in nibble j of word w (so input k
 *           is in byte k/2, even k in the low nibble); unused nibbles are 0
 *     zeros [O, G] bytes, 0..15
 *
 * In 8 bits a word has four bytes in place of eight nibbles: read 4 for 8, byte
 * for nibble, and 255 for 15.
 *
 * Sources:
 *
 *     AWQ gemm     qweight [C, O/8]        nibble i of word c: output
 *                  qzeros  [G, O/8]          8c + (0,2,4,6,1,3,5,7)[i]
 *     GPTQ         qweight [ceil(C/8), O]  nibble j of word r: input 8r+j
 *                  qzeros  [G, ceil(O/8)]  nibble j of word c: output 8c+j;
 *                                          v1 stores zero - 1
 *     compressed-  weight_packed [O, ceil(C/8)]      as the result
 *     tensors      weight_zero_point [ceil(O/8), G]  nibble j: output 8w+j */
#ifndef FORGE_UNPACK_H
#define FORGE_UNPACK_H

#include "common/base.h"

C_BEGIN

/* Words of n codes: ceil(n / 8), in 8 bits ceil(n / 4). */
static inline uint64_t unpack_words(uint64_t n, int bits)
{
    unsigned per = 32 / (unsigned)bits;

    return n / per + (n % per != 0);
}

/* rows: O, a multiple of 8; cols: C; groups: G. */
void unpack_awq_codes(uint32_t *codes, const uint32_t *qweight, uint64_t rows,
                      uint64_t cols);
void unpack_awq_zeros(uint8_t *zeros, const uint32_t *qzeros, uint64_t rows,
                      uint64_t groups);

/* bits: 4 or 8.  qweight [ceil(cols/8), rows]. */
void unpack_gptq_codes(uint32_t *codes, const uint32_t *qweight, uint64_t rows,
                       uint64_t cols, int bits);
/* v1: adds 0x11111111 (0x01010101) to each word, so that a stored nibble 15
 * carries into its neighbour; GPTQModel subtracts the same constant when it
 * saves. */
void unpack_gptq_zeros(uint8_t *zeros, const uint32_t *qzeros, uint64_t rows,
                       uint64_t groups, int bits, bool v1);

/* packed [rows, ceil(cols/8)]. */
void unpack_ct_codes(uint32_t *codes, const uint32_t *packed, uint64_t rows,
                     uint64_t cols, int bits);
/* packed [ceil(rows/8), groups]. */
void unpack_ct_zeros(uint8_t *zeros, const uint32_t *packed, uint64_t rows,
                     uint64_t groups, int bits);

C_END

#endif
