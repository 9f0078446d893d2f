/* Figures of score.h against tests/reference/eval.py (NumPy, f64). */
#include "eval/score.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "test.h"

enum { ROWS_MAX = 100, VOCAB_MAX = 1000 };

/* Rows, vocabulary, spread of the logits and of the difference, and what
 * tests/reference/eval.py prints for them: ppl of both, KL mean, sem, median,
 * 99 %, max, top1. */
static const struct reference {
    size_t rows, vocab;
    double spread, step;
    double want[8];
} table[] = {
    { 5,
      1,
      8,
      1,
      { 1.000000000000e+00, 1.000000000000e+00, 0.000000000000e+00,
        0.000000000000e+00, 0.000000000000e+00, 0.000000000000e+00,
        0.000000000000e+00, 1.000000000000e+00 } },
    { 7,
      2,
      8,
      1,
      { 4.406459848689e+00, 4.285685707329e+00, 2.180135154907e-03,
        1.452411011671e-03, 5.676635566450e-04, 1.012099534177e-02,
        1.058201676493e-02, 1.000000000000e+00 } },
    { 40,
      7,
      8,
      2,
      { 3.105901149604e+01, 3.142296312031e+01, 8.307493481908e-02,
        1.063287419039e-02, 5.830735843244e-02, 2.556440232670e-01,
        2.662242035931e-01, 7.750000000000e-01 } },
    { 100,
      8,
      20,
      0.5,
      { 7.250988095869e+03, 7.283462706509e+03, 3.406703341837e-03,
        4.308076659631e-04, 1.495947002191e-03, 1.733568271632e-02,
        1.884241287586e-02, 9.600000000000e-01 } },
    { 100,
      50,
      20,
      4,
      { 2.202265283756e+04, 3.240306275223e+04, 5.166744978721e-01,
        2.046597212108e-02, 4.875341725954e-01, 9.626244469653e-01,
        1.142892455856e+00, 3.600000000000e-01 } },
    { 60,
      257,
      30,
      0.01,
      { 5.289511105305e+07, 5.289471200602e+07, 4.007672003628e-06,
        1.136007623886e-07, 3.997068272393e-06, 6.026883272833e-06,
        6.205556024078e-06, 9.666666666667e-01 } },
    { 20,
      1000,
      200,
      3,
      { 7.509186725615e+36, 1.038104892069e+37, 3.079111820392e-01,
        2.104073279726e-02, 3.095188783121e-01, 4.635730709775e-01,
        4.662834276234e-01, 3.500000000000e-01 } },
    { 10,
      64,
      1000,
      200,
      { 2.864017399890e+250, 1.445127188234e+282, 3.315616467175e+01,
        1.230456399579e+01, 2.015925887059e+01, 1.086087511251e+02,
        1.122984478411e+02, 6.000000000000e-01 } },
};

/* Of the 60 rows of 257, row i at position 9 i: where a bin begins, its rows, and
 * ppl of both, KL mean, sem. */
static const struct {
    uint64_t from, rows;
    double want[4];
} bins[] = {
    { 0,
      2,
      { 1.078022713887e+07, 1.081430200987e+07, 4.083425996475e-06,
        9.294983704691e-07 } },
    { 16,
      2,
      { 6.471446684157e+06, 6.461441622035e+06, 4.151525209362e-06,
        3.272477438427e-07 } },
    { 32,
      4,
      { 3.117556038186e+06, 3.118947360554e+06, 3.707212404077e-06,
        1.871243336067e-07 } },
    { 64,
      7,
      { 3.433945078117e+08, 3.430885266141e+08, 3.725966781592e-06,
        3.325960444801e-07 } },
    { 128,
      14,
      { 1.486032736856e+08, 1.487228550076e+08, 3.599912884275e-06,
        1.891763842067e-07 } },
    { 256,
      28,
      { 6.195762369393e+07, 6.196045644449e+07, 4.262832916067e-06,
        1.855197153055e-07 } },
    { 512,
      3,
      { 6.332922791654e+05, 6.308154673484e+05, 4.440566229605e-06,
        2.769996685300e-07 } },
};

static uint32_t state;

static float uniform(float spread)
{
    state = state * 1664525u + 1013904223u;
    return (float)((double)(state >> 8) / 16777216 - 0.5) * spread;
}

static void close_to(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) {
        fprintf(stderr, "%.15g, want %.15g within %g\n", got, want, tolerance);
        exit(1);
    }
}

static void check_bins(const struct score_result *r)
{
    CHECK(r->bins == ARRAY_LEN(bins));
    for (size_t i = 0; i < r->bins; i++) {
        CHECK(score_bin_from(i) == bins[i].from);
        CHECK(r->bin[i].positions == bins[i].rows);
        close_to(r->bin[i].ppl_original / bins[i].want[0], 1, 1e-11);
        close_to(r->bin[i].ppl / bins[i].want[1], 1, 1e-11);
        close_to(r->bin[i].kl_mean, bins[i].want[2], 1e-12);
        close_to(r->bin[i].kl_sem, bins[i].want[3], 1e-12);
    }
}

static void figures(const struct reference *c, uint32_t seed)
{
    static float a[ROWS_MAX * VOCAB_MAX], b[ROWS_MAX * VOCAB_MAX];
    struct score s[ROWS_MAX];
    double kl[ROWS_MAX];
    struct score_result r;
    size_t n = c->rows * c->vocab;

    state = seed;
    for (size_t i = 0; i < n; i++)
        a[i] = uniform((float)c->spread);
    for (size_t i = 0; i < n; i++)
        b[i] = a[i] + uniform((float)c->step);
    for (size_t i = 0; i < c->rows; i++)
        CHECK(score_row(a + i * c->vocab, b + i * c->vocab, c->vocab,
                        i * 31 % c->vocab, &s[i]));
    for (size_t i = 0; i < c->rows; i++)
        s[i].position = (uint32_t)(9 * i);
    r = score_summarize(s, c->rows, kl);
    CHECK(r.all.positions == c->rows);
    close_to(r.all.ppl_original / c->want[0], 1, 1e-11);
    close_to(r.all.ppl / c->want[1], 1, 1e-11);
    close_to(r.all.kl_mean, c->want[2], 1e-12 * (1 + c->want[2]));
    close_to(r.all.kl_sem, c->want[3], 1e-12 * (1 + c->want[3]));
    close_to(r.kl_median, c->want[4], 1e-12 * (1 + c->want[4]));
    close_to(r.kl_p99, c->want[5], 1e-12 * (1 + c->want[5]));
    close_to(r.kl_max, c->want[6], 1e-12 * (1 + c->want[6]));
    close_to(r.top1, c->want[7], 1e-12);
    if (c->vocab == 257)
        check_bins(&r);
}

static void equal_rows_are_exactly_zero(void)
{
    float a[77];
    struct score s;

    state = 5;
    for (size_t n = 1; n <= ARRAY_LEN(a); n++) {
        for (size_t i = 0; i < n; i++)
            a[i] = uniform(50);
        CHECK(score_row(a, a, n, n / 2, &s));
        CHECK(s.kl == 0 && s.agree && s.nll_original == s.nll_other);
    }
}

static void what_is_not_finite_is_found(void)
{
    const float bad[] = { NAN, INFINITY, -INFINITY };
    float a[19], b[19];
    struct score s;

    for (size_t i = 0; i < ARRAY_LEN(a); i++) {
        for (size_t k = 0; k < ARRAY_LEN(bad); k++) {
            memset(a, 0, sizeof(a));
            memset(b, 0, sizeof(b));
            a[i] = bad[k];
            CHECK(!score_row(a, b, ARRAY_LEN(a), 3, &s));
            CHECK(!score_row(b, a, ARRAY_LEN(a), 3, &s));
            CHECK(!score_row(a, a, ARRAY_LEN(a), 3, &s));
        }
    }
}

static void among_equals_the_first_counts(void)
{
    float a[20] = { 0 }, b[20] = { 0 };
    struct score s;

    a[3] = a[17] = b[3] = 1;
    CHECK(score_row(a, b, 20, 0, &s) && s.agree);
    b[2] = 1;
    CHECK(score_row(a, b, 20, 0, &s) && !s.agree);
}

static void quantiles(void)
{
    const double x[] = { 1, 2, 4, 8, 16 };

    CHECK(score_quantile(x, 5, 0) == 1 && score_quantile(x, 5, 1) == 16);
    CHECK(score_quantile(x, 5, 0.5) == 4 && score_quantile(x, 1, 0.99) == 1);
    close_to(score_quantile(x, 5, 0.99), 8 + 8 * 0.96, 1e-12);
    close_to(score_quantile(x, 4, 0.5), 3, 1e-12);
}

static void rows(void)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        figures(&table[i], (uint32_t)i + 1);
    equal_rows_are_exactly_zero();
    what_is_not_finite_is_found();
    among_equals_the_first_counts();
}

int main(void)
{
    each_level(rows);
    quantiles();
    return 0;
}
