/* packing.c - see packing.h.
 *
 * The loops are transpositions: either the reads or the writes are strided.
 * They go by tiles of whole cache lines on both sides. */
#include "pack/packing.h"

#include <string.h>

#include "common/math/threads.h"

enum {
    TILE = 16, /* words of a cache line */
    TILE_ROWS = 8 * TILE
};

static const int awq_order[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };

struct job {
    void *out;
    const void *in;
    size_t rows, cols; /* of in; cols in words or elements */
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Transpose tiles begin..end-1 of TILE columns.  No two threads write the same
 * row of out. */
static void transpose_u32_part(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const uint32_t *in = j->in;
    uint32_t *out = j->out;

    for (size_t t = begin; t < end; t++) {
        size_t c0 = t * TILE, nc = least(TILE, j->cols - c0);

        for (size_t r0 = 0; r0 < j->rows; r0 += TILE) {
            size_t nr = least(TILE, j->rows - r0);
            uint32_t tile[TILE][TILE];

            for (size_t r = 0; r < nr; r++)
                for (size_t c = 0; c < nc; c++)
                    tile[c][r] = in[(r0 + r) * j->cols + c0 + c];
            for (size_t c = 0; c < nc; c++)
                memcpy(out + (c0 + c) * j->rows + r0, tile[c],
                       nr * sizeof(uint32_t));
        }
    }
}

void pack_transpose_u32(uint32_t *out, const uint32_t *in, size_t rows,
                        size_t words)
{
    struct job j = { out, in, rows, words };

    threads_for((words + TILE - 1) / TILE, 1, transpose_u32_part, &j);
}

static void transpose_u16_part(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const uint16_t *in = j->in;
    uint16_t *out = j->out;

    for (size_t t = begin; t < end; t++) {
        size_t r0 = t * 2 * TILE, r1 = least(r0 + 2 * TILE, j->rows);

        for (size_t c = 0; c < j->cols; c++)
            for (size_t r = r0; r < r1; r++)
                out[c * j->rows + r] = in[r * j->cols + c];
    }
}

void pack_transpose_u16(uint16_t *out, const uint16_t *in, size_t rows,
                        size_t cols)
{
    struct job j = { out, in, rows, cols };

    threads_for((rows + 2 * TILE - 1) / (2 * TILE), 4, transpose_u16_part, &j);
}

/* Exchange the bits m << s of *a with the bits m of *b. */
static inline void swap(uint32_t *a, uint32_t *b, int s, uint32_t m)
{
    uint32_t t = (*a >> s ^ *b) & m;

    *b ^= t;
    *a ^= t << s;
}

/* Transpose an 8 x 8 matrix of nibbles: nibble j of x[r] <-> nibble r of
 * x[j]. */
static inline void transpose_nibbles(uint32_t x[8])
{
    for (int r = 0; r < 4; r++)
        swap(&x[r], &x[r + 4], 16, 0x0000ffff);
    for (int r = 0; r < 8; r += 4) {
        swap(&x[r], &x[r + 2], 8, 0x00ff00ff);
        swap(&x[r + 1], &x[r + 3], 8, 0x00ff00ff);
    }
    for (int r = 0; r < 8; r += 2)
        swap(&x[r], &x[r + 1], 4, 0x0f0f0f0f);
}

/* Pack a tile: nw words of inputs by nb blocks of eight outputs. */
static void awq_tile(uint32_t *out, size_t out_cols, const uint32_t *in,
                     size_t words, size_t nb, size_t nw)
{
    uint32_t tile[TILE_ROWS][TILE];

    for (size_t b = 0; b < nb; b++)
        for (size_t w = 0; w < nw; w++) {
            uint32_t x[8];

            for (int i = 0; i < 8; i++)
                x[i] = in[(8 * b + awq_order[i]) * words + w];
            transpose_nibbles(x);
            for (int i = 0; i < 8; i++)
                tile[8 * w + i][b] = x[i];
        }
    for (size_t k = 0; k < 8 * nw; k++)
        memcpy(out + k * out_cols, tile[k], nb * sizeof(uint32_t));
}

static void awq_part(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const uint32_t *in = j->in;
    uint32_t *out = j->out;
    size_t blocks = j->rows / 8;

    for (size_t t = begin; t < end; t++) {
        size_t w0 = t * TILE, nw = least(TILE, j->cols - w0);

        for (size_t b0 = 0; b0 < blocks; b0 += TILE)
            awq_tile(out + 8 * w0 * blocks + b0, blocks,
                     in + 8 * b0 * j->cols + w0, j->cols,
                     least(TILE, blocks - b0), nw);
    }
}

void pack_awq(uint32_t *out, const uint32_t *in, size_t rows, size_t words)
{
    struct job j = { out, in, rows, words };

    threads_for((words + TILE - 1) / TILE, 1, awq_part, &j);
}

/* The zeros of group g of the outputs of word c. */
static uint32_t zero_word(const uint8_t *z, size_t groups, size_t c, size_t g,
                          int bits, bool awq)
{
    size_t per = 32 / (size_t)bits;
    uint32_t w = 0;

    for (size_t i = 0; i < per; i++)
        w |= (uint32_t)
                 z[(per * c + (awq ? (size_t)awq_order[i] : i)) * groups + g]
             << (size_t)bits * i;
    return w;
}

void pack_zeros(uint32_t *out, const uint8_t *z, size_t rows, size_t groups,
                int bits, bool awq, bool minus_one)
{
    uint32_t ones = bits == 8 ? 0x01010101 : 0x11111111; /* in every place */
    size_t words = rows * (size_t)bits / 32;

    for (size_t c = 0; c < words; c++)
        for (size_t g = 0; g < groups; g++)
            out[g * words + c] =
                zero_word(z, groups, c, g, bits, awq) - (minus_one ? ones : 0);
}

void pack_zeros_ct(uint32_t *out, const uint8_t *z, size_t rows, size_t groups,
                   int bits)
{
    for (size_t c = 0; c < rows * (size_t)bits / 32; c++)
        for (size_t g = 0; g < groups; g++)
            out[c * groups + g] = zero_word(z, groups, c, g, bits, false);
}
