/* test_gpu_tune - what forge-tune has on the GPU: PROGRAM PLUG-IN [SEED].  Gradients
 * with respect to weights, the divergence of the head, and steps of Adam, against plain
 * loops in double; weights to the bit. */
#include "common/math/quant.h"
#include "gradient.h"
#include "tune/tune_table.h"

/* ---- weights ---- */

/* to[out, in] += gT x */
static void add_in_double(double *to, const double *g, const double *x,
                          int64_t rows, int64_t out, int64_t in)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
                to[o * in + i] += g[r * out + o] * x[r * in + i];
}

/* rounded: of numbers that are bf16's already, so that nothing is. */
static void test_weights(int64_t rows, int64_t out, int64_t in, bool rounded)
{
    struct twin g = matrix(rows * out, 1, rounded);
    struct twin x = matrix(rows * in, 1, rounded), to = normals(out * in, 1);
    double *right = wide(&to), *u = wide(&g), *v = wide(&x);
    struct backward_weights a = { rows,   out,     in,     g.host,
                                  x.host, to.host, rounded };

    add_in_double(right, u, v, rows, out, in);
    OK(backward_cpu.weights(NULL, &a, e));
    a.g = g.there;
    a.x = x.there;
    a.to = to.there;
    OK(back->weights(gpu, &a, e));
    judge(rounded ? "weights, rounded" : "weights", &to, right);
    drop(&g);
    drop(&x);
    free(u);
    free(v);
}

/* What is rounded is as near as bf16 is: 2^-9 a number. */
static void test_rounded(int64_t rows, int64_t out, int64_t in, bool backwards)
{
    struct twin w = bf16_matrix(out * in, 1 / sqrtf((float)in));
    struct twin x = normals(rows * (backwards ? out : in), 1);
    int64_t n = backwards ? in : out, k = backwards ? out : in;
    struct twin y = poison(rows * n);
    double *right = room((size_t)(rows * n) * 8);
    struct backward_linear a = { .rows = rows,
                                 .out = out,
                                 .in = in,
                                 .w = w.there,
                                 .bf16 = true,
                                 .x = x.there,
                                 .y = y.there,
                                 .back = backwards,
                                 .rounded = true };

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < n; c++)
            for (int64_t i = 0; i < k; i++)
                right[r * n + c] +=
                    (double)f32_from_bf16(bf16_from_f32(x.host[r * k + i])) *
                    (double)w.host[backwards ? i * n + c : c * k + i];
    OK(back->linear(gpu, &a, e));
    near(backwards ? "linear back, rounded" : "linear, rounded", &y, right,
         1e-5);
    drop(&w);
    drop(&x);
}

/* ---- an MLP ---- */

/* The inputs of down, and gradients with respect to what gate and up put out, of a row;
 * c: with respect to the former. */
static void gate_in_double(const struct forward_gating *how, double a, double b,
                           double c, double out[3])
{
    const double step = 1e-6, limit = (double)how->limit;
    double y[3];

    for (int i = 0; i < 3; i++) { /* at a, and beside it */
        double x = a + (i == 2 ? -step : i * step), z;

        if (how->act == ACT_CLAMPED)
            x = fmin(x, limit);
        z = how->act == ACT_GELU ?
                2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x) :
            how->act == ACT_CLAMPED ? (double)how->alpha * x :
                                      x;
        y[i] = x / (1 + exp(-z));
    }
    if (how->act == ACT_CLAMPED) {
        bool inside = fabs(b) <= limit;

        b = fmax(fmin(b, limit), -limit) + 1;
        out[2] = inside ? c * y[0] : 0;
    } else {
        out[2] = c * y[0];
    }
    out[0] = y[0] * b;
    out[1] = c * b * (y[1] - y[2]) / (2 * step);
}

/* weighted: rows have weights, and are another token each. */
static void test_mlp(int64_t rows, int64_t h, int64_t width, bool weighted,
                     bool rounded, enum activation act)
{
    double most = rounded ? 1e-2 : 1e-5;
    int64_t *token = room((size_t)rows * 8), *there;
    /* rounded already: what is beyond a clamp then is so in both */
    struct twin w[MLP_LINEARS], to[MLP_LINEARS], in = matrix(rows * h, 1, true);
    struct twin g = normals(rows * h, 1), gin = normals(rows * h, 1);
    struct twin weight = normals(rows, 1);
    double *right[MLP_LINEARS], *of = wide(&in), *gof = wide(&g);
    double *x = wide(&in), *gy = wide(&g), *back_to = wide(&gin);
    double *mid = room((size_t)(rows * width) * 8),
           *a = room((size_t)(rows * width) * 8),
           *b = room((size_t)(rows * width) * 8);
    struct backward_mlp m = { .rows = rows,
                              .h = h,
                              .width = width,
                              .bf16 = true,
                              .gating = { act, 1.7f, 1 },
                              .rounded = rounded,
                              .weight = weighted ? weight.there : NULL,
                              .in = in.there,
                              .g = g.there,
                              .gin = gin.there };

    for (int i = 0; i < MLP_LINEARS; i++) {
        w[i] = bf16_matrix(h * width, 1 / sqrtf((float)h));
        to[i] = normals(h * width, 1);
        right[i] = wide(&to[i]);
        m.w[i] = w[i].there;
        m.weights[i] = to[i].there;
    }
    for (int64_t r = 0; r < rows; r++) {
        token[r] = weighted ? rows - 1 - r : r;
        for (int64_t k = 0; k < h; k++) {
            x[r * h + k] = of[token[r] * h + k];
            gy[r * h + k] =
                (weighted ? (double)weight.host[r] : 1) * gof[token[r] * h + k];
        }
        for (int64_t o = 0; o < width; o++) {
            double gate = 0, up = 0, c = 0, out[3];

            for (int64_t k = 0; k < h; k++) {
                gate += x[r * h + k] * (double)w[MLP_GATE].host[o * h + k];
                up += x[r * h + k] * (double)w[MLP_UP].host[o * h + k];
                c += gy[r * h + k] * (double)w[MLP_DOWN].host[k * width + o];
            }
            gate_in_double(&m.gating, gate, up, c, out);
            mid[r * width + o] = out[0];
            a[r * width + o] = out[1];
            b[r * width + o] = out[2];
            for (int64_t k = 0; k < h; k++)
                back_to[token[r] * h + k] +=
                    out[1] * (double)w[MLP_GATE].host[o * h + k] +
                    out[2] * (double)w[MLP_UP].host[o * h + k];
        }
    }
    add_in_double(right[MLP_GATE], a, x, rows, width, h);
    add_in_double(right[MLP_UP], b, x, rows, width, h);
    add_in_double(right[MLP_DOWN], gy, mid, rows, h, width);
    there = (int64_t *)(void *)put(token, (size_t)rows * 8);
    m.token = weighted ? there : NULL;
    OK(back->mlp(gpu, &m, e));
    near("MLP", &gin, back_to, most);
    for (int i = 0; i < MLP_LINEARS; i++) {
        near("weights of an MLP", &to[i], right[i], most);
        drop(&w[i]);
    }
    memory->release(gpu, there);
    free(token);
    free(of);
    free(gof);
    drop(&in);
    drop(&g);
    drop(&weight);
    free(x);
    free(gy);
    free(mid);
    free(a);
    free(b);
}

/* ---- the divergence ---- */

static double logits(const struct backward_divergence *a, const float *y,
                     double *z, double *slope)
{
    double sum = 0;

    for (int64_t v = 0; v < a->vocab; v++) {
        double x = 0, t;

        for (int64_t k = 0; k < a->h; k++)
            x += (double)y[k] * (double)f32_from_bf16(a->w[v * a->h + k]);
        x *= (double)a->scale;
        t = a->cap > 0 ? tanh(x / (double)a->cap) : 0;
        z[v] = a->cap > 0 ? (double)a->cap * t : x;
        slope[v] = (double)a->scale * (1 - t * t);
        sum += exp(z[v]);
    }
    return log(sum);
}

static void test_divergence(int64_t rows, int64_t h, int64_t vocab, float scale,
                            float cap)
{
    struct twin y = normals(rows * h, 1), ref = normals(rows * h, 1);
    struct twin g = poison(rows * h);
    float *w = room((size_t)(vocab * h) * 4);
    uint16_t *half = room((size_t)(vocab * h) * 2);
    double *right = room((size_t)(rows * h) * 8), kl = 0, got;
    double *p = room((size_t)vocab * 24), *q = p + vocab, *slope = q + vocab;
    struct backward_divergence a = { .rows = rows,
                                     .h = h,
                                     .vocab = vocab,
                                     .w = half,
                                     .by = 0.25f,
                                     .scale = scale,
                                     .cap = cap,
                                     .kl = &got };

    for (int64_t i = 0; i < vocab * h; i++)
        w[i] = 2 * normal() / sqrtf((float)h);
    for (int64_t i = 0; i < rows * h; i++) /* near the other */
        y.host[i] = ref.host[i] + 0.1f * y.host[i];
    OK(memory->put(gpu, y.there, y.host, (size_t)(rows * h) * 4, e));
    CHECK(from_f32(half, DT_BF16, w, (size_t)(vocab * h)));
    for (int64_t r = 0; r < rows; r++) {
        double of_p = logits(&a, ref.host + r * h, p, slope);
        double of_q = logits(&a, y.host + r * h, q, slope);

        for (int64_t v = 0; v < vocab; v++) {
            double x = exp(p[v] - of_p), d = exp(q[v] - of_q) - x;

            kl += x * (p[v] - of_p - q[v] + of_q);
            for (int64_t k = 0; k < h; k++)
                right[r * h + k] += 0.25 * d * slope[v] *
                                    (double)f32_from_bf16(half[v * h + k]);
        }
    }
    a.w = (const uint16_t *)(void *)put(half, (size_t)(vocab * h) * 2);
    a.y = y.there;
    a.ref = ref.there;
    a.g = g.there;
    OK(back->divergence(gpu, &a, e));
    printf("  KL %.9g, in double %.9g\n", got, kl);
    CHECK(fabs(got - kl) < 1e-4 * kl);
    near("divergence", &g, right, 1e-4);
    memory->release(gpu, (void *)(uintptr_t)a.w);
    free(p);
    free(w);
    free(half);
    drop(&y);
    drop(&ref);
}

/* ---- steps ---- */

/* A step of a linear as one of a third of its rows and one of the others. */
static void step_parts(const struct tune_table *tune,
                       const struct tune_module *m, int64_t groups, size_t item,
                       const float back_by[2])
{
    int64_t rows = m->rows / 3, at = rows * m->cols;
    struct tune_module part[2] = { *m, *m };

    part[0].rows = rows;
    part[1].rows = m->rows - rows;
    part[1].meta += rows * groups;
    part[1].v += at;
    part[1].first += at;
    part[1].second += at;
    part[1].g += at;
    part[1].w = (char *)m->w + (size_t)at * item;
    OK(tune->step(gpu, part, 2, 0.3f, back_by, e));
}

static void test_steps(const struct tune_table *tune, int64_t rows,
                       int64_t cols, int64_t group, int bits, bool symmetric,
                       enum dtype t)
{
    int64_t n = rows * cols;
    int64_t groups = (int64_t)quant_groups((uint64_t)cols, (uint64_t)group);
    struct twin v = normals(n, 4), first = normals(n, 1e-3f);
    struct twin second = normals(n, 1e-3f), g = normals(n, 1);
    uint32_t *meta = room((size_t)(rows * groups) * 4);
    double *right = room((size_t)n * 8), *u = room((size_t)n * 8),
           *s = room((size_t)n * 8);
    size_t item = t == DT_BF16 ? 2 : 4;
    char *w = room((size_t)n * item), *want = room((size_t)n * item);
    const float back_by[2] = { 0.19f, 0.04f };
    struct tune_module m = { .rows = rows,
                             .cols = cols,
                             .group = group,
                             .scale_dtype = DT_F16,
                             .dtype = t };

    for (int64_t i = 0; i < n; i++) {
        v.host[i] += (float)quant_middle(bits);
        second.host[i] = fabsf(second.host[i]);
    }
    OK(memory->put(gpu, v.there, v.host, (size_t)n * 4, e));
    OK(memory->put(gpu, second.there, second.host, (size_t)n * 4, e));
    for (int64_t i = 0; i < rows * groups; i++) {
        meta[i] = quant_meta(0.01f + (float)uniform(), (int)(rnd() % 16),
                             symmetric, bits, DT_F16);
        if (symmetric && rnd() & 1)
            meta[i] = quant_negative(meta[i]);
    }
    m.meta = (const uint32_t *)(void *)put(meta, (size_t)(rows * groups) * 4);
    m.v = v.there;
    m.first = first.there;
    m.second = second.there;
    m.g = g.there;
    m.w = put(w, (size_t)n * item);
    for (int64_t i = 0; i < n; i++) {
        struct qgrid q =
            quant_grid(meta[i / cols * groups + i % cols / group], DT_F16);
        double d = (double)g.host[i] * (double)q.scale;

        u[i] = 0.9 * (double)first.host[i] + 0.1 * d;
        s[i] = 0.98 * (double)second.host[i] + 0.02 * d * d;
        right[i] = (double)v.host[i] -
                   0.3 * (u[i] / 0.19) / (sqrt(s[i] / 0.04) + 1e-12);
    }
    step_parts(tune, &m, groups, item, back_by);
    OK(memory->get(gpu, w, m.w, (size_t)n * item, e));
    OK(memory->get(gpu, v.host, m.v, (size_t)n * 4, e));
    for (int64_t i = 0; i < n; i++) {
        struct qgrid q =
            quant_grid(meta[i / cols * groups + i % cols / group], DT_F16);
        float code = fminf(fmaxf(rintf(v.host[i]), 0), (float)q.top);
        float x = quant_value((int)code, q);

        CHECK(from_f32(want + (size_t)i * item, t, &x, 1));
    }
    CHECK(!memcmp(w, want, (size_t)n * item));
    memset(w, 0xff, (size_t)n * item);
    OK(memory->put(gpu, m.w, w, (size_t)n * item, e));
    OK(tune->values(gpu, &m, e));
    OK(memory->get(gpu, w, m.w, (size_t)n * item, e));
    CHECK(!memcmp(w, want, (size_t)n * item));
    near("first moment", &first, u, 1e-6);
    near("second moment", &second, s, 1e-6);
    near("v", &v, right, 1e-6);
    memory->release(gpu, m.w);
    memory->release(gpu, (void *)(uintptr_t)m.meta);
    drop(&g);
    free(meta);
    free(w);
    free(want);
}

int main(int argc, char **argv)
{
    struct plugin_table t = { TUNE_TABLE, TUNE_TABLE_VERSION, NULL };

    gradient_open(argc, argv);
    OK(plugin_load(&t, argv[1], e));
    for (int i = 0; i < 2; i++) {
        test_weights(300, 256, 512, i);
        test_weights(7, 37, 75, i);
        test_weights(5000, 40, 24, i);
        test_rounded(300, 256, 512, i);
        test_rounded(7, 37, 75, i);
        for (int act = 0; act < 3; act++)
            test_mlp(act == 1 ? 2101 : 101, 64, 48, act & 1, i,
                     act == 0 ? ACT_SILU :
                     act == 1 ? ACT_GELU :
                                ACT_CLAMPED);
    }
    test_divergence(60, 64, 5000, 1, 0);
    test_divergence(2060, 16, 300, 1, 0);
    test_divergence(60, 64, 5000, .25f, 0);
    test_divergence(60, 64, 5000, 1, 2);
    test_divergence(40, 8, 2000000, 1, 0); /* in two parts */
    for (int i = 0; i < 8; i++)
        test_steps(t.functions, 33, 96, i & 1 ? 32 : 40, i & 2 ? 8 : 4, i & 4,
                   i & 1 ? DT_BF16 : DT_F32);
    return 0;
}
