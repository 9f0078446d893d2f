/* rope.c - see rope.h. */
#include "model/rope.h"

#include <math.h>
#include <stdlib.h>

static const double PI = 3.14159265358979323846;

/* The dimension whose wave makes `rot` rotations over original_max_position
 * tokens. */
static double correction(const struct rope *r, int64_t dim, double rot)
{
    return (double)dim * log(r->original_max_position / (rot * 2 * PI)) /
           (2 * log(r->theta));
}

/* From extrapolation (low dimensions) to interpolation (high ones), by a
 * ramp. */
static void yarn(const struct rope *r, int64_t dim, float *inv)
{
    double lo = correction(r, dim, r->beta_fast);
    double hi = correction(r, dim, r->beta_slow);

    if (r->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = fmax(lo, 0);
    hi = fmin(hi, (double)(dim - 1));
    if (lo == hi)
        hi += 0.001;
    for (int64_t i = 0; i < dim / 2; i++) {
        float p = 1.0f / inv[i];
        float ramp = ((float)i - (float)lo) / (float)(hi - lo);
        float keep = 1.0f - fminf(fmaxf(ramp, 0), 1);

        inv[i] =
            1.0f / ((float)r->factor * p) * (1.0f - keep) + 1.0f / p * keep;
    }
}

/* Short wavelengths stay, long ones are divided by factor, those between are
 * interpolated. */
static void llama3(const struct rope *r, int64_t dim, float *inv)
{
    double lo = r->original_max_position / r->low_freq_factor;
    double hi = r->original_max_position / r->high_freq_factor;
    float factor = (float)r->factor;

    for (int64_t i = 0; i < dim / 2; i++) {
        float wave = (float)(2 * PI) / inv[i];

        if (wave > lo) {
            inv[i] /= factor;
        } else if (wave >= hi && hi < lo) {
            float s = ((float)r->original_max_position / wave -
                       (float)r->low_freq_factor) /
                      (float)(r->high_freq_factor - r->low_freq_factor);

            inv[i] = (1.0f - s) * inv[i] / factor + s * inv[i];
        }
    }
}

void rope_frequencies(const struct rope *r, int64_t dim, float *inv)
{
    for (int64_t i = 0; i < dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)dim;

        inv[i] = 1.0f / ((r->divisors ? r->divisors[i] : 1) *
                         (float)pow(r->theta, exponent));
    }
    if (r->kind == ROPE_LINEAR)
        for (int64_t i = 0; i < dim / 2; i++)
            inv[i] /= (float)r->factor;
    else if (r->kind == ROPE_LLAMA3)
        llama3(r, dim, inv);
    else if (r->kind == ROPE_YARN)
        yarn(r, dim, inv);
}

int rope_table_reserve(struct rope_table *t, const struct rope *r, int64_t dim,
                       int64_t n, struct err *e)
{
    int64_t half = dim / 2;
    size_t bytes;
    float *inv;

    if (n <= t->n)
        return 0;
    if (size_mul((size_t)n, (size_t)dim * sizeof(float), &bytes))
        return err_set(e, E_TEMP, "positions: too many");
    if (mem_grow(&t->cs, bytes, "positions", e) < 0)
        return e->code;
    inv = mem_alloc((size_t)half * sizeof(float), "frequencies", e);
    if (!inv)
        return e->code;
    rope_frequencies(r, dim, inv);
    for (int64_t p = t->n; p < n; p++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)p * inv[i], s, c;

            sincosf(angle, &s, &c);
            t->cs[p * dim + i] = c * (float)r->attention_factor;
            t->cs[p * dim + half + i] = s * (float)r->attention_factor;
        }
    free(inv);
    t->half = half;
    t->n = n;
    return 0;
}

void rope_table_release(struct rope_table *t)
{
    free(t->cs);
    *t = (struct rope_table){ 0 };
}
