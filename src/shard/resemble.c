/* resemble.c - see resemble.h. */
#include "shard/resemble.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "common/math/threads.h"

/* Limits between the worst sound result and the best wrong one (resemble.h). */
#define SLOPE_LEAST 0.5
#define BIAS_LIMIT  0.5
#define TREND_LIMIT 0.2
/* Standard deviation of log(scale): scales that are nearer to each other have no
 * trend, and those of another group would be right, too. */
#define SPREAD_LEAST 0.01
/* |w'| is 8 steps at most, so a zero that is off by one changes it by an eighth
 * at least, and so do wrong codes that matter: with a smaller relative error
 * the linear is right.  In 8 bits it is 128 steps, and of normally distributed
 * weights some 40: 1/40. */
#define NEAR       0.0625
#define NEAR_EIGHT 0.015625

enum {
    ROWS_MOST = 1024, /* rows of the sample */
    RUN = 64,         /* of consecutive ones */
    GROUP_MOST = 512, /* inputs of a group that are summed in f32 */
    TREND_GROUPS_MIN = 32,
    TREND_ERRORS = 5 /* a trend is significant beyond 5 standard errors */
};

struct row_sums {
    double d, d2;  /* sums of (w - w') in steps, and of its square */
    double e2, w2; /* sums of (w - w')² and of w² */
    uint64_t count;
};

struct job {
    const struct ck_quantized *q;
    const uint16_t *w; /* [sample.n, cols] bf16 */
    struct ck_rows sample;
    const float *scales;  /* [rows, groups] */
    const uint8_t *alive; /* [cols]: not dead */
    bool plain; /* none is dead, and groups have their inputs in a row */
    const struct inputs *inputs;
    struct row_sums *row; /* [sample.n] */
    float *ratio; /* [sample.n, groups]: <w, w'> / <w, w>; NaN: undefined */
};

/* Which inputs a group has: input[first[g]] to input[first[g + 1] - 1]. */
struct inputs {
    uint32_t *input; /* [cols] */
    uint32_t *first; /* [groups + 1] */
};

static uint64_t group_of(const struct ck_quantized *q, uint64_t col)
{
    return q->g_idx ? (uint64_t)q->g_idx[col] : col / q->group;
}

static void find_inputs(struct inputs *x, const struct ck_quantized *q)
{
    for (uint64_t c = 0; c < q->cols; c++)
        x->first[group_of(q, c) + 1]++;
    for (uint64_t g = 0; g < q->groups; g++)
        x->first[g + 1] += x->first[g];
    for (uint64_t c = q->cols; c-- > 0;) /* from the back: first[] ends right */
        x->input[--x->first[group_of(q, c) + 1]] = (uint32_t)c;
    memmove(x->first, x->first + 1, q->groups * sizeof(*x->first));
    x->first[q->groups] = (uint32_t)q->cols;
}

static int code_at(const struct ck_quantized *q, uint64_t row, uint64_t col)
{
    uint64_t i = row * q->cols + col;

    return q->bits == 8 ? q->codes[i] : q->codes[i / 2] >> (i & 1 ? 4 : 0) & 15;
}

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
typedef uint8_t vb __attribute__((vector_size(16)));

static double sum_of(const vf *v)
{
    double sum = 0;

    for (int i = 0; i < 16; i++)
        sum += (double)(*v)[i];
    return sum;
}

/* one_group() where j->plain, of n inputs with these codes, a multiple of 16, and a scale of
 * FLT_MIN at least; in steps, whose sums are short enough for f32. */
static void plain_group(const struct job *j, uint64_t i, uint64_t g,
                        const uint8_t *code, uint64_t n)
{
    const struct ck_quantized *q = j->q;
    uint64_t row = ck_row(&j->sample, i), at = row * q->groups + g;
    const uint16_t *from = j->w + i * q->cols + g * q->group;
    float s = j->scales[at], per_step = 1 / s;
    double square = (double)s * (double)s;
    vf ww = { 0 }, wv = ww, d = ww, dd = ww;
    struct row_sums *r = &j->row[i];

    for (uint64_t k = 0; k < n; k += 16) {
        vh bits;
        vb codes;
        vf w, v;

        memcpy(&bits, from + k, sizeof(bits));
        memcpy(&codes, code + k, sizeof(codes));
        w = (vf)(__builtin_convertvector(bits, vu) << 16) * per_step;
        v = __builtin_convertvector(
            __builtin_convertvector(codes, vi) - q->zeros[at], vf);
        ww += w * w;
        wv += w * v;
        v = w - v;
        d += v;
        dd += v * v;
    }
    r->w2 += sum_of(&ww) * square;
    r->e2 += sum_of(&dd) * square;
    r->d += sum_of(&d);
    r->d2 += sum_of(&dd);
    r->count += n;
    j->ratio[i * q->groups + g] =
        sum_of(&ww) > 0 ? (float)(sum_of(&wv) / sum_of(&ww)) : NAN;
}

static void one_group(const struct job *j, uint64_t i, uint64_t g)
{
    const struct ck_quantized *q = j->q;
    uint64_t row = ck_row(&j->sample, i);
    float s = j->scales[row * q->groups + g];
    int zero = q->zeros[row * q->groups + g];
    struct row_sums r = j->row[i];
    double ww = 0, wv = 0, step = s, per_step = s > 0 ? 1 / step : 0;

    for (uint32_t n = j->inputs->first[g]; n < j->inputs->first[g + 1]; n++) {
        uint64_t c = j->inputs->input[n];
        double w = (double)f32_from_bf16(j->w[i * q->cols + c]);
        double v = (double)(code_at(q, row, c) - zero) * step;
        double d = (w - v) * per_step;

        r.w2 += w * w;
        r.e2 += (w - v) * (w - v);
        if (!j->alive[c] || !(s > 0))
            continue;
        r.d += d;
        r.d2 += d * d;
        r.count++;
        ww += w * w;
        wv += w * v;
    }
    j->row[i] = r;
    j->ratio[i * q->groups + g] = ww > 0 ? (float)(wv / ww) : NAN;
}

static void rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct ck_quantized *q = j->q;
    uint8_t code[GROUP_MOST];

    for (size_t i = begin; i < end; i++)
        for (uint64_t g = 0; g < q->groups; g++) {
            uint64_t row = ck_row(&j->sample, i), c = g * q->group;
            uint64_t n = q->cols - c < q->group ? q->cols - c : q->group;

            if (!j->plain || n % 16 || n > GROUP_MOST ||
                !(j->scales[row * q->groups + g] >= FLT_MIN)) {
                one_group(j, i, g);
                continue;
            }
            c += row * q->cols;
            quant_unpack_row(code, q->codes + c * (uint64_t)q->bits / 8, n,
                             q->bits);
            plain_group(j, i, g, code, n);
        }
}

/* alive[cols] = 1 for inputs with a code other than the zero point in some
 * row; the number of the others. */
static uint64_t find_alive(uint8_t *alive, const struct ck_quantized *q)
{
    uint64_t dead = q->cols;

    memset(alive, 0, q->cols);
    for (uint64_t row = 0; row < q->rows && dead; row++)
        for (uint64_t c = 0; c < q->cols; c++)
            if (!alive[c] && code_at(q, row, c) !=
                                 q->zeros[row * q->groups + group_of(q, c)]) {
                alive[c] = 1;
                dead--;
            }
    return dead;
}

/* The k-th smallest of x[n], which is reordered (Hoare 1961, FIND). */
static float order_statistic(float *x, uint64_t n, uint64_t k)
{
    int64_t low = 0, high = (int64_t)n - 1;

    while (low < high) {
        float pivot = x[k];
        int64_t i = low, j = high;

        while (i <= j) {
            while (x[i] < pivot)
                i++;
            while (pivot < x[j])
                j--;
            if (i <= j) {
                float t = x[i];

                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (j < (int64_t)k)
            low = i;
        if ((int64_t)k < i)
            high = j;
    }
    return x[k];
}

/* Fit y = a + trend x by least squares over the groups with a ratio > 0: x =
 * log(scale), y = log(ratio). */
static void find_trend(struct resemblance *r, const struct job *j)
{
    uint64_t n = 0;
    double x = 0, y = 0, xx = 0, xy = 0, yy = 0;

    for (uint64_t i = 0; i < j->sample.n * j->q->groups; i++) {
        uint64_t row = ck_row(&j->sample, i / j->q->groups);
        uint64_t g = i % j->q->groups;
        double a, b;

        if (!(j->ratio[i] > 0) || !isfinite(j->ratio[i]))
            continue;
        a = log((double)j->scales[row * j->q->groups + g]);
        b = log((double)j->ratio[i]);
        x += a;
        y += b;
        xx += a * a;
        xy += a * b;
        yy += b * b;
        n++;
    }
    r->trend = r->trend_error = 0;
    if (n < TREND_GROUPS_MIN)
        return;
    xx -= x * x / (double)n;
    xy -= x * y / (double)n;
    yy -= y * y / (double)n;
    if (!(xx > SPREAD_LEAST * SPREAD_LEAST * (double)n))
        return;
    r->trend = xy / xx;
    yy -= r->trend * xy;
    r->trend_error = sqrt((yy > 0 ? yy : 0) / (double)n / xx);
}

/* The median; reorders the array. */
static void find_slope(struct resemblance *r, float *ratio, uint64_t n)
{
    uint64_t k = 0;

    for (uint64_t i = 0; i < n; i++)
        if (isfinite(ratio[i]))
            ratio[k++] = ratio[i];
    r->groups = k;
    r->slope = k ? (double)order_statistic(ratio, k, k / 2) : 1;
}

static void sum_up(struct resemblance *r, const struct job *j)
{
    struct row_sums t = { 0 };

    for (uint64_t i = 0; i < j->sample.n;
         i++) { /* fixed order: deterministic */
        t.d += j->row[i].d;
        t.d2 += j->row[i].d2;
        t.e2 += j->row[i].e2;
        t.w2 += j->row[i].w2;
        t.count += j->row[i].count;
    }
    r->bias = t.count ? t.d / (double)t.count : 0;
    r->rms = t.count ? sqrt(t.d2 / (double)t.count) : 0;
    r->relative = t.w2 > 0 ? sqrt(t.e2 / t.w2) : 0;
    r->near = j->q->bits == 8 ? NEAR_EIGHT : NEAR;
    find_trend(r, j);
    find_slope(r, j->ratio, j->sample.n * j->q->groups);
}

struct ck_rows resemble_rows(uint64_t rows)
{
    const uint64_t runs = ROWS_MOST / RUN;

    if (rows <= ROWS_MOST)
        return (struct ck_rows){ rows, rows, rows };
    return (struct ck_rows){ ROWS_MOST, RUN, (rows - RUN) / (runs - 1) };
}

int resemble(struct resemblance *r, const struct ck_quantized *q,
             const uint16_t *w, struct err *e)
{
    const struct ck_rows sample = resemble_rows(q->rows);
    uint64_t n = sample.n;
    size_t all = (size_t)(q->rows * q->groups);
    float *scales = mem_alloc(all * sizeof(*scales), "verification", e);
    float *ratio =
        mem_alloc((size_t)(n * q->groups) * sizeof(*ratio), "verification", e);
    uint8_t *alive = mem_alloc(q->cols, "verification", e);
    struct row_sums *row = mem_zero(n, sizeof(*row), "verification", e);
    struct inputs in = {
        .input = mem_alloc(q->cols * sizeof(*in.input), "verification", e),
        .first = mem_zero(q->groups + 1, sizeof(*in.first), "verification", e),
    };
    struct job j = { q, w, sample, scales, alive, !q->g_idx, &in, row, ratio };
    int rc =
        scales && ratio && alive && row && in.input && in.first ? 0 : e->code;

    if (!rc && !to_f32(scales, q->scales, q->scale_dtype, all))
        rc = err_set(e, E_DATA, "scales are %s", dtype_name(q->scale_dtype));
    if (!rc) {
        find_inputs(&in, q);
        j.plain = !find_alive(alive, q) && j.plain;
        threads_for(n, 16, rows, &j);
        sum_up(r, &j);
    }
    free(scales);
    free(ratio);
    free(alive);
    free(in.input);
    free(in.first);
    free(row);
    return rc;
}

const char *resemble_verdict(const struct resemblance *r)
{
    double moved = r->relative * r->relative;
    bool near = r->relative <= r->near;

    if (!near && !(r->slope >= SLOPE_LEAST))
        return "the codes are not those of these weights";
    if (!near && !(fabs(r->bias) <= BIAS_LIMIT))
        return "the zero points are off";
    if (!near && !(fabs(r->trend) <= TREND_LIMIT + moved / (1 + moved) ||
                   fabs(r->trend) <= TREND_ERRORS * r->trend_error))
        return "the scales are not those of these weights";
    return NULL;
}
