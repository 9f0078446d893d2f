/* test_pack.c - the packers against words computed by hand and against plain
 * loops over nibbles, on shapes with ragged tiles. */
#include <math.h>
#include <string.h>

#include "common/math/quant.h"
#include "common/math/threads.h"
#include "layout/layout.h"
#include "pack/packer.h"
#include "pack/packing.h"
#include "test.h"

enum { O = 8, I = 8 };

/* q[o][k] = (o + 3k) % 16 and z[o] = o + 1: the example of forge-layouts(5) */
static const uint32_t golden_gptq[8] = { 0x52fc9630, 0x630da741, 0x741eb852,
                                         0x852fc963, 0x9630da74, 0xa741eb85,
                                         0xb852fc96, 0xc9630da7 };
static const uint32_t golden_awq[8] = { 0x75316420, 0xa8649753, 0xdb97ca86,
                                        0x0ecafdb9, 0x31fd20ec, 0x6420531f,
                                        0x97538642, 0xca86b975 };

struct example {
    uint8_t codes[O * I / 2];
    uint32_t meta[O];
    struct pack_module module;
};

static void make_example(struct example *x, bool symmetric)
{
    for (int o = 0; o < O; o++) {
        uint8_t row[I];

        for (int k = 0; k < I; k++)
            row[k] = (uint8_t)((o + 3 * k) % 16);
        quant_pack_row(x->codes + o * I / 2, row, I, 4);
        x->meta[o] = quant_meta((float)(o + 1), o + 1, symmetric, 4, DT_F16);
    }
    x->module = (struct pack_module){ .name = "m",
                                      .rows = O,
                                      .cols = I,
                                      .groups = 1,
                                      .group = 8,
                                      .bits = 4,
                                      .codes = x->codes,
                                      .meta = x->meta,
                                      .scale_dtype = DT_F16 };
}

static int pack(enum layout l, struct example *x, struct packed_tensor *t,
                struct packer **p, struct err *e)
{
    static struct pack_run run;

    run = (struct pack_run){ .layout = l, .symmetric = -1, .act_order = -1 };
    CHECK(!packer_open(p, &run, e));
    return packer_module(*p, &x->module, t, e);
}

static void check_part(const struct packed_tensor *t, const char *name,
                       enum dtype dtype, uint64_t d0, uint64_t d1)
{
    CHECK(!strcmp(t->part, name));
    CHECK(t->dtype == dtype && t->dims[0] == d0);
    CHECK(t->ndim == (d1 ? 2 : 1) && (!d1 || t->dims[1] == d1));
}

static void golden_ct(bool symmetric)
{
    struct packed_tensor t[LAYOUT_PARTS_MAX];
    struct example x;
    struct packer *p;
    struct err e;

    make_example(&x, symmetric);
    CHECK(pack(LAYOUT_CT, &x, t, &p, &e) == (symmetric ? 3 : 4));
    check_part(&t[0], "weight_packed", DT_I32, 8, 1);
    CHECK(!memcmp(t[0].data, golden_gptq, sizeof(golden_gptq)));
    check_part(&t[1], "weight_scale", DT_F16, 8, 1);
    CHECK(((const uint16_t *)t[1].data)[0] == f16_from_f32(1));
    if (!symmetric) {
        check_part(&t[2], "weight_zero_point", DT_I32, 1, 1);
        CHECK(*(const uint32_t *)t[2].data == 0x87654321);
    }
    check_part(&t[symmetric ? 2 : 3], "weight_shape", DT_I64, 2, 0);
    CHECK(((const int64_t *)t[symmetric ? 2 : 3].data)[0] == 8);
    packer_close(p);
}

static void golden_words(enum layout l, bool symmetric, uint32_t zeros)
{
    bool awq = l == LAYOUT_AWQ;
    struct packed_tensor t[LAYOUT_PARTS_MAX];
    struct example x;
    struct packer *p;
    struct err e;

    make_example(&x, symmetric);
    CHECK(pack(l, &x, t, &p, &e) == (awq ? 3 : 4));
    check_part(&t[0], "qweight", DT_I32, awq ? 8 : 1, awq ? 1 : 8);
    CHECK(!memcmp(t[0].data, awq ? golden_awq : golden_gptq, 32));
    check_part(&t[1], "qzeros", DT_I32, 1, 1);
    CHECK(*(const uint32_t *)t[1].data == zeros);
    check_part(&t[2], "scales", DT_F16, 1, 8);
    for (int o = 0; o < O; o++)
        CHECK(((const uint16_t *)t[2].data)[o] ==
              f16_from_f32(quant_grid(x.meta[o], DT_F16).scale));
    if (!awq)
        check_part(&t[3], "g_idx", DT_I32, 8, 0);
    packer_close(p);
}

/* Codes of 8 bits, q[o][k] = 16 o + k, z[o] = 160 + o: a word is four of them. */
static void golden_bytes(enum layout l, bool symmetric)
{
    static uint8_t codes[O * I];
    const struct packed_tensor *weight, *zeros;
    struct packed_tensor t[LAYOUT_PARTS_MAX];
    bool ct = l == LAYOUT_CT;
    const uint32_t *words;
    struct example x;
    struct packer *p;
    struct err e;

    make_example(&x, symmetric);
    for (int i = 0; i < O * I; i++)
        codes[i] = (uint8_t)(16 * (i / I) + i % I);
    for (int o = 0; o < O; o++)
        x.meta[o] = quant_meta((float)(o + 1), 160 + o, symmetric, 8, DT_F16);
    x.module.codes = codes;
    x.module.bits = 8;
    CHECK(pack(l, &x, t, &p, &e) == (ct && symmetric ? 3 : 4));
    weight = &t[0];
    zeros = &t[ct ? 2 : 1];
    check_part(weight, ct ? "weight_packed" : "qweight", DT_I32, ct ? 8 : 2,
               ct ? 2 : 8);
    words = weight->data;
    for (uint32_t o = 0; o < O; o++)
        for (uint32_t w = 0; w < 2; w++)
            CHECK(words[ct ? 2 * o + w : 8 * w + o] ==
                  0x03020100 + 0x01010101 * (16 * o + 4 * w));
    if (!ct || !symmetric) {
        words = zeros->data;
        check_part(zeros, ct ? "weight_zero_point" : "qzeros", DT_I32,
                   ct ? 2 : 1, ct ? 1 : 2);
        CHECK(words[0] == (l == LAYOUT_GPTQ ? 0x7f7f7f7f :
                           symmetric        ? 0x80808080 :
                                              0xa3a2a1a0));
        CHECK(words[1] == words[0] + (symmetric ? 0 : 0x04040404));
    }
    packer_close(p);
    CHECK(pack(LAYOUT_AWQ, &x, t, &p, &e) == E_CONFIG);
    CHECK(strstr(e.msg, "codes of 8 bits: layout awq has 4"));
    packer_close(p);
}

static void refused(void)
{
    struct packed_tensor t[LAYOUT_PARTS_MAX];
    struct example x;
    struct packer *p;
    struct err e;

    make_example(&x, false);
    CHECK(pack(LAYOUT_GPTQ, &x, t, &p, &e) == E_CONFIG);
    CHECK(strstr(e.msg, "gptq_v2"));
    packer_close(p);
    make_example(&x, true);
    x.module.rows = 4;
    CHECK(pack(LAYOUT_AWQ, &x, t, &p, &e) == E_CONFIG);
    packer_close(p);
    make_example(&x, true);
    x.module.groups = 2;
    CHECK(pack(LAYOUT_AWQ, &x, t, &p, &e) == E_DATA);
    packer_close(p);
    make_example(&x, true);
    x.module.group = 16; /* one short group of 8 */
    CHECK(pack(LAYOUT_CT, &x, t, &p, &e) == E_CONFIG);
    packer_close(p);
    CHECK(pack(LAYOUT_GPTQ, &x, t, &p, &e) == 4);
    packer_close(p);
}

static unsigned nibble(const uint32_t *w, size_t i)
{
    return w[i / 8] >> 4 * (i % 8) & 15;
}

/* Any shape: rows x words of random nibbles, each found where it belongs. */
static void any_shape(size_t rows, size_t words)
{
    static const int order[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };
    uint32_t *in = malloc(rows * words * 4), *out = malloc(rows * words * 4);

    CHECK(in && out);
    for (size_t i = 0; i < rows * words; i++)
        in[i] = (uint32_t)rand() * 2654435761u;
    pack_transpose_u32(out, in, rows, words);
    for (size_t o = 0; o < rows; o++)
        for (size_t w = 0; w < words; w++)
            CHECK(out[w * rows + o] == in[o * words + w]);
    pack_awq(out, in, rows, words);
    for (size_t k = 0; k < 8 * words; k++)
        for (size_t c = 0; c < rows; c++)
            CHECK(nibble(out + k * (rows / 8), c) ==
                  nibble(in + (c / 8 * 8 + order[c % 8]) * words, k));
    free(in);
    free(out);
}

/* Every exponent, from the definition: exp2(q/256), rounded to the type. */
static void all_scales(void)
{
    for (int q = INT16_MIN; q <= INT16_MAX; q++) {
        float s = (float)exp2(q / 256.0);
        uint32_t meta =
            (uint16_t)q | 8u << 16 | (uint32_t)QUANT_SYMMETRIC << 24;

        CHECK(quant_grid(meta, DT_F32).scale == s);
        CHECK(quant_grid(meta, DT_F16).scale == f32_from_f16(f16_from_f32(s)));
        CHECK(quant_grid(meta, DT_BF16).scale ==
              f32_from_bf16(bf16_from_f32(s)));
        CHECK(quant_grid(quant_negative(meta), DT_BF16).scale ==
              -quant_grid(meta, DT_BF16).scale);
    }
}

static void layouts(void)
{
    struct layout_shape s[2] = { { "a", 64, 320 }, { "b", 64, 256 } };
    struct err e;
    size_t n = 0;

    CHECK(!layout_check(LAYOUT_AWQ, true, 64, s, s, 2, &e));
    CHECK(layout_check(LAYOUT_AWQ, true, 128, s, s, 2, &e) == E_CONFIG);
    CHECK(strstr(e.msg, "a is 64 x 320") && strstr(e.msg, "work: 32, 64"));
    CHECK(!strstr(e.msg, "128, "));
    CHECK(!layout_check(LAYOUT_GPTQ, true, 128, s, s, 2, &e));
    CHECK(layout_advice(LAYOUT_GPTQ, true, 128, s) & ADVICE_SHORT_GROUP);
    CHECK(!layout_advice(LAYOUT_AWQ, true, 128, s + 1));
    CHECK(layout_advice(LAYOUT_CT, false, 128, s + 1) == ADVICE_ASYMMETRIC_CT);
    s[1].module = "m.experts.0.up_proj";
    CHECK(layout_advice(LAYOUT_CT, false, 128, s + 1) ==
          ADVICE_ASYMMETRIC_EXPERTS);
    CHECK(layout_advice(LAYOUT_AWQ, false, 128, s + 1) == ADVICE_EXPERTS &&
          layout_advice(LAYOUT_GPTQ, true, 128, s + 1) == ADVICE_EXPERTS &&
          !layout_advice(LAYOUT_CT, true, 128, s + 1));
    CHECK(layout_is_part("x.y.qweight", &n) && n == 3);
    CHECK(layout_is_part("x.weight_shape", &n) && n == 1);
    CHECK(!layout_is_part("x.weight", &n) && !layout_is_part("qweight", &n));
}

int main(void)
{
    threads_set(2);
    all_scales();
    golden_ct(true);
    golden_ct(false);
    golden_words(LAYOUT_AWQ, false, 0x86427531);
    golden_words(LAYOUT_AWQ, true, 0x88888888);
    golden_words(LAYOUT_GPTQ, true, 0x77777777);
    golden_words(LAYOUT_GPTQ_V2, false, 0x87654321);
    golden_words(LAYOUT_GPTQ_V2, true, 0x88888888);
    golden_bytes(LAYOUT_CT, true);
    golden_bytes(LAYOUT_CT, false);
    golden_bytes(LAYOUT_GPTQ, true);
    golden_bytes(LAYOUT_GPTQ_V2, false);
    refused();
    any_shape(8, 1);
    any_shape(136, 17);
    any_shape(128, 16);
    any_shape(264, 33);
    layouts();
    return 0;
}
