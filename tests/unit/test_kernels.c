/* Kernels of every CPU that this one can run, against plain loops in double
 * precision. */
#include "test.h"

#include <math.h>
#include <string.h>

#include "common/math/dtype.h"
#include "model/kernels.h"

enum { N = 131, DIM_MAX = 160, KEYS_MAX = 320 };

static uint64_t seed = 1;

/* Uniform in [-2, 2). */
static float noise(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) * 0x1p-30f;
}

static float bf16(double x)
{
    return f32_from_bf16(bf16_from_f32((float)x));
}

static bool near(double a, double b, double tolerance)
{
    return fabs(a - b) <= tolerance * (1 + fabs(b));
}

static void test_rows(const struct kernels *k)
{
    float x[N], w[N], b[N], y[N], out[N];
    uint16_t xh[N], oh[N];
    double sum = 0, sumh = 0;

    for (int i = 0; i < N; i++) {
        x[i] = 3 * noise();
        w[i] = bf16((double)noise());
        b[i] = noise();
        y[i] = 4 * noise();
        xh[i] = bf16_from_f32(x[i]);
        sum += (double)x[i] * (double)x[i];
        sumh += (double)f32_from_bf16(xh[i]) * (double)f32_from_bf16(xh[i]);
    }
    k->norm_f32(x, w, N, 1e-3f, out);
    k->norm_bf16(xh, w, N, 1e-3f, oh);
    for (int i = 0; i < N; i++) {
        double r = (double)x[i] / sqrt(sum / N + 1e-3);
        double rh = (double)f32_from_bf16(xh[i]) / sqrt(sumh / N + 1e-3);

        CHECK(near((double)out[i], r * (double)w[i], 1e-6));
        CHECK(near((double)f32_from_bf16(oh[i]),
                   (double)bf16((double)bf16(rh) * (double)w[i]), 0.008));
    }
    for (int i = 0; i < N; i++)
        out[i] = 1;
    k->add_f32(y, b, N, out);
    k->gate_f32(y, x, b, NULL, N, w);
    for (int i = 0; i < N; i++) {
        double g = (double)y[i] + (double)b[i];

        CHECK(near((double)out[i], 1 + g, 1e-6));
        CHECK(near((double)w[i], g / (1 + exp(-g)) * (double)x[i], 2e-6));
    }
    k->gate_bf16(y, x, NULL, NULL, N, oh);
    for (int i = 0; i < N; i++) {
        double g = (double)bf16((double)y[i]);
        double want =
            (double)bf16(g / (1 + exp(-g))) * (double)bf16((double)x[i]);

        CHECK(near((double)f32_from_bf16(oh[i]), want, 0.008));
    }
    memcpy(oh, xh, sizeof(oh));
    k->add_bf16(y, NULL, N, oh);
    k->store_bf16(y, b, N, xh + 0);
    for (int i = 0; i < N; i++)
        CHECK(xh[i] == bf16_from_f32(y[i] + b[i]));
}

/* GELU, approximated by tanh. */
static double gelu(double x)
{
    double z = 0.79788456080286536 * (x + 0.044715 * x * x * x);

    return 0.5 * x * (1 + tanh(z));
}

static void test_gelu(const struct kernels *k)
{
    float x[N], b[N], y[N], w[N], out[N];
    uint16_t oh[N];

    for (int i = 0; i < N; i++) {
        x[i] = 3 * noise();
        b[i] = noise();
        y[i] = 4 * noise();
    }
    k->gelu_f32(y, x, b, NULL, N, w);
    k->gelu_bf16(y, x, NULL, NULL, N, oh);
    for (int i = 0; i < N; i++) {
        double g = (double)y[i] + (double)b[i], h = (double)bf16((double)y[i]);

        CHECK(near((double)w[i], gelu(g) * (double)x[i], 2e-6));
        CHECK(near((double)f32_from_bf16(oh[i]),
                   (double)bf16(gelu(h)) * (double)bf16((double)x[i]), 0.008));
    }
    memcpy(w, y, sizeof(w));
    w[0] = 1e4f;
    w[1] = -1e4f;
    w[2] = 1e-5f;
    memcpy(out, w, sizeof(w));
    k->cap(out, 0.5f, 3, N);
    for (int i = 0; i < N; i++)
        CHECK(near((double)out[i], 3 * tanh((double)w[i] * 0.5 / 3), 1e-6));
}

static void test_extremes(const struct kernels *k)
{
    float g[] = { 1e4f, -1e4f, 89, -89, 0, -0.0f, 1e-30f, 3e38f };
    float one[] = { 1, 1, 1, 1, 1, 1, 1, 1 }, out[8];
    uint16_t h[8];

    k->gate_f32(g, one, NULL, NULL, 8, out);
    CHECK(out[0] == 1e4f && fabsf(out[1]) < 1e-30f && out[2] == 89);
    CHECK(fabsf(out[3]) < 1e-30f && out[4] == 0 && out[7] == 3e38f);
    g[0] = NAN;
    g[1] = INFINITY;
    k->store_bf16(g, NULL, 8, h);
    CHECK((h[0] & 0x7fff) > 0x7f80 && h[1] == 0x7f80);
}

static double clamped(double g, double u, double alpha, double limit)
{
    g = fmin(g, limit);
    return (fmax(fmin(u, limit), -limit) + 1) * g / (1 + exp(-alpha * g));
}

static void test_clamped(const struct kernels *k)
{
    float x[N], b[N], y[N], w[N];
    uint16_t oh[N];

    for (int i = 0; i < N; i++) {
        x[i] = 3 * noise();
        b[i] = noise();
        y[i] = 4 * noise();
    }
    k->clamped_f32(y, x, b, NULL, 1.702f, 2, N, w);
    k->clamped_bf16(y, x, NULL, b, 1.702f, 2, N, oh);
    for (int i = 0; i < N; i++) {
        double g = (double)y[i] + (double)b[i], u = (double)x[i] + (double)b[i];

        CHECK(near((double)w[i], clamped(g, (double)x[i], (double)1.702f, 2),
                   2e-6));
        CHECK(near((double)f32_from_bf16(oh[i]),
                   clamped((double)bf16((double)y[i]), (double)bf16(u),
                           (double)1.702f, 2),
                   0.03));
    }
}

/* Some tokens of linear attention, in double precision beside it. */
static void test_recur(const struct kernels *k, bool rule)
{
    enum { KD = 12, VD = 21 };
    float S[KD * VD] = { 0 }, x[KD], y[KD], v[VD], o[VD], decay[KD];
    struct recurrence r = { S, x, y, v, decay, 0.5f, rule, KD, VD, o };
    double want[KD * VD] = { 0 };

    for (int t = 0; t < 9; t++) {
        for (int i = 0; i < KD; i++) {
            decay[i] = 1 - noise() * noise() / 4;
            x[i] = noise();
            y[i] = noise() / 4;
        }
        for (int i = 0; i < VD; i++)
            v[i] = noise();
        k->recur(&r);
        for (int c = 0; c < VD; c++) {
            double held = 0, sum = 0;

            for (int i = 0; i < KD; i++)
                held += (want[i * VD + c] *= (double)decay[i]) * (double)y[i];
            held = rule ? held : 0;
            for (int i = 0; i < KD; i++) {
                want[i * VD + c] += (double)y[i] * 0.5 * ((double)v[c] - held);
                sum += want[i * VD + c] * (double)x[i];
            }
            CHECK(near((double)o[c], sum, 1e-5));
        }
    }
}

/* out[n][padded] of a block of queries at `first`, from all the scores. */
static void plain_attention(const struct attend *a, const float *q,
                            const float *keys, const float *v, int64_t i,
                            double *out)
{
    int64_t p = a->first + i, lo = a->chunk  ? p / a->chunk * a->chunk :
                                   a->window ? p - a->window + 1 :
                                               0;
    double total = 0;

    for (int64_t c = 0; c < a->dim; c++)
        out[c] = 0;
    for (int64_t j = lo < 0 ? 0 : lo; j <= p; j++) {
        double s = 0;

        if (a->seen && !(a->seen[i * a->words + j / 64] >> j % 64 & 1))
            continue;
        for (int64_t c = 0; c < a->dim; c++)
            s += (double)q[i * a->dim + c] * (double)keys[j * a->dim + c];
        s *= (double)a->scale;
        if (a->cap > 0)
            s = (double)a->cap * tanh(s / (double)a->cap);
        s = exp(s);
        total += s;
        for (int64_t c = 0; c < a->dim; c++)
            out[c] += s * (double)v[j * a->dim + c];
    }
    if (a->sink)
        total += exp((double)*a->sink);
    for (int64_t c = 0; c < a->dim; c++)
        out[c] /= total;
}

static float q[ATTEND_QUERIES * DIM_MAX], keys[KEYS_MAX * DIM_MAX],
    vals[KEYS_MAX * DIM_MAX], packed_k[KEYS_MAX * DIM_MAX],
    packed_v[KEYS_MAX * DIM_MAX], out[ATTEND_QUERIES * DIM_MAX];

/* Into the layouts of kernels.h, one element at a time. */
static void lay_out(const struct attend *a, bool pairs, int64_t n)
{
    uint16_t *kh = (uint16_t *)(void *)packed_k,
             *vh = (uint16_t *)(void *)packed_v;

    memset(packed_k, 0, sizeof(packed_k));
    memset(packed_v, 0, sizeof(packed_v));
    for (int64_t j = 0; j < n; j++)
        for (int64_t c = 0; c < a->dim; c++) {
            int64_t b = j / ATTEND_KEYS, i = j % ATTEND_KEYS;
            float k = keys[j * a->dim + c], v = vals[j * a->dim + c];

            if (pairs) {
                kh[((b * a->dim / 2 + c / 2) * ATTEND_KEYS + i) * 2 + c % 2] =
                    bf16_from_f32(k);
                vh[(j / 2 * a->padded + c) * 2 + j % 2] = bf16_from_f32(v);
            } else {
                packed_k[(b * a->dim + c) * ATTEND_KEYS + i] = k;
                packed_v[j * a->padded + c] = v;
            }
        }
}

/* Whether queries see keys by chance alone, and heads have a sink. */
static bool sparse, sinks, chunks;

/* A third of the keys, the first of them at a random place. */
static const uint64_t *some_keys(struct attend *a)
{
    static uint64_t seen[ATTEND_QUERIES * (KEYS_MAX / 64)];

    a->words = KEYS_MAX / 64;
    memset(seen, 0, sizeof(seen));
    for (int64_t i = 0; i < a->n; i++) {
        int64_t p = a->first + i, one = (int64_t)(seed >> 33) % (p + 1);

        for (int64_t j = 0; j <= p; j++)
            if (j == one || (j > one && noise() > 0.67f))
                seen[i * a->words + j / 64] |= (uint64_t)1 << j % 64;
    }
    return seen;
}

static void test_attend(const struct kernels *k, bool pairs, int64_t dim,
                        int64_t first, int64_t n, int64_t window, float cap)
{
    static const float sink = 1.5f;
    struct attend a = { .dim = dim,
                        .padded = (dim + ATTEND_ALIGN - 1) / ATTEND_ALIGN *
                                  ATTEND_ALIGN,
                        .first = first,
                        .n = n,
                        .window = chunks ? 0 : window,
                        .chunk = chunks ? window : 0,
                        .scale = 1 / sqrtf((float)dim),
                        .cap = cap,
                        .q = q,
                        .k = packed_k,
                        .v = packed_v,
                        .out = out };
    static uint16_t qh[ATTEND_QUERIES * DIM_MAX];
    double want[DIM_MAX];

    for (int64_t i = 0; i < ATTEND_QUERIES * dim; i++)
        q[i] = i < n * dim ? bf16((double)noise()) : 0;
    for (int64_t i = 0; i < (first + n) * dim; i++) {
        keys[i] = bf16((double)noise());
        vals[i] = bf16((double)noise());
    }
    lay_out(&a, pairs, first + n);
    a.seen = sparse && !window ? some_keys(&a) : NULL;
    a.sink = sinks ? &sink : NULL;
    for (int64_t i = 0; i < ATTEND_QUERIES * dim; i++)
        qh[i] = bf16_from_f32(q[i]);
    if (pairs) {
        a.q = qh;
        k->attend_pairs(&a);
    } else {
        k->attend(&a);
    }
    for (int64_t i = 0; i < n; i++) {
        plain_attention(&a, q, keys, vals, i, want);
        for (int64_t c = 0; c < dim; c++)
            CHECK(near((double)out[i * a.padded + c], want[c],
                       pairs ? 0.008 : 5e-6));
    }
}

static void test_attention(const struct kernels *k, bool pairs, float cap)
{
    static const int64_t dims[] = { 2, 6, 16, 64, 80, 128, 160 };

    for (size_t d = 0; d < ARRAY_LEN(dims); d++) {
        test_attend(k, pairs, dims[d], 0, 1, 0, cap);
        test_attend(k, pairs, dims[d], 0, ATTEND_QUERIES, 0, cap);
        test_attend(k, pairs, dims[d], 240, 33, 0, cap);
        test_attend(k, pairs, dims[d], 192, ATTEND_QUERIES, 1, cap);
        test_attend(k, pairs, dims[d], 192, ATTEND_QUERIES, 64, cap);
        test_attend(k, pairs, dims[d], 144, 47, 70, cap);
        test_attend(k, pairs, dims[d], 96, 48, 1000, cap);
    }
}

static void test_rotate(const struct kernels *k)
{
    float x[40], w[40], cs[40], got[40];
    struct rotation t = { .dim = 40, .rotary = 40 };
    double sum = 0;

    for (int i = 0; i < 40; i++) {
        x[i] = noise();
        w[i] = noise();
        sum += (double)x[i] * (double)x[i];
    }
    for (int i = 0; i < 20; i++) {
        cs[i] = (float)cos(i * 0.3);
        cs[20 + i] = (float)sin(i * 0.3);
    }
    for (int norm = 0; norm < 2; norm++) {
        double r = norm ? 1 / sqrt(sum / 40) : 1;

        t.norm = norm ? w : NULL;
        k->rotate_row(&t, x, cs, got);
        for (int i = 0; i < 20; i++) {
            double a = (double)x[i] * r * (norm ? (double)w[i] : 1);
            double b = (double)x[20 + i] * r * (norm ? (double)w[20 + i] : 1);

            CHECK(near((double)got[i], a * cos(i * 0.3) - b * sin(i * 0.3),
                       2e-6));
            CHECK(near((double)got[20 + i], b * cos(i * 0.3) + a * sin(i * 0.3),
                       2e-6));
        }
    }
}

/* From bf16 to bf16 it is the same as through floats. */
static void test_rotate_bf16(const struct kernels *k)
{
    static const int64_t dims[] = { 40, 64, 96, 128 };
    float w[128], cs[128], row[128];
    uint16_t x[128], got[128];

    for (size_t d = 0; d < ARRAY_LEN(dims) * 4; d++) {
        int64_t n = dims[d / 4];
        struct rotation t = { .bf16 = true,
                              .dim = n,
                              .rotary = d % 4 > 2 ? n / 2 : n,
                              .norm = d % 2 ? w : NULL,
                              .eps = 1e-6f };

        for (int64_t i = 0; i < n; i++) {
            x[i] = bf16_from_f32(noise());
            w[i] = bf16((double)noise());
            cs[i] = noise() / 2;
        }
        k->rotate_row(&t, x, cs, row);
        k->rotate_bf16(&t, x, cs, got);
        for (int64_t i = 0; i < n; i++)
            CHECK(got[i] == bf16_from_f32(row[i]));
    }
}

static void test_pair_rows(const struct kernels *k)
{
    uint16_t a[N], b[N], pairs[2 * N];

    for (int i = 0; i < N; i++) {
        a[i] = (uint16_t)(i * 517);
        b[i] = (uint16_t)(i * 911 + 3);
    }
    k->pair_rows(a, b, N, pairs);
    for (int i = 0; i < N; i++)
        CHECK(pairs[2 * i] == a[i] && pairs[2 * i + 1] == b[i]);
}

static void test_level(void)
{
    const struct kernels *k = kernels_best();

    test_rows(k);
    test_gelu(k);
    test_clamped(k);
    test_recur(k, true);
    test_recur(k, false);
    test_extremes(k);
    test_rotate(k);
    test_rotate_bf16(k);
    test_pair_rows(k);
    test_attention(k, false, 0);
    test_attention(k, false, 0.5f);
    if (k->attend_pairs) {
        test_attention(k, true, 0);
        test_attention(k, true, 0.5f);
    }
    for (int i = 1; i < 5; i++) {
        sparse = i & 1;
        sinks = i & 2;
        chunks = i & 4;
        test_attention(k, false, 0);
        if (k->attend_pairs)
            test_attention(k, true, 0);
    }
    chunks = false;
}

int main(void)
{
    each_level(test_level);
    return 0;
}
