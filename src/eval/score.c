/* score.c - see score.h.
 *
 * Most of the time goes into 2 x vocabulary exponentials per position.  They
 * are computed in f64, eight at a time, by one source that the compiler lowers
 * to AVX-512, AVX2 or SSE2.  Without contraction and with a fixed order of sums
 * all three give the same bits. */
#include "eval/score.h"

#include <math.h>
#include <string.h>

#include "common/math/cpu.h"

enum { LANES = 8 };

typedef double lanes __attribute__((vector_size(8 * LANES)));
typedef int64_t lanes_int __attribute__((vector_size(8 * LANES)));
typedef float lanes_float __attribute__((vector_size(4 * LANES)));

/* Sums for the softmax of two rows. */
struct sums {
    double original, other; /* sum of exp(x - max) */
    double moved;           /* sum of exp(original - max) (original - other) */
};

#define INLINE static inline __attribute__((always_inline))

/* *x = exp(*x) for *x <= 0, with a relative error of 1e-13; arguments below
 * -708 are clamped to -708. */
INLINE void exp_lanes(lanes *x)
{
    /* Taylor coefficients 1 / k!, k = 10..2: |r| <= ln 2 / 2, so r^11 / 11! <
     * 3e-13 */
    static const double c[] = { 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                1.0 / 5040,    1.0 / 720,    1.0 / 120,
                                1.0 / 24,      1.0 / 6,      1.0 / 2 };
    const double magic = 0x1.8p52; /* x + this has rint(x) in its low bits */
    const lanes floor = (lanes){ 0 } - 708.0;
    lanes_int low = *x < floor;
    lanes v = (lanes)(((lanes_int)*x & ~low) | ((lanes_int)floor & low));
    lanes t, n, r, p;

    t = v * 0x1.71547652b82fep+0 + magic;
    n = t - magic;
    r = v - n * 0x1.62e42fefap-1 - n * 0x1.cf79abc9e3b3ap-40;
    p = r * c[0] + c[1];
    for (size_t k = 2; k < ARRAY_LEN(c); k++)
        p = p * r + c[k];
    p = p * r + 1.0;
    p = p * r + 1.0;
    *x = p * (lanes)(((lanes_int)t + 1023) << 52);
}

INLINE void load(lanes *x, const float *p)
{
    lanes_float f;

    memcpy(&f, p, sizeof(f));
    *x = __builtin_convertvector(f, lanes);
}

/* One step of eight: s[0] += e^a, s[1] += e^b, s[2] += e^a (a - b). */
INLINE void step(lanes s[3], const float *a, const float *b, double max_a,
                 double max_b)
{
    lanes x, y, d;

    load(&x, a);
    load(&y, b);
    d = x - y;
    x -= max_a;
    y -= max_b;
    exp_lanes(&x);
    exp_lanes(&y);
    s[0] += x;
    s[1] += y;
    s[2] += x * d;
}

INLINE void add_up(const float *a, const float *b, size_t n, float max_a,
                   float max_b, struct sums *out)
{
    lanes s[3] = { { 0 }, { 0 }, { 0 } };
    float tail_a[LANES], tail_b[LANES];
    size_t i, whole = n - n % LANES;

    for (i = 0; i < whole; i += LANES)
        step(s, a + i, b + i, max_a, max_b);
    for (i = 0; i < LANES; i++) { /* padding: e^-708, negligible in every sum */
        tail_a[i] = whole + i < n ? a[whole + i] : max_a - 1000;
        tail_b[i] = whole + i < n ? b[whole + i] : max_b - 1000;
    }
    if (whole < n)
        step(s, tail_a, tail_b, max_a, max_b);
    *out = (struct sums){ 0, 0, 0 };
    for (i = 0; i < LANES; i++) {
        out->original += s[0][i];
        out->other += s[1][i];
        out->moved += s[2][i];
    }
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) static void
add_up_avx512(const float *a, const float *b, size_t n, float max_a,
              float max_b, struct sums *out)
{
    add_up(a, b, n, max_a, max_b, out);
}

__attribute__((target("avx2"))) static void
add_up_avx2(const float *a, const float *b, size_t n, float max_a, float max_b,
            struct sums *out)
{
    add_up(a, b, n, max_a, max_b, out);
}

#endif

static void add_up_any(const float *a, const float *b, size_t n, float max_a,
                       float max_b, struct sums *out)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512)) {
        add_up_avx512(a, b, n, max_a, max_b, out);
        return;
    }
    if (cpu_uses(CPU_AVX2)) {
        add_up_avx2(a, b, n, max_a, max_b, out);
        return;
    }
#endif
    add_up(a, b, n, max_a, max_b, out);
}

/* argmax: the index of the largest element, the first of equal ones. */
static size_t largest(const float *x, size_t n)
{
    float m[LANES];
    float top;
    size_t i = 0;

    for (size_t k = 0; k < LANES; k++)
        m[k] = x[0];
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            m[k] = x[i + k] > m[k] ? x[i + k] : m[k];
    for (; i < n; i++)
        m[0] = x[i] > m[0] ? x[i] : m[0];
    top = m[0];
    for (size_t k = 1; k < LANES; k++)
        top = m[k] > top ? m[k] : top;
    for (i = 0; i < n - 1 && x[i] != top; i++)
        ;
    return i;
}

bool score_row(const float *original, const float *other, size_t vocab,
               size_t target, struct score *s)
{
    size_t at = largest(original, vocab), at_other = largest(other, vocab);
    double max_a = original[at], max_b = other[at_other];
    struct sums sum;
    double lse_a, lse_b;

    add_up_any(original, other, vocab, original[at], other[at_other], &sum);
    lse_a = max_a + log(sum.original);
    lse_b = max_b + log(sum.other);
    s->nll_original = lse_a - original[target];
    s->nll_other = lse_b - other[target];
    s->kl = sum.moved / sum.original - (lse_a - lse_b);
    s->agree = at == at_other;
    if (!isfinite(s->kl) || !isfinite(s->nll_original + s->nll_other))
        return false;
    s->kl = s->kl > 0 ? s->kl : 0;
    return true;
}

double score_quantile(const double *sorted, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t low = (size_t)at;
    size_t high = low + 1 < n ? low + 1 : low;

    return sorted[low] + (sorted[high] - sorted[low]) * (at - (double)low);
}

/* Count ascending numbers between the edges of the histogram. */
static void count_bins(uint64_t count[KL_EDGES + 1], const double *kl, size_t n)
{
    size_t at = 0;

    for (int i = 0; i < KL_EDGES; i++) {
        double edge = KL_FROM * pow(10, (double)i / KL_PER_DECADE);

        for (; at < n && kl[at] < edge; at++)
            count[i]++;
    }
    count[KL_EDGES] = n - at;
}

uint64_t score_bin_from(size_t bin)
{
    return bin ? (uint64_t)BIN_FIRST << (bin - 1) : 0;
}

static size_t bin_of(uint32_t position)
{
    size_t bin = 0;

    while (bin + 1 < POSITION_BINS && position >= score_bin_from(bin + 1))
        bin++;
    return bin;
}

/* Sums, until finish_means(). */
static void add_to_means(struct score_means *m, const struct score *s)
{
    m->positions++;
    m->ppl_original += s->nll_original;
    m->ppl += s->nll_other;
    m->kl_mean += s->kl;
}

static void finish_means(struct score_means *m)
{
    double n = (double)m->positions;

    m->ppl_original = exp(m->ppl_original / n);
    m->ppl = exp(m->ppl / n);
    m->kl_mean /= n;
}

/* kl_sem: a sum of squares, until finish_error(). */
static void add_to_error(struct score_means *m, const struct score *s)
{
    m->kl_sem += (s->kl - m->kl_mean) * (s->kl - m->kl_mean);
}

static void finish_error(struct score_means *m)
{
    double n = (double)m->positions;

    m->kl_sem = n > 1 ? sqrt(m->kl_sem / (n - 1) / n) : 0;
}

/* All means.  Each sequence begins at position 0, so no bin before the last one
 * is empty. */
static void find_means(struct score_result *r, const struct score *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t bin = bin_of(s[i].position);

        add_to_means(&r->all, &s[i]);
        add_to_means(&r->bin[bin], &s[i]);
        r->bins = bin + 1 > r->bins ? bin + 1 : r->bins;
    }
    finish_means(&r->all);
    for (size_t k = 0; k < r->bins; k++)
        finish_means(&r->bin[k]);
    for (size_t i = 0; i < n; i++) {
        add_to_error(&r->all, &s[i]);
        add_to_error(&r->bin[bin_of(s[i].position)], &s[i]);
    }
    finish_error(&r->all);
    for (size_t k = 0; k < r->bins; k++)
        finish_error(&r->bin[k]);
}

struct score_result score_summarize(const struct score *s, size_t n, double *kl)
{
    struct score_result r = { .bins = 0 };
    uint64_t agree = 0;

    find_means(&r, s, n);
    for (size_t i = 0; i < n; i++) {
        kl[i] = s[i].kl;
        agree += s[i].agree;
    }
    sort_doubles(kl, n);
    r.kl_median = score_quantile(kl, n, 0.5);
    r.kl_p99 = score_quantile(kl, n, 0.99);
    r.kl_max = kl[n - 1];
    count_bins(r.kl_count, kl, n);
    r.top1 = (double)agree / (double)n;
    return r;
}
