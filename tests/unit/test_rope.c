/* Inverse frequencies of the published configurations of several models,
 * computed elsewhere in double precision from the papers' formulas. */
#include "test.h"

#include <math.h>

#include "model/rope.h"

struct golden {
    const char *name;
    struct rope rope;
    int64_t dim;
    struct {
        int i;
        double inv;
    } at[12];
};

#define LLAMA3(f)                                                              \
    {                                                                          \
        .kind = ROPE_LLAMA3, .theta = 5e5, .factor = f, .low_freq_factor = 1,  \
        .high_freq_factor = 4, .original_max_position = 8192                   \
    }
#define YARN(base, f, fast, cut)                                               \
    {                                                                          \
        .kind = ROPE_YARN, .theta = base, .factor = f,                         \
        .original_max_position = 4096, .beta_fast = fast, .beta_slow = 1,      \
        .truncate = cut                                                        \
    }

static const struct golden goldens[] = {
    { "llama 2",
      { .kind = ROPE_DEFAULT, .theta = 1e4 },
      128,
      { { 0, 1 },
        { 1, 0.865964323 },
        { 2, 0.749894209 },
        { 31, 0.0115478198 },
        { 32, 0.01 },
        { 63, 0.000115478198 } } },
    { "linear, factor 4",
      { .kind = ROPE_LINEAR, .theta = 1e4, .factor = 4 },
      128,
      { { 0, 0.25 }, { 32, 0.0025 } } },
    { "dynamic within max_position",
      { .kind = ROPE_DYNAMIC, .theta = 1e4, .factor = 4 },
      128,
      { { 0, 1 }, { 32, 0.01 } } },
    { "llama 3.1 8B",
      LLAMA3(8),
      128,
      { { 0, 1 },
        { 28, 0.00321144599 },
        { 29, 0.00216657076 },
        { 30, 0.00137189357 },
        { 31, 0.000856751413 },
        { 32, 0.000524846161 },
        { 33, 0.00031269375 },
        { 34, 0.000178507813 },
        { 35, 9.55621235e-05 },
        { 36, 7.78465527e-05 },
        { 63, 3.06892599e-07 } } },
    { "llama 3.2 1B",
      LLAMA3(32),
      64,
      { { 13, 0.00483942135 },
        { 14, 0.00321144599 },
        { 15, 0.00129054793 },
        { 16, 0.000429556797 },
        { 17, 9.7082878e-05 },
        { 18, 1.94616382e-05 },
        { 31, 9.41830673e-08 } } },
    { "llama 4 scout: no band between",
      { .kind = ROPE_LLAMA3,
        .theta = 5e5,
        .factor = 16,
        .low_freq_factor = 1,
        .high_freq_factor = 1,
        .original_max_position = 8192 },
      128,
      { { 0, 1 },
        { 33, 0.00115204274 },
        { 34, 0.00093847387 },
        { 35, 4.77810617e-05 },
        { 36, 3.89232764e-05 },
        { 63, 1.53446299e-07 } } },
    { "deepseek v3",
      YARN(1e4, 40, 32, true),
      64,
      { { 9, 0.0749894209 },
        { 10, 0.0562341325 },
        { 11, 0.0390069266 },
        { 12, 0.0268793601 },
        { 16, 0.0055 },
        { 22, 0.000177827941 },
        { 23, 3.33380358e-05 },
        { 31, 3.33380358e-06 } } },
    { "kimi k2, one step",
      YARN(5e4, 32, 1, true),
      64,
      { { 0, 1 },
        { 17, 0.00318912972 },
        { 20, 3.61404677e-05 },
        { 31, 8.76441291e-07 } } },
    { "gpt-oss, not truncated",
      YARN(1.5e5, 32, 32, false),
      64,
      { { 8, 0.0508132748 },
        { 9, 0.0317056962 },
        { 12, 0.00679495949 },
        { 17, 0.000129318701 },
        { 18, 3.83088124e-05 },
        { 31, 3.02351143e-07 } } },
};

static void test_frequencies(void)
{
    for (size_t g = 0; g < ARRAY_LEN(goldens); g++) {
        const struct golden *x = &goldens[g];
        float inv[64];

        rope_frequencies(&x->rope, x->dim, inv);
        for (size_t k = 0; k < ARRAY_LEN(x->at) && x->at[k].inv > 0; k++) {
            double want = x->at[k].inv, got = (double)inv[x->at[k].i];

            if (fabs(got - want) > 2e-6 * want)
                fprintf(stderr, "%s: [%d] is %.9g, not %.9g\n", x->name,
                        x->at[k].i, got, want);
            CHECK(fabs(got - want) <= 2e-6 * want);
        }
    }
}

static void test_attention_factor(void)
{
    CHECK(fabs(rope_yarn_attention(4, 0, 0) - 1.1386294361) < 1e-9);
    CHECK(fabs(rope_yarn_attention(32, 0, 0) - 1.3465735903) < 1e-9);
    CHECK(rope_yarn_attention(40, 1, 1) == 1);
    CHECK(fabs(rope_yarn_attention(40, 0.707, 1) -
               1.2608037774 / 1.3688879454) < 1e-8);
    CHECK(rope_yarn_attention(0.5, 0, 0) == 1);
}

static void test_table(void)
{
    struct rope r = { .kind = ROPE_DEFAULT,
                      .theta = 1e4,
                      .attention_factor = 2 };
    struct rope_table t = { 0 };
    struct err e;

    CHECK(rope_table_reserve(&t, &r, 8, 3, &e) == 0);
    CHECK(rope_table_reserve(&t, &r, 8, 500, &e) == 0); /* grows */
    CHECK(t.n == 500 && t.half == 4);
    for (int64_t p = 0; p < t.n; p++)
        for (int i = 0; i < 4; i++) {
            double angle = (double)p * pow(1e4, -i / 4.0);

            CHECK(fabs((double)t.cs[p * 8 + i] - 2 * cos(angle)) < 2e-4);
            CHECK(fabs((double)t.cs[p * 8 + 4 + i] - 2 * sin(angle)) < 2e-4);
        }
    rope_table_release(&t);
}

int main(void)
{
    test_frequencies();
    test_attention_factor();
    test_table();
    return 0;
}
