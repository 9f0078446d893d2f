/* Products of f32 in bf16 parts against double precision, and what a part of the
 * right side is after it has been split. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/dtype.h"
#include "gptq/solve/split.h"
#include "test.h"

enum { R = SOLVE_ROWS, COLS = 160, TERMS = 288, SUMS = 3 };

static uint64_t seed = 5;

/* Of sizes from 2^-20 to 2^20. */
static float noise(void)
{
    int size;

    seed = seed * 6364136223846793005u + 1442695040888963407u;
    size = (int)(seed >> 20 & 63) % 41 - 20;
    return ldexpf((float)(int32_t)(seed >> 32) / 2147483648.0f, size);
}

/* right[COLS / 8][TERMS][8] */
static float *at(const void *of, uint64_t c, uint64_t k)
{
    return (float *)of + (c / 8 * TERMS + k) * 8;
}

static float *room(size_t n)
{
    float *x = aligned_alloc(64, n * sizeof(float));

    CHECK(x != NULL);
    for (size_t i = 0; i < n; i++)
        x[i] = noise();
    return x;
}

static void round_all(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;

        CHECK(from_f32(&h, DT_BF16, &x[i], 1));
        x[i] = f32_from_bf16(h);
    }
}

/* Columns c0..c1 by rows k0..k1 of it, of x or -x, which may be bf16. */
static void products(uint64_t c0, uint64_t c1, uint64_t k0, uint64_t k1,
                     bool minus, bool bf16)
{
    float *right = room(COLS * TERMS), *old = room(COLS * TERMS);
    float *x[SUMS], *sum[SUMS], *before[SUMS], *same[SUMS];
    struct split_part part = { at, right, c0, c1, k0, k1, bf16 };
    struct split_sum s[SUMS], f32[SUMS];

    memcpy(old, right, COLS * TERMS * sizeof(float));
    for (int i = 0; i < SUMS; i++) {
        uint16_t *left = (uint16_t *)room(TERMS * R);

        x[i] = room(TERMS * R);
        if (bf16)
            round_all(x[i], TERMS * R);
        sum[i] = room(COLS * R);
        before[i] = room(COLS * R);
        same[i] = room(COLS * R);
        memcpy(before[i], sum[i], COLS * R * sizeof(float));
        memcpy(same[i], sum[i], COLS * R * sizeof(float));
        split_left(left, x[i], TERMS, minus);
        s[i] = (struct split_sum){ sum[i], left, room(SPLIT_WORK) };
        f32[i] = (struct split_sum){ same[i], left, s[i].work };
    }
    split_right(&part);
    split_add(s, SUMS, &part);
    part.bf16 = false; /* the same bytes, and so without it */
    split_add(f32, SUMS, &part);
    for (int i = 0; i < SUMS; i++)
        CHECK(!memcmp(same[i], sum[i], COLS * R * sizeof(float)));
    for (uint64_t c = 0; c < COLS; c++)
        for (uint64_t k = 0; k < TERMS; k++) {
            float was = at(old, c, k)[c % 8];

            if (c >= c0 && c < c1 && k >= k0 && k < k1)
                CHECK(fabsf(split_element(&part, c, k) - was) <=
                      ldexpf(fabsf(was), -16));
            else
                CHECK(at(right, c, k)[c % 8] == was);
        }
    for (int i = 0; i < SUMS; i++)
        for (uint64_t c = 0; c < c1 - c0; c++)
            for (uint64_t r = 0; r < R; r++) {
                double want = 0, size = fabs((double)before[i][c * R + r]);

                for (uint64_t k = k0; k < k1; k++) {
                    double y = (double)x[i][k * R + r] *
                               (double)at(old, c0 + c, k)[(c0 + c) % 8];

                    want += minus ? -y : y;
                    size += fabs(y);
                }
                CHECK(fabs(sum[i][c * R + r] - before[i][c * R + r] - want) <=
                      ldexp(size, -15));
            }
    for (int i = 0; i < SUMS; i++) {
        free(x[i]);
        free(sum[i]);
        free(before[i]);
        free(same[i]);
        free((void *)s[i].left);
        free(s[i].work);
    }
    free(right);
    free(old);
}

int main(void)
{
    if (!split_is_there())
        return 0;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        products(0, COLS, 0, TERMS, false, bf16);
        products(16, 144, 32, TERMS, true, bf16);
        products(32, 48, 64, 96, false, bf16);
        products(0, 128, 160, 160, false, bf16);
    }
    return 0;
}
