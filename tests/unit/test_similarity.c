/* similarity.h on rows whose figures are known. */
#include "eval/similarity.h"

#include <math.h>
#include <string.h>

#include "test.h"

static void near(double got, double want)
{
    CHECK(fabs(got - want) <= 1e-15 * (1 + fabs(want)));
}

static void equal_rows_are_exactly_one(void)
{
    uint32_t x = 7;
    float a[77];
    struct similarity s;

    for (size_t n = 1; n <= ARRAY_LEN(a); n++) {
        for (size_t i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            a[i] = ldexpf((float)(x >> 8) - 8388608, (int)(x >> 27) - 40);
        }
        CHECK(similarity_row(a, a, n, &s) && s.cosine == 1 && s.error == 0);
    }
}

static void rows_of_known_angles(void)
{
    const float o[] = { 3, 4 }, turned[] = { -4, 3 }, half[] = { 1.5f, 2 },
                away[] = { -3e30f, -4e30f }, tiny[] = { 0, 1e-40f };
    struct similarity s;

    CHECK(similarity_row(o, turned, 2, &s) && s.cosine == 0);
    near(s.error, sqrt(2));
    CHECK(similarity_row(o, half, 2, &s));
    near(s.cosine, 1);
    near(s.error, 0.5);
    CHECK(similarity_row(o, away, 2, &s));
    near(s.cosine, -1);
    CHECK(fabs(s.error / 1e30 - 1) < 1e-6);
    CHECK(similarity_row(o, tiny, 2, &s));
    near(s.cosine, 0.8);
}

static void zeros_and_what_is_not_finite(void)
{
    const float bad[] = { NAN, INFINITY, -INFINITY };
    const float zero[] = { 0, 0 }, o[] = { 1, 2 };
    struct similarity s;

    CHECK(similarity_row(zero, zero, 2, &s) && s.cosine == 1 && s.error == 0);
    CHECK(similarity_row(o, zero, 2, &s) && s.cosine == 0 && s.error == 1);
    CHECK(similarity_row(zero, o, 2, &s) && s.cosine == 0 && isinf(s.error));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const float b[] = { 1, bad[i] };

        CHECK(!similarity_row(o, b, 2, &s) && !similarity_row(b, o, 2, &s));
        CHECK(!similarity_row(b, b, 2, &s));
    }
}

/* Two sequences, of three tokens and of one. */
static void summary(void)
{
    const struct similarity s[] = {
        { 0.5, 1 }, { 1, 0 }, { 0, 2 }, { 0.5, 1 }
    };
    const size_t start[] = { 0, 3, 4 };
    struct similarity_result r = similarity_summarize(s, start, 2);

    CHECK(r.tokens == 4);
    near(r.cosine_mean, 0.5);
    near(r.cosine_sem,
         sqrt(0.5 / 3 / 4)); /* squares of differences: 1/4, 1/4 */
    near(r.cosine_min, 0);
    near(r.cosine_last, 0.25);
    near(r.cosine_last_sem, 0.25);
    near(r.error_rms, sqrt(1.5)); /* squares: 1, 0, 4, 1 */
    near(r.error_sem, sqrt(9.0 / 3 / 4) / (2 * sqrt(1.5)));
    r = similarity_summarize(s, start, 1);
    CHECK(r.cosine_last == 0 && r.cosine_last_sem == 0);
    r = similarity_summarize(s + 1, (const size_t[]){ 0, 1 }, 1);
    CHECK(r.cosine_mean == 1 && r.cosine_sem == 0 && r.error_sem == 0);
}

int main(void)
{
    equal_rows_are_exactly_one();
    rows_of_known_angles();
    zeros_and_what_is_not_finite();
    summary();
    return 0;
}
