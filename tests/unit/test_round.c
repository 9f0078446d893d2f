/* test_round.c - codes and grids of round_absmax() against the definitions of quant.h
 * in plain loops: at every level, of every type of weights, on the edges of rounding
 * and of the types. */
#include "pack/round.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "test.h"

static uint64_t state = 9;

static uint32_t rnd(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* Weights of all magnitudes, groups of zeros, of one sign, and exact ties. */
static float weight(uint64_t group)
{
    float x = (float)((int)(rnd() % 2001) - 1000) / 1000;

    switch (group % 6) {
    case 0: return ldexpf(x, (int)(rnd() % 8) - 6);
    case 1: return 0;
    case 2: return fabsf(x) * 1e-3f;
    case 3: return -fabsf(x) * 300;
    case 4: return (float)((int)(rnd() % 31) - 15) / 2; /* half steps of 1 */
    default: return ldexpf(x, -130); /* below BF16's and F16's normal numbers */
    }
}

/* The grid that spans w[n], by the text of grid.h. */
static uint32_t grid_of(const float *w, uint64_t n, bool symmetric,
                        enum dtype scale)
{
    double lo = 0, hi = 0, s, zero;
    uint32_t meta;

    for (uint64_t i = 0; i < n; i++) {
        lo = fmin(lo, (double)w[i]);
        hi = fmax(hi, (double)w[i]);
    }
    s = (double)(float)((symmetric ? 2 * fmax(-lo, hi) : hi - lo) / 15);
    meta = quant_meta((float)s, 8, symmetric, 4, scale);
    if (symmetric || !(s > 0))
        return meta;
    zero = rint((float)(-lo) / quant_grid(meta, scale).scale);
    return quant_with_zero(meta, (int)fmin(zero, 15));
}

static void check(uint64_t rows, uint64_t cols, uint64_t group, enum dtype t,
                  enum dtype scale, bool symmetric)
{
    struct round_params p = { "w", rows, cols, group, symmetric, t, scale };
    uint64_t groups = quant_groups(cols, group), item = dtype_bits(t) / 8;
    float *w = malloc(rows * cols * sizeof(*w));
    char *in = malloc(rows * cols * item);
    uint8_t *codes = malloc(rows * cols / 2), *row = malloc(cols);
    uint32_t *meta = malloc(rows * groups * sizeof(*meta));
    struct err e;

    CHECK(w && in && codes && row && meta);
    for (uint64_t i = 0; i < rows * cols; i++)
        w[i] = weight(i / cols * groups + i % cols / group);
    CHECK(from_f32(in, t, w, rows * cols) && to_f32(w, in, t, rows * cols));
    CHECK(!round_absmax(&p, in, meta, codes, &e));
    for (uint64_t r = 0; r < rows; r++) {
        quant_unpack_row(row, codes + r * (cols / 2), cols, 4);
        for (uint64_t i = 0; i < cols; i++) {
            uint64_t first = i / group * group, left = cols - first;
            uint32_t want =
                grid_of(w + r * cols + first, left < group ? left : group,
                        symmetric, scale);

            CHECK(meta[r * groups + i / group] == want);
            CHECK(row[i] ==
                  quant_code(w[r * cols + i], quant_grid(want, scale)));
        }
    }
    free(w);
    free(in);
    free(codes);
    free(row);
    free(meta);
}

static void test_level(void)
{
    static const enum dtype types[] = { DT_BF16, DT_F16, DT_F32 };
    static const uint64_t shape[][3] = {
        { 24, 256, 128 }, { 5, 96, 32 },  { 3, 40, 16 },   { 9, 8, 8 },
        { 7, 72, 24 },    { 4, 100, 64 }, { 2, 30, 1024 }, { 2, 512, 40 },
    };

    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 12; k++)
            check(shape[i][0], shape[i][1], shape[i][2], types[k % 3],
                  k / 3 % 2 ? DT_BF16 : DT_F16, k >= 6);
}

static void refused(int code, const char *says, float value, enum dtype scale)
{
    struct round_params p = { "m.w", 4, 64, 32, true, DT_F32, scale };
    float w[4 * 64] = { 0 };
    uint32_t meta[8];
    uint8_t codes[4 * 32];
    struct err e;

    w[2 * 64 + 33] = value;
    CHECK(round_absmax(&p, w, meta, codes, &e) == code);
    CHECK(!code || strstr(e.msg, says));
}

static void test_refused(void)
{
    refused(E_DATA, "'m.w': row 2: input 33 is not finite", INFINITY, DT_F16);
    refused(E_DATA, "'m.w': row 2: input 33 is not finite", NAN, DT_BF16);
    refused(E_CONFIG,
            "'m.w': row 2: the weights of group 1 are so large that "
            "they need a scale of",
            -5e5f, DT_F16);
    refused(0, "", -5e5f, DT_BF16);
    refused(0, "", 4.9e5f, DT_F16);
}

int main(void)
{
    each_level(test_level);
    each_level(test_refused);
    return 0;
}
