/* blocks.h - rows of weights as ggml's blocks of 32 (ggml-common.h).
 *
 *     Q4_0  f16 d,        16 bytes: (q - 8) d
 *     Q4_1  f16 d, f16 m, 16 bytes: q d + m, m = -z d
 *     Q8_0  f16 d,        32 signed bytes: q d
 *
 * In 4 bits, byte j has code j in its low nibble and code j + 16 in the high
 * one.  Threads as threads_set() said. */
#ifndef FORGE_GGUF_BLOCKS_H
#define FORGE_GGUF_BLOCKS_H

#include "common/math/dtype.h"
#include "gguf/gguf.h"

/* Which row of the source is row r of the file: llama.cpp rotates pairs of
 * neighbours where Hugging Face rotates halves of a head.  head 0: r. */
uint64_t block_row(uint64_t r, uint64_t head);

struct block_codes {
    uint64_t rows, cols, groups, group; /* multiples of 32: cols, group */
    uint64_t head;                      /* for block_row() */
    const uint8_t *codes;   /* [rows, cols / 2]; Q8_0: [rows, cols] */
    const uint8_t *zeros;   /* [rows, groups] */
    const uint16_t *scales; /* F16 [rows, groups] */
};

/* F16 of -zero * scale; false: beyond its range. */
bool block_min(uint16_t *m, uint16_t scale, int zero);
/* Whether m, which block_min() gave, is -zero * scale, not only near it. */
bool block_min_exact(uint16_t m, uint16_t scale, int zero);
/* t: GGUF_Q4_0, where all zeros are 8; GGUF_Q4_1; or GGUF_Q8_0, of codes of 8
 * bits, where all zeros are 128. */
void block_codes_pack(uint8_t *out, enum gguf_type t,
                      const struct block_codes *b);
/* Rounded to nearest: d the largest of 32 by 127, as ggml does. */
void block_q8_0(uint8_t *out, const float *w, uint64_t n);

#endif
