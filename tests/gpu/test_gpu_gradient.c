/* test_gpu_gradient - the backward pass's functions on the GPU: PROGRAM PLUG-IN
 * [SEED].
 *
 * Products, MLPs, attention and the head are compared with plain loops in double
 * (formulas of backward_table.h), from which the CPU's f32 results are as far;
 * norms, gates and what only moves numbers with the CPU's.  Outputs are poisoned
 * before (NaN). */
#include "gpu.h"
#include "model/backward_table.h"
#include "model/forward_table.h"

static const struct forward_table *memory;
static const struct backward_table *back;

/* ---- numbers on both sides ---- */

struct twin {
    float *host, *there; /* of the CPU's functions; of the GPU's */
    int64_t n;
};

static float *put(const void *host, size_t n)
{
    void *p;
    bool spilled;

    OK(memory->alloc(gpu, &p, n, false, &spilled, e));
    OK(memory->put(gpu, p, host, n, e));
    return p;
}

static struct twin twin_of(float *host, int64_t n)
{
    return (struct twin){ host, put(host, (size_t)n * 4), n };
}

static struct twin normals(int64_t n, float size)
{
    float *x = room((size_t)n * 4);

    for (int64_t i = 0; i < n; i++)
        x[i] = size * normal();
    return twin_of(x, n);
}

static struct twin poison(int64_t n)
{
    float *x = room((size_t)n * 4);

    memset(x, 0xff, (size_t)n * 4);
    return twin_of(x, n);
}

static double *wide(const struct twin *t)
{
    double *x = room((size_t)t->n * 8);

    for (int64_t i = 0; i < t->n; i++)
        x[i] = (double)t->host[i];
    return x;
}

static void drop(struct twin *t)
{
    free(t->host);
    memory->release(gpu, t->there);
}

/* ||x - right|| / ||right||, for rows of n that skip[] does not name. */
static double distance(const float *x, const double *right, int64_t all,
                       int64_t n, const bool *skip)
{
    double sum = 0, square = 0;

    for (int64_t i = 0; i < all; i++) {
        double d = (double)x[i] - right[i];

        if (skip && skip[i / n])
            continue;
        if (!isfinite(x[i])) {
            fprintf(stderr, "number %lld of %lld is %g\n", (long long)i,
                    (long long)all, (double)x[i]);
            exit(1);
        }
        sum += d * d;
        square += right[i] * right[i];
    }
    return sqrt(sum / square);
}

/* Both sides' results against those in double: f32 sums in any order are within
 * 1e-5 (and the GPU within three times the CPU's distance, or 2e-6). */
static void judge_rows(const char *what, struct twin *t, double *right,
                       int64_t n, const bool *skip)
{
    float *x = room((size_t)t->n * 4);
    double mine, cpu;

    OK(memory->get(gpu, x, t->there, (size_t)t->n * 4, e));
    mine = distance(x, right, t->n, n, skip);
    cpu = distance(t->host, right, t->n, n, skip);
    printf("  %-28s GPU %.2g, CPU %.2g of double\n", what, mine, cpu);
    CHECK(mine < 1e-5 && cpu < 1e-5);
    CHECK(mine < 3 * cpu || mine < 2e-6);
    free(x);
    free(right);
    drop(t);
}

static void judge(const char *what, struct twin *t, double *right)
{
    judge_rows(what, t, right, 1, NULL);
}

/* Both sides are within `most` of each other; 0: to the bit. */
static void same(const char *what, struct twin *t, double most)
{
    float *x = room((size_t)t->n * 4);
    double *right = wide(t), d;

    OK(memory->get(gpu, x, t->there, (size_t)t->n * 4, e));
    d = distance(x, right, t->n, 1, NULL);
    if (d > most) {
        fprintf(stderr, "%s: %g of the CPU's\n", what, d);
        exit(1);
    }
    free(x);
    free(right);
}

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

static void test_linear(int64_t rows, int64_t out, int64_t in, bool backwards,
                        bool add)
{
    struct twin w = normals(out * in, 1 / sqrtf((float)in));
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

static void mlp_in_double(const struct backward_mlp *a, const int64_t *token,
                          double *gin)
{
    double *x = room((size_t)a->h * 8), *u = room((size_t)a->width * 8),
           *s = room((size_t)a->width * 8);

    for (int64_t r = 0; r < a->rows; r++) {
        int64_t t = token ? token[r] : r;
        double weight = a->weight ? (double)a->weight[r] : 1;

        for (int64_t o = 0; o < a->width; o++) {
            double gate = a->bias[MLP_GATE] ? (double)a->bias[MLP_GATE][o] : 0;
            double up = a->bias[MLP_UP] ? (double)a->bias[MLP_UP][o] : 0;
            double c = 0, z;

            for (int64_t k = 0; k < a->h; k++) {
                double in = (double)a->in[t * a->h + k];

                gate += in * (double)a->w[MLP_GATE][o * a->h + k];
                up += in * (double)a->w[MLP_UP][o * a->h + k];
                c += weight * (double)a->g[t * a->h + k] *
                     (double)a->w[MLP_DOWN][k * a->width + o];
            }
            z = 1 / (1 + exp(-gate));
            u[o] = c * up * z * (1 + gate * (1 - z));
            s[o] = c * gate * z;
        }
        for (int64_t k = 0; k < a->h; k++)
            for (int64_t o = 0; o < a->width; o++)
                gin[t * a->h + k] +=
                    u[o] * (double)a->w[MLP_GATE][o * a->h + k] +
                    s[o] * (double)a->w[MLP_UP][o * a->h + k];
    }
    free(x);
    free(u);
    free(s);
}

static void test_mlp(int64_t tokens, int64_t h, int64_t width, bool chosen,
                     bool weighted, bool biased)
{
    int64_t rows = chosen ? tokens * 2 / 3 : tokens;
    struct twin w[MLP_LINEARS], bias[2], in = normals(tokens * h, 1);
    struct twin g = normals(tokens * h, 1), gin = normals(tokens * h, 1);
    struct twin weight = normals(rows, 1);
    int64_t *token = room((size_t)tokens * 8), *there;
    double *right = wide(&gin);
    struct backward_mlp a = { .rows = rows, .h = h, .width = width };

    for (int64_t i = 0; i < tokens; i++)
        token[i] = i * 7 % tokens; /* 7 does not divide it */
    there = (int64_t *)(void *)put(token, (size_t)tokens * 8);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < MLP_LINEARS; i++) {
            if (!side)
                w[i] = normals(h * width, 1 / sqrtf((float)h));
            if (!side && i < MLP_DOWN)
                bias[i] = normals(width, 1);
            a.w[i] = side ? w[i].there : w[i].host;
            if (biased && i < MLP_DOWN)
                a.bias[i] = side ? bias[i].there : bias[i].host;
        }
        a.token = !chosen ? NULL : side ? there : token;
        a.weight = !weighted ? NULL : side ? weight.there : weight.host;
        a.in = side ? in.there : in.host;
        a.g = side ? g.there : g.host;
        a.gin = side ? gin.there : gin.host;
        if (side) {
            OK(back->mlp(gpu, &a, e));
            continue;
        }
        mlp_in_double(&a, a.token, right);
        OK(backward_cpu.mlp(NULL, &a, e));
    }
    judge(chosen ? "MLP, chosen tokens" : "MLP", &gin, right);
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

/* ---- attention ---- */

struct heads {
    int64_t heads, kv, dim, v_dim, window, at, rotary;
    bool pairs, norm;
};

/* y = a head x normed and turned; or back: x = gradient with respect to the head
 * x, from y, that with respect to the turned one. */
static void turn(const struct backward_attend *a, const float *norm,
                 int64_t position, double *x, double *y, bool backwards)
{
    int64_t d = a->head_dim, half = a->rotary / 2;
    const float *cs = a->cs + position * a->rotary;
    double squares = 0, dot = 0, r = 1, t[512];

    for (int64_t k = 0; norm && k < d; k++)
        squares += x[k] * x[k];
    if (norm)
        r = sqrt(squares / (double)d + (double)a->eps);
    for (int64_t k = 0; k < d; k++)
        t[k] = backwards ? y[k] : x[k] / r * (norm ? (double)norm[k] : 1);
    if (!backwards)
        memcpy(y, t, (size_t)d * 8);
    for (int64_t k = 0; k < half; k++) {
        int64_t i = a->rotary_at + (a->pairs ? 2 * k : k);
        int64_t j = a->rotary_at + (a->pairs ? 2 * k + 1 : half + k);
        int64_t u = a->rotary_at + k, v = u + half;
        double c = (double)cs[k], s = (double)cs[half + k];

        if (backwards) {
            t[i] = y[u] * c + y[v] * s;
            t[j] = y[v] * c - y[u] * s;
        } else {
            y[u] = t[i] * c - t[j] * s;
            y[v] = t[j] * c + t[i] * s;
        }
    }
    if (!backwards)
        return;
    for (int64_t k = 0; norm && k < d; k++)
        dot += x[k] * (double)norm[k] * t[k];
    for (int64_t k = 0; k < d; k++)
        x[k] = norm ?
                   ((double)norm[k] * t[k] - x[k] * dot / ((double)d * r * r)) /
                       r :
                   t[k];
}

/* A head of queries of a sequence; q: [n, d] turned; gq, gk, gv are added to. */
static void attend_head(const struct backward_attend *a, int64_t n,
                        const double *q, const double *k, const double *v,
                        const double *go, double *gq, double *gk, double *gv)
{
    int64_t d = a->head_dim, m = a->v_dim;
    double *p = room((size_t)n * 8), *g = room((size_t)n * 8);

    for (int64_t i = 0; i < n; i++) {
        int64_t from = a->window && i >= a->window ? i - a->window + 1 : 0;
        double sum = 0, dot = 0, most = -INFINITY;

        for (int64_t j = from; j <= i; j++) {
            p[j] = g[j] = 0;
            for (int64_t c = 0; c < d; c++)
                p[j] += (double)a->scale * q[i * d + c] * k[j * d + c];
            for (int64_t c = 0; c < m; c++)
                g[j] += go[i * m + c] * v[j * m + c];
            most = fmax(most, p[j]);
        }
        for (int64_t j = from; j <= i; j++)
            sum += p[j] = exp(p[j] - most);
        for (int64_t j = from; j <= i; j++) {
            p[j] /= sum;
            dot += p[j] * g[j];
        }
        for (int64_t j = from; j <= i; j++) {
            double s = p[j] * (g[j] - dot) * (double)a->scale;

            for (int64_t c = 0; c < m; c++)
                gv[j * m + c] += p[j] * go[i * m + c];
            for (int64_t c = 0; c < d; c++) {
                gk[j * d + c] += s * q[i * d + c];
                gq[i * d + c] += s * k[j * d + c];
            }
        }
    }
    free(p);
    free(g);
}

/* Columns `head` of n rows of x [.., heads * d] to and from a matrix [n, d]. */
static void columns(double *m, double *x, int64_t n, int64_t heads,
                    int64_t head, int64_t d, bool to)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to ? x + (i * heads + head) * d : m + i * d,
               to ? m + i * d : x + (i * heads + head) * d, (size_t)d * 8);
}

static void attend_in_double(const struct backward_attend *a, double *q,
                             double *k, double *v, double *go)
{
    int64_t d = a->head_dim, m = a->v_dim, group = a->n_heads / a->n_kv_heads;

    for (int64_t s = 0; s < a->n_sequences; s++) {
        int64_t row = a->first[s], n = a->first[s + 1] - row;
        size_t heads = (size_t)(n * d) * 8, values = (size_t)(n * m) * 8;
        double *x = room(heads), *y = room(heads), *gy = room(heads);
        double *kx = room(heads), *ky = room(heads), *gk = room(heads);
        double *w = room(values), *gv = room(values), *o = room(values);

        for (int64_t h = 0; h < a->n_kv_heads; h++) {
            columns(kx, k + row * a->n_kv_heads * d, n, a->n_kv_heads, h, d,
                    false);
            columns(w, v + row * a->n_kv_heads * m, n, a->n_kv_heads, h, m,
                    false);
            for (int64_t i = 0; i < n; i++)
                turn(a, a->k_norm, i, kx + i * d, ky + i * d, false);
            memset(gk, 0, heads);
            memset(gv, 0, values);
            for (int64_t j = h * group; j < (h + 1) * group; j++) {
                columns(x, q + row * a->n_heads * d, n, a->n_heads, j, d,
                        false);
                columns(o, go + row * a->n_heads * m, n, a->n_heads, j, m,
                        false);
                for (int64_t i = 0; i < n; i++)
                    turn(a, a->q_norm, i, x + i * d, y + i * d, false);
                memset(gy, 0, heads);
                attend_head(a, n, y, ky, w, o, gy, gk, gv);
                for (int64_t i = 0; i < n; i++)
                    turn(a, a->q_norm, i, x + i * d, gy + i * d, true);
                columns(x, q + row * a->n_heads * d, n, a->n_heads, j, d, true);
            }
            for (int64_t i = 0; i < n; i++)
                turn(a, a->k_norm, i, kx + i * d, gk + i * d, true);
            columns(kx, k + row * a->n_kv_heads * d, n, a->n_kv_heads, h, d,
                    true);
            columns(gv, v + row * a->n_kv_heads * m, n, a->n_kv_heads, h, m,
                    true);
        }
        free(x);
        free(y);
        free(gy);
        free(kx);
        free(ky);
        free(gk);
        free(w);
        free(gv);
        free(o);
    }
}

static void test_attend(const struct heads *h, const int64_t *length, int64_t n)
{
    int64_t first[16] = { 0 }, rows = 0, longest = 0;
    struct twin q, k, v, go, cs, qn = normals(h->dim, 1),
                                 kn = normals(h->dim, 1);
    double *dq, *dk, *dv, *dgo;
    struct backward_attend a;

    for (int64_t i = 0; i < n; i++) {
        rows = first[i + 1] = first[i] + length[i];
        longest = length[i] > longest ? length[i] : longest;
    }
    q = normals(rows * h->heads * h->dim, 1);
    k = normals(rows * h->kv * h->dim, 1);
    v = normals(rows * h->kv * h->v_dim, 1);
    go = normals(rows * h->heads * h->v_dim, 1);
    cs = normals(longest * h->rotary, .7f);
    dq = wide(&q);
    dk = wide(&k);
    dv = wide(&v);
    dgo = wide(&go);
    a = (struct backward_attend){
        rows,
        n,
        first,
        h->heads,
        h->kv,
        h->dim,
        h->v_dim,
        h->window,
        1 / sqrtf((float)h->dim),
        1e-6f,
        h->norm ? qn.host : NULL,
        h->norm ? kn.host : NULL,
        h->at,
        h->rotary,
        h->pairs,
        cs.host,
        go.host,
        q.host,
        k.host,
        v.host,
    };
    attend_in_double(&a, dq, dk, dv, dgo);
    OK(backward_cpu.attend(NULL, &a, e));
    a.q_norm = h->norm ? qn.there : NULL;
    a.k_norm = h->norm ? kn.there : NULL;
    a.cs = cs.there;
    a.go = go.there;
    a.q = q.there;
    a.k = k.there;
    a.v = v.there;
    OK(back->attend(gpu, &a, e));
    judge("attention, queries", &q, dq);
    judge("attention, keys", &k, dk);
    judge("attention, values", &v, dv);
    drop(&go);
    drop(&cs);
    drop(&qn);
    drop(&kn);
    free(dgo);
}

/* ---- the head ---- */

static double draw(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* near[rows]: the draw is so close to a token's end that f32 decides. */
static void head_in_double(const struct backward_head *a, double *g, bool *near)
{
    double *p = room((size_t)a->vocab * 8);

    for (int64_t r = 0; r < a->rows; r++) {
        double u = draw(a->first + (uint64_t)r), sum = 0, at = 0;

        near[r] = false;
        for (int64_t v = 0; v < a->vocab; v++) {
            p[v] = 0;
            for (int64_t k = 0; k < a->h; k++)
                p[v] += (double)a->y[r * a->h + k] *
                        (double)f32_from_bf16(a->w[v * a->h + k]);
            sum += p[v] = exp(p[v]);
        }
        memset(g + r * a->h, 0, (size_t)a->h * 8);
        for (int64_t v = 0; v < a->vocab; v++) {
            double before = at, minus;

            at += p[v] / sum;
            near[r] |= fabs(at - u) < 1e-6;
            minus = before <= u && u < at ? 1 : 0;
            for (int64_t k = 0; k < a->h; k++)
                g[r * a->h + k] += (p[v] / sum - minus) *
                                   (double)f32_from_bf16(a->w[v * a->h + k]);
        }
    }
    free(p);
}

static void test_head(int64_t rows, int64_t h, int64_t vocab)
{
    struct twin y = normals(rows * h, 1), g = poison(rows * h);
    float *w = room((size_t)(vocab * h) * 4);
    uint16_t *half = room((size_t)(vocab * h) * 2);
    double *right = room((size_t)(rows * h) * 8);
    bool *near = room((size_t)rows);
    struct backward_head a = { rows, h, vocab, rnd(), half, y.host, g.host };
    int64_t close = 0;
    void *there;

    for (int64_t i = 0; i < vocab * h; i++)
        w[i] = 2 * normal() / sqrtf((float)h);
    CHECK(from_f32(half, DT_BF16, w, (size_t)(vocab * h)));
    there = put(half, (size_t)(vocab * h) * 2);
    head_in_double(&a, right, near);
    for (int64_t i = 0; i < rows; i++)
        close += near[i];
    CHECK(close * 5 < rows);
    OK(backward_cpu.head(NULL, &a, e));
    a.w = there;
    a.y = y.there;
    a.g = g.there;
    OK(back->head(gpu, &a, e));
    judge_rows("head", &g, right, h, near);
    free(w);
    free(half);
    free(near);
    memory->release(gpu, there);
    drop(&y);
}

static void test_attention(void)
{
    static const int64_t ragged[] = { 1, 65, 3, 130 }, one[] = { 600 };
    static const struct heads all[] = {
        { 4, 4, 64, 64, 0, 0, 64, false, false },
        { 8, 2, 128, 128, 0, 0, 128, false, true },
        { 6, 3, 32, 32, 100, 0, 16, false, false },
        { 4, 1, 20, 12, 64, 0, 10, true, true },
        { 4, 4, 192, 128, 0, 128, 64, true, false },
        { 2, 1, 256, 256, 0, 0, 256, false, false },
    };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        test_attend(&all[i], ragged, ARRAY_LEN(ragged));
        if (i < 4)
            test_attend(&all[i], one, 1);
    }
}

int main(int argc, char **argv)
{
    struct plugin_table stage = { BACKWARD_TABLE, BACKWARD_TABLE_VERSION,
                                  NULL };
    struct plugin_table rows = { FORWARD_TABLE, FORWARD_TABLE_VERSION, NULL };

    gpu_open(argc, argv, &stage);
    OK(plugin_load(&rows, argv[1], e));
    memory = rows.functions;
    back = stage.functions;
    for (int i = 0; i < 3; i++) {
        test_linear(300, 256, 512, i, i == 2);
        test_linear(7, 37, 75, i, i == 2);
    }
    for (int i = 0; i < 4; i++) {
        test_norm(i % 2 ? DT_F32 : DT_BF16, 70, 4096, 4096, i / 2);
        test_norm(i % 2 ? DT_F32 : DT_BF16, 33, 51, 57, i / 2);
    }
    test_moves(50, 5);
    for (int i = 0; i < 8; i++)
        test_mlp(i == 7 ? 2101 : 101, 64, i == 7 ? 32 : 192, i & 1, i & 2,
                 i & 4);
    test_attention();
    test_head(60, 64, 5000);
    test_head(2060, 16, 300);
    return 0;
}
