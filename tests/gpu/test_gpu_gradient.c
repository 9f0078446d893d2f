/* test_gpu_gradient - the backward pass's functions on the GPU, attention
 * excepted: PROGRAM PLUG-IN [SEED].  Norms, gates and what only moves numbers
 * are compared with the CPU's. */
#include "gradient.h"

/* ---- linears ---- */

/* y[rows, n] (+)= x[rows, k] op(w) */
static void product(double *y, const double *x, const double *w, bool t,
                    int64_t rows, int64_t n, int64_t k, bool add)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < n; c++) {
            double sum = add ? y[r * n + c] : 0;

            for (int64_t i = 0; i < k; i++)
                sum += x[r * k + i] * (t ? w[c * k + i] : w[i * n + c]);
            y[r * n + c] = sum;
        }
}

static void test_linear(int64_t rows, int64_t out, int64_t in, bool bf16,
                        bool backwards, bool add)
{
    struct twin w = weights_of(out * in, 1 / sqrtf((float)in), bf16);
    struct twin x = normals(rows * (backwards ? out : in), 1);
    struct twin bias = normals(out, 1);
    int64_t n = backwards ? in : out;
    struct twin y = add ? normals(rows * n, 1) : poison(rows * n);
    double *right = wide(&y), *u = wide(&w), *v = wide(&x);
    struct backward_linear a = { .rows = rows,
                                 .out = out,
                                 .in = in,
                                 .w = w.host,
                                 .bias = backwards ? NULL : bias.host,
                                 .x = x.host,
                                 .y = y.host,
                                 .back = backwards,
                                 .add = add };

    product(right, v, u, !backwards, rows, n, backwards ? out : in, add);
    for (int64_t i = 0; !backwards && i < rows * n; i++)
        right[i] += (double)bias.host[i % n];
    OK(backward_cpu.linear(NULL, &a, e));
    a.w = w.there;
    a.bf16 = bf16;
    a.bias = backwards ? NULL : bias.there;
    a.x = x.there;
    a.y = y.there;
    OK(back->linear(gpu, &a, e));
    judge(backwards ? "linear back" : "linear", &y, right);
    drop(&w);
    drop(&x);
    drop(&bias);
    free(u);
    free(v);
}

/* ---- norms, gates, moves ---- */

static void test_norm(enum dtype t, int64_t rows, int64_t n, int64_t ld,
                      bool add)
{
    struct twin x = normals(rows * ld, 2), w = normals(n, 1);
    struct twin gy = normals(rows * n, 1), g = normals(rows * ld, 1);
    void *there = x.there;
    struct backward_norm a = { .dtype = t,
                               .rows = rows,
                               .n = n,
                               .x = x.host,
                               .ld = ld,
                               .w = w.host,
                               .eps = 1e-6,
                               .gy = gy.host,
                               .g = g.host,
                               .ldg = ld,
                               .add = add };

    if (t == DT_BF16) { /* of x, half its room */
        void *half = room((size_t)x.n * 2);

        CHECK(from_f32(half, t, x.host, (size_t)x.n));
        there = put(half, (size_t)x.n * 2);
        a.x = half;
    }
    OK(backward_cpu.norm(NULL, &a, e));
    a.x = there;
    a.w = w.there;
    a.gy = gy.there;
    a.g = g.there;
    OK(back->norm(gpu, &a, e));
    same("norm", &g, 1e-6);
    drop(&x);
    drop(&w);
    drop(&gy);
    drop(&g);
}

static void test_squares(int64_t rows, int64_t n)
{
    struct twin x = normals(rows * n, 1), to = normals(rows, 1);
    double *right = wide(&to);

    for (int64_t i = 0; i < rows * n; i++)
        right[i / n] += (double)x.host[i] * (double)x.host[i];
    OK(backward_cpu.squares(NULL, x.host, rows, n, to.host, e));
    OK(back->squares(gpu, x.there, rows, n, to.there, e));
    judge("squares", &to, right);
    drop(&x);
}

static void test_moves(int64_t rows, int64_t heads)
{
    enum { NOPE = 24, ROPE = 8, V = 20, LORA = 40 };
    struct twin key = poison(rows * heads * (NOPE + ROPE));
    struct twin value = poison(rows * heads * V);
    struct twin a = normals(rows * (LORA + ROPE), 1);
    struct twin b = normals(rows * heads * (NOPE + V), 1);
    struct twin w = normals(LORA + ROPE, .2f), gates = poison(rows);
    struct twin to = poison(rows * (LORA + ROPE));
    void *half = room((size_t)a.n * 2), *there = put(half, (size_t)a.n * 2);

    for (int i = 0; i < 2; i++) {
        struct backward_latent l = { rows,   heads,  NOPE,     ROPE,
                                     V,      LORA,   key.host, value.host,
                                     a.host, b.host, i };

        OK(backward_cpu.latent(NULL, &l, e));
        l.key = key.there;
        l.value = value.there;
        l.a = a.there;
        l.b = b.there;
        OK(back->latent(gpu, &l, e));
    }
    same("latent keys", &key, 0);
    same("latent values", &value, 0);
    same("kv_a", &a, 0);
    same("kv_b", &b, 0);
    OK(backward_cpu.gates(NULL, a.host, w.host, rows, LORA + ROPE, gates.host,
                          e));
    OK(back->gates(gpu, a.there, w.there, rows, LORA + ROPE, gates.there, e));
    same("gates", &gates, 1e-7);
    for (int i = 0; i < 2; i++) {
        OK(backward_cpu.scale(NULL, w.host, .22f, i, w.n, a.host, e));
        OK(back->scale(gpu, w.there, .22f, i, w.n, a.there, e));
    }
    same("scale", &a, 0);
    OK(backward_cpu.narrow(NULL, DT_BF16, a.host, a.n, half, e));
    OK(backward_cpu.widen(NULL, DT_BF16, half, a.n, to.host, e));
    OK(back->narrow(gpu, DT_BF16, a.there, a.n, there, e));
    OK(back->widen(gpu, DT_BF16, there, a.n, to.there, e));
    same("narrow and widen", &to, 0);
    free(half);
    memory->release(gpu, there);
    drop(&key);
    drop(&value);
    drop(&a);
    drop(&b);
    drop(&w);
    drop(&gates);
    drop(&to);
}

/* ---- an MLP ---- */

/* Gradients with respect to gate and up; c: with respect to what they make. */
static void gates_in_double(const struct forward_gating *how, double gate,
                            double up, double c, double *u, double *s)
{
    double limit = (double)how->limit, alpha = 1, z, inner, slope, bound = up;

    if (how->act == ACT_GELU) {
        z = sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
        slope = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * gate * gate);
        *u = c * up *
             (.5 * (1 + tanh(z)) + .5 * gate * (1 - tanh(z) * tanh(z)) * slope);
        *s = c * .5 * gate * (1 + tanh(z));
        return;
    }
    inner = gate;
    if (how->act == ACT_CLAMPED) {
        alpha = (double)how->alpha;
        inner = fmin(gate, limit);
        bound = fmax(fmin(up, limit), -limit) + 1;
    }
    z = 1 / (1 + exp(-alpha * inner));
    *u = c * bound * z * (1 + alpha * inner * (1 - z));
    *s = c * inner * z;
    if (how->act == ACT_CLAMPED && gate > limit)
        *u = 0;
    if (how->act == ACT_CLAMPED && fabs(up) > limit)
        *s = 0;
}

static void mlp_in_double(const struct backward_mlp *a, const int64_t *token,
                          double *gin, double *const squares[2])
{
    double *u = room((size_t)a->width * 8), *s = room((size_t)a->width * 8);

    for (int64_t r = 0; r < a->rows; r++) {
        int64_t t = token ? token[r] : r;
        double weight = a->weight ? (double)a->weight[r] : 1;
        const float *w[MLP_LINEARS] = { a->w[0], a->w[1], a->w[2] };
        double by_in = a->weigh_inputs ? weight : 1;

        for (int64_t o = 0; o < a->width; o++) {
            double gate = a->bias[MLP_GATE] ? (double)a->bias[MLP_GATE][o] : 0;
            double up = a->bias[MLP_UP] ? (double)a->bias[MLP_UP][o] : 0;
            double c = 0;

            for (int64_t k = 0; k < a->h; k++) {
                double in = (double)a->in[t * a->h + k] * by_in;

                gate += in * (double)w[MLP_GATE][o * a->h + k];
                up += in * (double)w[MLP_UP][o * a->h + k];
                c += weight / by_in * (double)a->g[t * a->h + k] *
                     (double)w[MLP_DOWN][k * a->width + o];
            }
            gates_in_double(&a->gating, gate, up, c, &u[o], &s[o]);
            squares[MLP_GATE][r] += u[o] * u[o];
            squares[MLP_UP][r] += s[o] * s[o];
        }
        for (int64_t k = 0; k < a->h; k++)
            for (int64_t o = 0; o < a->width; o++)
                gin[t * a->h + k] +=
                    by_in * (u[o] * (double)w[MLP_GATE][o * a->h + k] +
                             s[o] * (double)w[MLP_UP][o * a->h + k]);
    }
    free(u);
    free(s);
}

static void test_mlp(bool bf16, int64_t tokens, int64_t h, int64_t width,
                     bool chosen, bool weighted, bool biased,
                     enum activation act, bool weigh_inputs)
{
    int64_t rows = chosen ? tokens * 2 / 3 : tokens;
    struct twin w[MLP_LINEARS], bias[2], in = normals(tokens * h, 1);
    struct twin g = normals(tokens * h, 1), gin = normals(tokens * h, 1);
    struct twin weight = normals(rows, 1);
    int64_t *token = room((size_t)tokens * 8), *there;
    struct twin squares[] = { normals(rows, 1), normals(rows, 1) };
    double *right = wide(&gin),
           *sums[] = { wide(&squares[0]), wide(&squares[1]) };
    struct backward_mlp a = { .rows = rows,
                              .h = h,
                              .width = width,
                              .gating = { act, 1.7f, 1 },
                              .weigh_inputs = weigh_inputs };

    for (int64_t i = 0; i < tokens; i++)
        token[i] = i * 7 % tokens; /* 7 does not divide it */
    there = (int64_t *)(void *)put(token, (size_t)tokens * 8);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < MLP_LINEARS; i++) {
            if (!side)
                w[i] = weights_of(h * width, 1 / sqrtf((float)h), bf16);
            if (!side && i < MLP_DOWN)
                bias[i] = normals(width, 1);
            a.w[i] = side ? w[i].there : w[i].host;
            if (biased && i < MLP_DOWN)
                a.bias[i] = side ? bias[i].there : bias[i].host;
            if (i < MLP_DOWN)
                a.squares[i] = side ? squares[i].there : squares[i].host;
        }
        a.token = !chosen ? NULL : side ? there : token;
        a.weight = !weighted ? NULL : side ? weight.there : weight.host;
        a.in = side ? in.there : in.host;
        a.g = side ? g.there : g.host;
        a.gin = side ? gin.there : gin.host;
        if (side) {
            a.bf16 = bf16;
            OK(back->mlp(gpu, &a, e));
            continue;
        }
        mlp_in_double(&a, a.token, right, sums);
        OK(backward_cpu.mlp(NULL, &a, e));
    }
    judge(chosen ? "MLP, chosen tokens" : "MLP", &gin, right);
    judge("squares of gate", &squares[MLP_GATE], sums[MLP_GATE]);
    judge("squares of up", &squares[MLP_UP], sums[MLP_UP]);
    for (int i = 0; i < MLP_LINEARS; i++)
        drop(&w[i]);
    drop(&bias[0]);
    drop(&bias[1]);
    drop(&in);
    drop(&g);
    drop(&weight);
    memory->release(gpu, there);
    free(token);
}

/* ---- the head ---- */

/* The i-th number of SplitMix64 from 0. */
static uint64_t mix(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* s_v of a row. */
static double sign(const struct backward_head *a, int64_t row, int64_t v)
{
    uint64_t bits =
        mix(mix(a->first + (uint64_t)row) + (uint64_t)v / 64) >> v % 64;

    return bits & 1 ? -1 : 1;
}

static void head_in_double(const struct backward_head *a, double *g)
{
    double *p = room((size_t)a->vocab * 8), *slope = room((size_t)a->vocab * 8);
    double cap = (double)a->cap, scale = (double)a->scale;

    for (int64_t r = 0; r < a->rows; r++) {
        double sum = 0, roots = 0;

        for (int64_t v = 0; v < a->vocab; v++) {
            p[v] = 0;
            for (int64_t k = 0; k < a->h; k++)
                p[v] += (double)a->y[r * a->h + k] *
                        (double)f32_from_bf16(a->w[v * a->h + k]);
            p[v] *= scale;
            p[v] = cap > 0 ? cap * tanh(p[v] / cap) : p[v];
            slope[v] = scale * (cap > 0 ? 1 - p[v] * p[v] / (cap * cap) : 1);
            sum += p[v] = exp(p[v]);
        }
        for (int64_t v = 0; v < a->vocab; v++) {
            p[v] /= sum;
            roots += sign(a, r, v) * sqrt(p[v]);
        }
        memset(g + r * a->h, 0, (size_t)a->h * 8);
        for (int64_t v = 0; v < a->vocab; v++) {
            double c = sign(a, r, v) * sqrt(p[v]) - p[v] * roots;

            for (int64_t k = 0; k < a->h; k++)
                g[r * a->h + k] +=
                    c * slope[v] * (double)f32_from_bf16(a->w[v * a->h + k]);
        }
    }
    free(p);
    free(slope);
}

/* rounded: as near as bf16 is, 2^-9 a number. */
static void test_head(int64_t rows, int64_t h, int64_t vocab, float scale,
                      float cap, bool rounded)
{
    struct twin y = normals(rows * h, 1), g = poison(rows * h);
    float *w = room((size_t)(vocab * h) * 4);
    uint16_t *half = room((size_t)(vocab * h) * 2);
    double *right = room((size_t)(rows * h) * 8);
    struct backward_head a = { rows,   h,      vocab, rnd(), half,
                               y.host, g.host, scale, cap,   rounded };
    void *there;

    for (int64_t i = 0; i < vocab * h; i++)
        w[i] = 2 * normal() / sqrtf((float)h);
    CHECK(from_f32(half, DT_BF16, w, (size_t)(vocab * h)));
    there = put(half, (size_t)(vocab * h) * 2);
    head_in_double(&a, right);
    OK(backward_cpu.head(NULL, &a, e));
    a.w = there;
    a.y = y.there;
    a.g = g.there;
    OK(back->head(gpu, &a, e));
    if (rounded) {
        CHECK(distance(g.host, right, g.n) < 1e-2);
        near("head, rounded", &g, right, 1e-2);
    } else {
        judge("head", &g, right);
    }
    free(w);
    free(half);
    memory->release(gpu, there);
    drop(&y);
}

int main(int argc, char **argv)
{
    gradient_open(argc, argv);
    for (int i = 0; i < 6; i++) {
        test_linear(300, 256, 512, i & 1, i / 2, i / 2 == 2);
        test_linear(7, 37, 75, i & 1, i / 2, i / 2 == 2);
        test_linear(3, 40, 5000, i & 1, i / 2, i / 2 == 2);
    }
    for (int i = 0; i < 4; i++) {
        test_norm(i % 2 ? DT_F32 : DT_BF16, 70, 4096, 4096, i / 2);
        test_norm(i % 2 ? DT_F32 : DT_BF16, 33, 51, 57, i / 2);
    }
    test_squares(70, 4096);
    test_squares(33, 51);
    test_moves(50, 5);
    for (int i = 0; i < 16; i++)
        test_mlp(i & 8, i % 8 == 7 ? 2101 : 101, 64, i % 8 == 7 ? 32 : 192,
                 i & 1, i & 2, i & 4, ACT_SILU, false);
    for (int i = 0; i < 4; i++) {
        test_mlp(i & 1, 31, 64, 48, false, false, i & 1,
                 i & 2 ? ACT_CLAMPED : ACT_GELU, false);
        test_mlp(i & 1, 31, 64, 48, true, true, i & 1,
                 i & 2 ? ACT_CLAMPED : ACT_SILU, i < 2);
    }
    test_head(60, 64, 5000, 1, 0, false);
    test_head(2060, 16, 300, 1, 0, false);
    test_head(60, 64, 5000, .25f, 0, false);
    test_head(60, 64, 5000, 1, 2, false);
    test_head(60, 64, 5000, 1, 0, true);
    test_head(2060, 16, 300, .25f, 2, true);
    return 0;
}
