/* similarity.c - see similarity.h. */
#include "eval/similarity.h"

#include <math.h>

bool similarity_row(const float *original, const float *other, size_t n,
                    struct similarity *s)
{
    double oo = 0, qq = 0, oq = 0, dd = 0;

    for (size_t i = 0; i < n; i++) {
        double o = original[i], q = other[i];

        oo += o * o;
        qq += q * q;
        oq += o * q;
        dd += (q - o) * (q - o);
    }
    if (!isfinite(oo + qq))
        return false;
    /* sqrt(x * x) is x, so that equal rows give 1; nothing overflows: squares of
     * f32 are below 2^256 */
    s->cosine = oo > 0 && qq > 0 ? oq / sqrt(oo * qq) : dd > 0 ? 0 : 1;
    s->cosine = fmax(-1, fmin(1, s->cosine));
    s->error = dd > 0 ? sqrt(dd / oo) : 0;
    return true;
}

static double cosine(const struct similarity *s)
{
    return s->cosine;
}

static double squared_error(const struct similarity *s)
{
    return s->error * s->error;
}

struct mean {
    double mean, sem;
};

/* Mean of value(&s[i]), i = 0..n-1, n > 0; with end, of i = end[0] - 1..end[n - 1] - 1,
 * the last tokens of n sequences. */
static struct mean mean_of(double (*value)(const struct similarity *),
                           const struct similarity *s, const size_t *end,
                           size_t n)
{
    struct mean m = { 0, 0 };
    double squares = 0;

    for (size_t i = 0; i < n; i++)
        m.mean += value(&s[end ? end[i] - 1 : i]);
    m.mean /= (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = value(&s[end ? end[i] - 1 : i]) - m.mean;

        squares += d * d;
    }
    m.sem = n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : 0;
    return m;
}

struct similarity_result similarity_summarize(const struct similarity *s,
                                              const size_t *start, size_t count)
{
    size_t n = start[count];
    struct mean all = mean_of(cosine, s, NULL, n);
    struct mean last = mean_of(cosine, s, start + 1, count);
    struct mean square = mean_of(squared_error, s, NULL, n);
    struct similarity_result r = { .tokens = n,
                                   .cosine_mean = all.mean,
                                   .cosine_sem = all.sem,
                                   .cosine_min = 1,
                                   .cosine_last = last.mean,
                                   .cosine_last_sem = last.sem,
                                   .error_rms = sqrt(square.mean) };

    for (size_t i = 0; i < n; i++)
        r.cosine_min = fmin(r.cosine_min, s[i].cosine);
    if (r.error_rms > 0)
        r.error_sem = square.sem / (2 * r.error_rms);
    return r;
}
