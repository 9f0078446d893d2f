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

int main(int argc, char **argv)
{
    twins_open(argc, argv);
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
