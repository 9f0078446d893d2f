/* Golden words of every layout: q[o][k] = (o + 3k) % 16 for 8 outputs and 8
 * inputs, z[o] = o + 1, one group; written down from the packers' papers and
 * checked against the loaders' own readers. */
#include <string.h>

#include "layout/unpack.h"
#include "test.h"

static const uint32_t awq_q[8] = { 0x75316420, 0xa8649753, 0xdb97ca86,
                                   0x0ecafdb9, 0x31fd20ec, 0x6420531f,
                                   0x97538642, 0xca86b975 };
static const uint32_t plain_q[8] = { 0x52fc9630, 0x630da741, 0x741eb852,
                                     0x852fc963, 0x9630da74, 0xa741eb85,
                                     0xb852fc96, 0xc9630da7 };

/* Row r of codes as bytes 0..15, one an input. */
static void unpack_row(uint8_t *bytes, const uint32_t *codes, uint64_t row,
                       uint64_t cols)
{
    const uint32_t *word = codes + row * unpack_words(cols, 4);

    for (uint64_t k = 0; k < cols; k++)
        bytes[k] = word[k / 8] >> 4 * (k % 8) & 15;
}

static void check_codes(const uint32_t *codes)
{
    uint8_t row[8];

    for (uint64_t o = 0; o < 8; o++) {
        unpack_row(row, codes, o, 8);
        for (unsigned k = 0; k < 8; k++)
            CHECK(row[k] == (o + 3 * k) % 16);
    }
    CHECK(memcmp(codes, plain_q, sizeof(plain_q)) == 0);
}

static void golden(void)
{
    const uint32_t awq_z = 0x86427531, v1 = 0x76543210, v2 = 0x87654321;
    uint32_t codes[8];
    uint8_t z[8];

    unpack_awq_codes(codes, awq_q, 8, 8);
    check_codes(codes);
    unpack_gptq_codes(codes, plain_q, 8, 8, 4);
    check_codes(codes);
    unpack_ct_codes(codes, plain_q, 8, 8, 4);
    check_codes(codes);
    for (int i = 0; i < 4; i++) {
        memset(z, 99, sizeof(z));
        if (i == 0)
            unpack_awq_zeros(z, &awq_z, 8, 1);
        else if (i == 1)
            unpack_gptq_zeros(z, &v1, 8, 1, 4, true);
        else if (i == 2)
            unpack_gptq_zeros(z, &v2, 8, 1, 4, false);
        else
            unpack_ct_zeros(z, &v2, 8, 1, 4);
        for (int o = 0; o < 8; o++)
            CHECK(z[o] == o + 1);
    }
}

/* A zero of 0 in v1: 0x7777776f holds [-1 -> borrows, ...]; the packed add
 * brings every one back. */
static void borrow(void)
{
    const uint32_t word = 0x7777776f;
    uint8_t z[8];

    unpack_gptq_zeros(z, &word, 8, 1, 4, true);
    CHECK(z[0] == 0);
    for (int o = 1; o < 8; o++)
        CHECK(z[o] == 8);
}

/* Sizes that fill no word: outputs of GPTQ and compressed-tensors, inputs of
 * all; what lies in unused nibbles does not show. */
static void short_ends(void)
{
    enum { O = 11, C = 13, G = 3 };
    uint32_t q[2 * O], ct[O * 2], z[G * 2], zt[2 * G], codes[O * 2];
    uint8_t want[O][C], wz[O][G], row[C], got[O * G];

    memset(q, 0xff, sizeof(q));
    memset(ct, 0xff, sizeof(ct));
    memset(z, 0xff, sizeof(z));
    memset(zt, 0xff, sizeof(zt));
    for (int o = 0; o < O; o++) {
        for (int k = 0; k < C; k++) {
            uint32_t v = want[o][k] = (uint8_t)((o * 7 + k * 5) % 16);

            q[k / 8 * O + o] &= ~(~v << 4 * (k % 8) & 15u << 4 * (k % 8));
            ct[o * 2 + k / 8] &= ~(~v << 4 * (k % 8) & 15u << 4 * (k % 8));
        }
        for (int g = 0; g < G; g++) {
            uint32_t v = wz[o][g] = (uint8_t)((o * 3 + g) % 16);

            z[g * 2 + o / 8] &= ~(~v << 4 * (o % 8) & 15u << 4 * (o % 8));
            zt[o / 8 * G + g] &= ~(~v << 4 * (o % 8) & 15u << 4 * (o % 8));
        }
    }
    for (int i = 0; i < 2; i++) {
        if (i)
            unpack_ct_codes(codes, ct, O, C, 4);
        else
            unpack_gptq_codes(codes, q, O, C, 4);
        for (int o = 0; o < O; o++) {
            unpack_row(row, codes, (uint64_t)o, C);
            CHECK(memcmp(row, want[o], C) == 0);
            CHECK(codes[o * 2 + 1] >> 20 == 0);
        }
        if (i)
            unpack_ct_zeros(got, zt, O, G, 4);
        else
            unpack_gptq_zeros(got, z, O, G, 4, false);
        CHECK(memcmp(got, wz, sizeof(wz)) == 0);
    }
}

int main(void)
{
    golden();
    borrow();
    short_ends();
    return 0;
}
