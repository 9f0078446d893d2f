/* Words packed on the GPU are the CPU's, to the bit; so are weights rounded to
 * nearest in one pass, with their grids, codes rounded on given grids, and the
 * scales that are decoded for them, for all exponents. */
#include "gpu.h"

#include "pack/pack_table.h"
#include "pack/packing.h"
#include "pack/round.h"

/* Codes of w on meta by common/quant.h, as FTS1's words. */
static uint32_t *round_all(const struct solve_params *p, const void *from,
                           const uint32_t *meta)
{
    uint64_t groups = quant_groups(p->cols, p->group);
    uint8_t *words = room(p->rows * p->cols / 2), *codes = room(p->cols);
    float *w = room(p->cols * 4);

    for (uint64_t r = 0; r < p->rows; r++) {
        const char *row =
            (const char *)from + r * p->cols * dtype_bits(p->dtype) / 8;

        CHECK(to_f32(w, row, p->dtype, p->cols));
        for (uint64_t i = 0; i < p->cols; i++)
            codes[i] = (uint8_t)quant_code(
                w[i],
                quant_grid(meta[r * groups + i / p->group], p->scale_dtype));
        quant_pack_row(words + r * p->cols / 2, codes, p->cols, 4);
    }
    free(codes);
    free(w);
    return (uint32_t *)(void *)words;
}

static void same(const char *what, const struct solve_params *p,
                 const uint32_t *want, const uint32_t *got)
{
    for (size_t i = 0; i < p->rows * p->cols / 8; i++)
        if (want[i] != got[i]) {
            fprintf(stderr,
                    "%s [%d, %d] group %d %s %s: word %zu: want %08x, got "
                    "%08x\n",
                    what, (int)p->rows, (int)p->cols, (int)p->group,
                    dtype_name(p->dtype), dtype_name(p->scale_dtype), i,
                    want[i], got[i]);
            exit(1);
        }
}

static void check_nearest(const struct solve_params *p, const void *w,
                          const uint32_t *meta, const uint32_t *codes)
{
    uint32_t *got = room(p->rows * p->cols / 2);
    struct cuda_module m = { .w = w, .meta = meta, .codes = (uint8_t *)got };

    OK(solve_functions()->nearest(gpu, p, &m, e));
    same("codes", p, codes, got);
    free(got);
}

static void check_words(const struct solve_params *p, const uint32_t *codes)
{
    size_t bytes = p->rows * p->cols / 2;
    uint32_t *want = room(bytes), *got = room(bytes);

    for (int l = LAYOUT_CT; l <= LAYOUT_GPTQ; l++) {
        if (l == LAYOUT_AWQ)
            pack_awq(want, codes, p->rows, p->cols / 8);
        else if (l == LAYOUT_GPTQ)
            pack_transpose_u32(want, codes, p->rows, p->cols / 8);
        else
            memcpy(want, codes, bytes);
        memset(got, 0xa5, bytes);
        OK(pack_functions()->words(gpu, (enum layout)l, got, codes, p->rows,
                                   p->cols / 8, e));
        same(layout_name((enum layout)l), p, want, got);
    }
    free(want);
    free(got);
}

static uint32_t any_meta(int low, int high)
{
    int q = low + (int)(rnd() % (uint64_t)(high - low + 1));
    uint32_t symmetric = rnd() % 2;

    return (uint16_t)q | (uint32_t)(rnd() % 16) << 16 | symmetric << 24;
}

static void check_weights(enum dtype t, enum dtype scale, uint64_t rows,
                          uint64_t cols, uint64_t group)
{
    uint64_t n = rows * quant_groups(cols, group);
    uint32_t *meta = room(n * 4), *codes;
    struct solve_params p = { .rows = rows,
                              .cols = cols,
                              .group = group,
                              .dtype = t,
                              .scale_dtype = scale };
    void *w = weights(t, rows * cols);

    for (uint64_t i = 0; i < n; i++)
        meta[i] = any_meta(-10 * 256, -5 * 256);
    codes = round_all(&p, w, meta);
    check_nearest(&p, w, meta, codes);
    check_words(&p, codes);
    free(codes);
    free(meta);
    free(w);
}

/* Every exponent: the weights are half steps of the scale, so that one bit of
 * it decides, and quotients are ties. */
static void check_scales(enum dtype scale)
{
    int low = scale == DT_F16 ? -14 * 256 : -126 * 256;
    int high = scale == DT_F16 ? 16 * 256 - 1 : 127 * 256 + 254;
    uint64_t rows = (uint64_t)(high - low + 8) / 8 * 8, cols = 64;
    uint32_t *meta = room(rows * 4), *codes;
    float *w = room(rows * cols * 4);
    struct solve_params p = { .rows = rows,
                              .cols = cols,
                              .group = cols,
                              .dtype = DT_F32,
                              .scale_dtype = scale };

    for (uint64_t r = 0; r < rows; r++) {
        int q = low + (int)r > high ? high : low + (int)r;
        float s;

        meta[r] = (uint16_t)q | (uint32_t)(r % 16) << 16;
        s = quant_grid(meta[r], scale).scale;
        for (uint64_t i = 0; i < cols; i++) {
            float x = ((float)(int)(i % 40) - 20) * 0.5f * s;

            w[r * cols + i] =
                i < 40 ? x : nextafterf(x, i % 2 ? 1e38f : -1e38f);
            if (!isfinite(w[r * cols + i]))
                w[r * cols + i] = 0;
        }
    }
    codes = round_all(&p, w, meta);
    check_nearest(&p, w, meta, codes);
    free(codes);
    free(meta);
    free(w);
}

/* With little memory the same, in slices of rows. */
static void check_slices(void)
{
    struct cuda_context *whole = gpu;

    OK(device->open(&gpu, 0, 1 << 20, e));
    check_weights(DT_BF16, DT_F16, 1096, 2048, 128);
    gpu = whole;
}

/* ---- weights to words and grids in one pass ---- */

/* Weights that are half steps of the grid of their group, so that quotients are ties:
 * of a scale of BF16's bits, multiples of a power of two. */
static void put_ties(enum dtype t, void *w, uint64_t n, uint64_t group)
{
    float *x = room(n * 4);

    CHECK(to_f32(x, w, t, n));
    for (uint64_t g = 0; g < n / group; g += 3) {
        float unit = ldexpf(1, -(int)(g % 9));

        for (uint64_t i = 0; i < group; i++)
            x[g * group + i] =
                i ? unit * (float)((int)(rnd() % 31) - 15) / 2 : 7.5f * unit;
    }
    for (uint64_t g = 1; g < n / group; g += 7) /* nothing; one sign */
        for (uint64_t i = 0; i < group; i++)
            x[g * group + i] = g % 2 ? 0 : fabsf(x[g * group + i]);
    CHECK(from_f32(w, t, x, n));
    free(x);
}

static void check_round(enum dtype t, enum dtype scale, uint64_t rows,
                        uint64_t cols, uint64_t group, bool symmetric)
{
    struct solve_params s = { .rows = rows,
                              .cols = cols,
                              .group = group,
                              .dtype = t,
                              .scale_dtype = scale };
    const struct round_params p = {
        "w", rows, cols, group, symmetric, t, scale
    };
    uint64_t n = rows * quant_groups(cols, group);
    size_t bytes = rows * cols / 2;
    uint32_t *meta = room(n * 4), *got_meta = room(n * 4), *codes = room(bytes);
    uint32_t *want = room(bytes), *got = room(bytes);
    void *w = weights(t, rows * cols);

    put_ties(t, w, rows * cols, group);
    OK(round_absmax(&p, w, meta, (uint8_t *)codes, e));
    for (int l = LAYOUT_CT; l <= LAYOUT_GPTQ; l++) {
        memset(got, 0xa5, bytes);
        memset(got_meta, 0xa5, n * 4);
        OK(pack_functions()->round(gpu, &p, (enum layout)l, w, got_meta, got,
                                   e));
        CHECK(!memcmp(meta, got_meta, n * 4));
        if (l == LAYOUT_AWQ)
            pack_awq(want, codes, rows, cols / 8);
        else if (l == LAYOUT_GPTQ)
            pack_transpose_u32(want, codes, rows, cols / 8);
        else
            memcpy(want, codes, bytes);
        same(layout_name((enum layout)l), &s, want, got);
    }
    free(meta);
    free(got_meta);
    free(codes);
    free(want);
    free(got);
    free(w);
}

/* What the CPU says: numbers that are none, scales that F16 has not. */
static int round_again(const struct round_params *p, const uint16_t *w,
                       uint32_t *meta, uint32_t *out)
{
    struct err why;

    return pack_functions()->round(gpu, p, LAYOUT_AWQ, w, meta, out, &why);
}

static void check_round_refusals(void)
{
    enum { ROWS = 64, COLS = 256 };
    static const uint16_t bad[] = { 0x7f80, 0xffc1,
                                    0x4980 }; /* inf, nan, 2^20 */
    uint32_t *meta = room(ROWS * COLS / 128 * 4), *out = room(ROWS * COLS / 2);
    struct round_params p = { "w", ROWS, COLS, 128, true, DT_BF16, DT_F16 };
    uint16_t *w = weights(DT_BF16, ROWS * COLS);

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        w[ROWS * COLS - 1] = bad[i];
        CHECK(round_again(&p, w, meta, out) == 1);
    }
    w[ROWS * COLS - 1] = 0;
    CHECK(round_again(&p, w, meta, out) == 0);
    p.group = 256;
    CHECK(round_again(&p, w, meta, out) == E_CONFIG);
    free(meta);
    free(out);
    free(w);
}

static void check_rounds(void)
{
    static const enum dtype dtypes[] = { DT_BF16, DT_F16 };

    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            for (int symmetric = 0; symmetric < 2; symmetric++) {
                check_round(dtypes[i], dtypes[k], 1000, 1096, 128, symmetric);
                check_round(dtypes[i], dtypes[k], 264, 512, 32, symmetric);
                check_round(dtypes[i], dtypes[k], 8, 8, 8, symmetric);
                check_round(dtypes[i], dtypes[k], 4096, 4096, 64, symmetric);
            }
    check_round_refusals();
}

int main(int argc, char **argv)
{
    static const enum dtype dtypes[] = { DT_BF16, DT_F16, DT_F32 };

    gpu_open(argc, argv, &pack_plugin);
    OK(plugin_load(&solve_plugin, argv[1], e));
    for (int i = 0; i < 3; i++) {
        check_weights(dtypes[i], DT_F16, 256, 512, 128);
        check_weights(dtypes[i], DT_BF16, 520, 1096, 128);
        check_weights(dtypes[i], DT_F16, 8, 8, 8);
        check_weights(dtypes[i], DT_BF16, 1000, 72, 24);
        check_weights(dtypes[i], DT_F16, 264, 520, 8);
        check_weights(dtypes[i], DT_F16, 264, 640, 40);
        check_weights(dtypes[i], DT_BF16, 256, 1024, 256);
    }
    check_scales(DT_F16);
    check_scales(DT_BF16);
    check_slices();
    check_rounds();
    printf(
        "packed words are equal: 3 layouts, 3 dtypes, all scales; in one pass, "
        "too\n");
    return 0;
}
