/* unpack.c - see unpack.h. */
#include "layout/unpack.h"

#include <string.h>

#include "common/math/threads.h"

enum { NIBBLES = 8, TILE = 16 };

/* Nibble i of an AWQ word belongs to output 8c + awq_order[i]. */
static const int awq_order[NIBBLES] = { 0, 2, 4, 6, 1, 3, 5, 7 };

/* Mask of the bits in use in the last word of n elements. */
static uint32_t tail_mask(uint64_t n, int bits)
{
    unsigned used = (unsigned)(n * (unsigned)bits % 32);

    return used ? (1u << used) - 1 : UINT32_MAX;
}

/* Element i of a word. */
static uint8_t element(uint32_t word, uint64_t i, int bits)
{
    return (uint8_t)(word >> (unsigned)bits * i & (bits == 8 ? 255 : 15));
}

/* Inputs k0..k0+n-1 (n <= 8) of the eight outputs of word column c: transposes
 * 8 x 8 nibbles. */
static void awq_block(uint32_t out[NIBBLES], const uint32_t *qweight,
                      uint64_t width, uint64_t c, uint64_t k0, uint64_t n)
{
    memset(out, 0, NIBBLES * sizeof(*out));
    for (uint64_t k = 0; k < n; k++) {
        uint32_t word = qweight[(k0 + k) * width + c];

        for (int i = 0; i < NIBBLES; i++)
            out[awq_order[i]] |= (word >> 4 * i & 15) << 4 * k;
    }
}

struct codes {
    uint32_t *to;
    const uint32_t *from;
    uint64_t rows, cols;
    int bits;
};

/* Word columns begin..end-1, TILE at a time, whose reads share cache lines. */
static void awq_columns(void *ctx, size_t begin, size_t end)
{
    const struct codes *q = ctx;
    uint64_t width = q->rows / 8, words = unpack_words(q->cols, 4);

    for (uint64_t c0 = begin; c0 < end; c0 += TILE)
        for (uint64_t w = 0; w < words; w++) {
            uint64_t left = q->cols - 8 * w, n = left < 8 ? left : 8;
            uint64_t stop = end - c0 < TILE ? end : c0 + TILE;
            uint32_t out[NIBBLES];

            for (uint64_t c = c0; c < stop; c++) {
                awq_block(out, q->from, width, c, 8 * w, n);
                for (uint64_t i = 0; i < NIBBLES; i++)
                    q->to[(8 * c + i) * words + w] = out[i];
            }
        }
}

void unpack_awq_codes(uint32_t *codes, const uint32_t *qweight, uint64_t rows,
                      uint64_t cols)
{
    struct codes q = { codes, qweight, rows, cols, 4 };

    threads_for(rows / 8, TILE, awq_columns, &q);
}

void unpack_awq_zeros(uint8_t *zeros, const uint32_t *qzeros, uint64_t rows,
                      uint64_t groups)
{
    uint64_t width = rows / 8;

    for (uint64_t g = 0; g < groups; g++)
        for (uint64_t c = 0; c < width; c++)
            for (int i = 0; i < NIBBLES; i++)
                zeros[(8 * c + awq_order[i]) * groups + g] =
                    qzeros[g * width + c] >> 4 * i & 15;
}

/* Transposes words of rows begin..end-1, in tiles that fit the cache. */
static void gptq_rows(void *ctx, size_t begin, size_t end)
{
    const struct codes *q = ctx;
    uint64_t words = unpack_words(q->cols, q->bits);

    for (uint64_t o0 = begin; o0 < end; o0 += TILE)
        for (uint64_t w = 0; w < words; w++) {
            uint64_t stop = end - o0 < TILE ? end : o0 + TILE;
            uint32_t mask =
                w + 1 == words ? tail_mask(q->cols, q->bits) : UINT32_MAX;

            for (uint64_t o = o0; o < stop; o++)
                q->to[o * words + w] = q->from[w * q->rows + o] & mask;
        }
}

void unpack_gptq_codes(uint32_t *codes, const uint32_t *qweight, uint64_t rows,
                       uint64_t cols, int bits)
{
    struct codes q = { codes, qweight, rows, cols, bits };

    threads_for(rows, TILE, gptq_rows, &q);
}

void unpack_gptq_zeros(uint8_t *zeros, const uint32_t *qzeros, uint64_t rows,
                       uint64_t groups, int bits, bool v1)
{
    uint32_t one = bits == 8 ? 0x01010101u : 0x11111111u;
    uint64_t width = unpack_words(rows, bits);
    unsigned per = 32 / (unsigned)bits;

    for (uint64_t g = 0; g < groups; g++)
        for (uint64_t c = 0; c < width; c++) {
            uint32_t word = qzeros[g * width + c] + (v1 ? one : 0);

            for (uint64_t o = per * c; o < rows && o < per * (c + 1); o++)
                zeros[o * groups + g] = element(word, o % per, bits);
        }
}

void unpack_ct_codes(uint32_t *codes, const uint32_t *packed, uint64_t rows,
                     uint64_t cols, int bits)
{
    uint64_t words = unpack_words(cols, bits);
    uint32_t mask = tail_mask(cols, bits);

    memcpy(codes, packed, rows * words * sizeof(*codes));
    for (uint64_t o = 0; o < rows && mask != UINT32_MAX; o++)
        codes[o * words + words - 1] &= mask;
}

void unpack_ct_zeros(uint8_t *zeros, const uint32_t *packed, uint64_t rows,
                     uint64_t groups, int bits)
{
    unsigned per = 32 / (unsigned)bits;

    for (uint64_t o = 0; o < rows; o++)
        for (uint64_t g = 0; g < groups; g++)
            zeros[o * groups + g] =
                element(packed[o / per * groups + g], o % per, bits);
}
