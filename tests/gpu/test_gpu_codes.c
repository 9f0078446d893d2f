/* test_gpu_codes - the forward pass with 4-bit weights on the GPU, and weights
 * from codes: PROGRAM PLUG-IN [SEED]. */
#include "../unit/w4_linear.h"
#include "twins.h"

/* A 4-bit linear of both. */
static void linear_of(const struct w4_linear *l, struct cuda_w4 *w[SIDES])
{
    struct forge_w4a16_linear from = stored(l);

    BOTH(table[s]->linear(context[s], &from, &w[s], e));
}

/* A product with 4-bit weights: first, second, or both.  From five rows on the CPU
 * rounds them to bf16, the GPU from 385. */
static void test_codes_product(enum dtype t, enum forge_w4a16_layout layout,
                               int64_t rows, bool bias, int end)
{
    struct w4_linear l = drawn((int)layout, layout, 256, 384, 64, false);
    struct twin x = elements(t, rows * l.i, .1f), w = weights_of(t, l.o, l.i);
    struct twin b = elements(DT_F32, l.o, 1);
    struct twin out = end == 1 ? elements(t, rows * l.o, 1) :
                                 poisoned((size_t)(rows * l.o) * item(t));
    struct cuda_w4 *codes[SIDES];
    bool turned = end == 3;

    linear_of(&l, codes);
    BOTH(table[s]->product(
        context[s],
        &(struct forward_product){ .dtype = t,
                                   .rows = rows,
                                   .n = l.o,
                                   .depth = l.i,
                                   .x = x.p[s],
                                   .w = turned ? w.p[s] : NULL,
                                   .codes = turned ? NULL : codes[s],
                                   .second = end == 2 ? w.p[s] : NULL,
                                   .second_codes =
                                       turned || end == 4 ? codes[s] : NULL,
                                   .bias = bias ? b.p[s] : NULL,
                                   .second_bias = bias ? b.p[s] : NULL,
                                   .out = out.p[s],
                                   .add = end == 1 },
        e));
    near("4-bit product", &out, t, t == DT_BF16 ? 0.03 : 2e-5,
         t == DT_BF16 ? 8e-3 : 1e-5);
    for (int s = 0; s < SIDES; s++)
        table[s]->drop(context[s], codes[s]);
    drop(&x);
    drop(&w);
    drop(&b);
    release(&l);
}

/* Weights from codes: quant.h's values, to the bit. */
static void test_codes(enum dtype t, enum dtype scale, int64_t rows,
                       int64_t depth, uint64_t group)
{
    size_t n = (size_t)depth, groups = quant_groups(n, group);
    size_t bytes = (size_t)rows * n * item(t);
    uint8_t *nibbles = room((size_t)rows * n / 2), *code = room(n);
    uint32_t *meta = room((size_t)rows * groups * 4);
    float *row = room(n * sizeof(*row));
    char *want = room(bytes), *got = room(bytes);
    struct forward_codes a = { t, scale, rows, depth, group, nibbles, meta };
    void *w;

    for (size_t i = 0; i < (size_t)rows * n / 2; i++)
        nibbles[i] = (uint8_t)rnd();
    for (size_t i = 0; i < (size_t)rows * groups; i++) {
        meta[i] = quant_meta(expf(normal() - 4), (int)(rnd() % 16), rnd() % 2,
                             4, scale);
        if (quant_is_symmetric(meta[i]) && rnd() % 2)
            meta[i] = quant_negative(meta[i]);
    }
    for (size_t r = 0; r < (size_t)rows; r++) {
        quant_unpack_row(code, nibbles + r * n / 2, n, 4);
        quant_dequantize_row(row, code, n, meta + r * groups, group, scale);
        CHECK(from_f32(want + r * n * item(t), t, row, n));
    }
    OK(table[GPU]->codes(gpu, &a, &w, e));
    OK(table[GPU]->get(gpu, got, w, bytes, e));
    CHECK(!memcmp(got, want, bytes));
    table[GPU]->release(gpu, w);
    free(nibbles);
    free(code);
    free(meta);
    free(row);
    free(want);
    free(got);
}

/* The bits of a scale: some subnormal, infinite, NaN, 0 or negative. */
static float any_scale(void)
{
    static const uint32_t special[] = { 0x7f800000, 0x7f812345, 0xffc00001,
                                        0,          0x80000000, 1 };
    uint32_t kind = (uint32_t)(rnd() % 16), u;
    float x;

    u = kind < ARRAY_LEN(special) ? special[kind] :
        kind < 8                  ? (uint32_t)rnd() & 0x007fffff :
        kind < 10 ? 0x80000000 | (uint32_t)(rnd() % 0x7f800000) :
                    (uint32_t)(rnd() % 0x7f800000);
    memcpy(&x, &u, sizeof(x));
    return x;
}

/* Weights from 8-bit floats of all codes: fp8.h's bf16, to the bit, but for which of two
 * NaN goes on. */
static void test_fp8(enum dtype t, uint64_t rows, uint64_t cols,
                     uint64_t block_rows, uint64_t block_cols)
{
    struct fp8_matrix m = { .dtype = t,
                            .rows = rows,
                            .cols = cols,
                            .block_rows = block_rows,
                            .block_cols = block_cols };
    uint64_t n = rows * cols, blocks = fp8_down(&m) * fp8_across(&m), bad = 0;
    uint16_t *want = room(n * 2), *got = room(n * 2);
    float *scale = room(blocks * sizeof(*scale)), value;
    uint8_t *codes = room(n);
    void *w;

    for (uint64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(i < 256 ? i : rnd() >> 9);
    for (uint64_t i = 0; i < blocks; i++)
        scale[i] = any_scale();
    m.data = codes;
    m.scale = scale;
    fp8_to_bf16(want, &m);
    OK(table[GPU]->fp8(gpu, &m, &w, e));
    OK(table[GPU]->get(gpu, got, w, n * 2, e));
    table[GPU]->release(gpu, w);
    for (uint64_t i = 0; i < n; i++) {
        float s = scale[i / cols / block_rows * fp8_across(&m) +
                        i % cols / block_cols];

        CHECK(to_f32(&value, codes + i, t, 1));
        if (got[i] != want[i] && !(isnan(s) && isnan(value)) && !bad++)
            fprintf(stderr, "code %02x, scale %a: want %04x, got %04x\n",
                    codes[i], (double)s, want[i], got[i]);
    }
    printf("%s [%d, %d]: %d of %d differ\n", dtype_name(t), (int)rows,
           (int)cols, (int)bad, (int)n);
    CHECK(!bad);
    free(want);
    free(got);
    free(scale);
    free(codes);
}

static void test_all_fp8(bool small)
{
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_F8_E5M2 : DT_F8_E4M3;

        test_fp8(t, 200, 336, 128, 128);
        test_fp8(t, 131, 333, 128, 128);
        test_fp8(t, 64, 64, 1, 64);
        test_fp8(t, 50, 70, 7, 1);
        test_fp8(t, 50, 96, 50, 96);
        test_fp8(t, 33, 80, 16, 24);
        test_fp8(t, 9, 5, 128, 128);
        if (!small) { /* in several slices, which end within blocks */
            test_fp8(t, 5000, 7168, 128, 128);
            test_fp8(t, 2100, 16001, 128, 128);
        }
    }
}

int main(int argc, char **argv)
{
    twins_open(argc, argv);
    test_all_fp8(argc > 3);
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_F32 : DT_BF16;

        test_codes(t, DT_F16, 129, 4096, 128);
        test_codes(t, DT_BF16, 3, 104, 32);
        for (int end = 0; end < 5; end++)
            for (int layout = 0; layout < 4; layout++)
                test_codes_product(t, (enum forge_w4a16_layout)layout,
                                   (int[]){ 1, 3, 40, 500 }[(layout + end) % 4],
                                   layout % 2, end);
        report(t);
    }
    return 0;
}
