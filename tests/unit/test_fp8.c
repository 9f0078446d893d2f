/* 8-bit floats with scales, against the formula: every code, ragged blocks of
 * several sizes, one thread and two. */
#include <math.h>
#include <string.h>

#include "common/math/fp8.h"
#include "common/math/threads.h"
#include "test.h"

enum { ROWS = 200, COLS = 333 };

/* The value of a code, from the format's definition. */
static double value(uint8_t code, bool e5m2)
{
    int bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    int e = code >> bits & (e5m2 ? 31 : 15), m = code & ((1 << bits) - 1);
    double sign = code & 128 ? -1 : 1, part = (double)m / (1 << bits);

    if (e5m2 && e == 31)
        return m ? (double)NAN : sign * (double)INFINITY;
    if (!e5m2 && (code & 127) == 127)
        return (double)NAN;
    return sign * (e ? ldexp(1 + part, e - bias) : ldexp(part, 1 - bias));
}

static void check(enum dtype dtype, uint64_t rows, uint64_t cols,
                  uint64_t block_rows, uint64_t block_cols)
{
    static uint8_t data[ROWS * COLS];
    static float scale[ROWS * COLS], single[ROWS * COLS];
    static uint16_t half[ROWS * COLS];
    float piece[COLS];
    struct fp8_matrix m = { dtype, data,       rows,      cols,
                            scale, block_rows, block_cols };
    uint64_t wide = (cols + block_cols - 1) / block_cols;

    for (uint64_t i = 0; i < rows * cols; i++) {
        data[i] = (uint8_t)(i * 37 + i / 256);
        scale[i] = ldexpf((float)(i % 11 + 1), (int)(i % 7) - 12);
    }
    memset(half, 0xee, sizeof(half));
    memset(single, 0xee, sizeof(single));
    fp8_to_bf16(half, &m);
    fp8_to_f32(single, &m);
    for (uint64_t i = 0; i < rows * cols; i++) {
        uint64_t r = i / cols, c = i % cols;
        double s = (double)scale[r / block_rows * wide + c / block_cols];
        float w = (float)(value(data[i], dtype == DT_F8_E5M2) * s);

        if (isnan(w)) {
            CHECK(isnan(single[i]) && isnan(f32_from_bf16(half[i])));
        } else {
            CHECK(single[i] == w);
            CHECK(half[i] == bf16_from_f32(w));
        }
    }
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t from = cols / 3, n = cols - from - cols / 7;

        fp8_piece(piece, &m, r, from, n);
        for (uint64_t i = 0; i < n; i++) {
            float w = f32_from_bf16(half[r * cols + from + i]);

            CHECK(piece[i] == w || (isnan(piece[i]) && isnan(w)));
        }
    }
    if (rows * cols < ROWS * COLS) {
        CHECK(half[rows * cols] == 0xeeee); /* nothing beyond the end */
    }
}

/* The largest of blocks, of which `special` has a code that is no number or infinite. */
static void check_most(enum dtype dtype, bool special)
{
    static uint8_t data[ROWS * COLS];
    static float scale[2 * 3], wide[ROWS * COLS];
    struct fp8_matrix m = { dtype, data, ROWS, COLS, scale, 128, 128 };
    uint8_t limit = dtype == DT_F8_E5M2 ? 0x7b : 0x7e;
    float most = 0;

    for (size_t i = 0; i < ARRAY_LEN(data); i++)
        data[i] = (uint8_t)(i * 37 % limit | (i % 3 ? 0 : 0x80));
    for (size_t i = 0; i < ARRAY_LEN(scale); i++)
        scale[i] = ldexpf(i % 2 ? 1.37f : -1.61f, (int)i);
    if (special)
        data[ROWS * 7 + 5] = limit + 1;
    fp8_to_f32(wide, &m);
    for (size_t i = 0; i < ARRAY_LEN(wide); i++)
        most = fabsf(wide[i]) > most ? fabsf(wide[i]) : most;
    if (!special)
        CHECK(fp8_most(&m) == f32_from_bf16(bf16_from_f32(most)));
    else
        CHECK(!isfinite(fp8_most(&m)));
}

static void test_most(void)
{
    for (int k = 0; k < 2; k++) {
        check_most(DT_F8_E4M3, k);
        check_most(DT_F8_E5M2, k);
    }
}

static void test_blocks(void)
{
    static const uint64_t block[][2] = {
        { 128, 128 }, { 1, COLS }, { ROWS, COLS }, { 64, 100 }, { 7, 1 }
    };

    for (int threads = 1; threads <= 2; threads++) {
        threads_set(threads);
        for (size_t i = 0; i < ARRAY_LEN(block); i++) {
            check(DT_F8_E4M3, ROWS, COLS, block[i][0], block[i][1]);
            check(DT_F8_E4M3, 5, 64, block[i][0], block[i][1]);
            check(DT_F8_E5M2, 3, 300, block[i][0], block[i][1]);
        }
        check(DT_F8_E4M3, 1, 1, 128, 128);
        check(DT_F8_E4M3, 0, 0, 128, 128);
    }
}

int main(void)
{
    test_most();
    each_level(test_blocks);
    return 0;
}
