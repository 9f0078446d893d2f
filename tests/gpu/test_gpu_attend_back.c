/* test_gpu_attend_back - the backward pass of attention on the GPU: PROGRAM
 * PLUG-IN [SEED]. */
#include "gradient.h"

struct heads {
    int64_t heads, kv, dim, v_dim, window, at, rotary;
    bool pairs, norm;
    int64_t chunk;
    float cap;
    bool sinks, grows;
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

/* Queries, turned, or gradients with respect to them, times their factors. */
static void grow(const struct backward_attend *a, int64_t n, double *q)
{
    for (int64_t i = 0; a->growth && i < n * a->head_dim; i++)
        q[i] *= (double)a->growth[i / a->head_dim];
}

/* A head of queries of a sequence; q: [n, d] turned; gq, gk, gv are added to. */
static void attend_head(const struct backward_attend *a, int64_t head,
                        int64_t n, const double *q, const double *k,
                        const double *v, const double *go, double *gq,
                        double *gk, double *gv)
{
    int64_t d = a->head_dim, m = a->v_dim;
    double *p = room((size_t)n * 8), *g = room((size_t)n * 8);
    double *slope = room((size_t)n * 8), cap = (double)a->cap;

    for (int64_t i = 0; i < n; i++) {
        int64_t from = a->window && i >= a->window ? i - a->window + 1 : 0;
        double sum = 0, dot = 0, most = -INFINITY;

        from = a->chunk ? i - i % a->chunk : from;
        for (int64_t j = from; j <= i; j++) {
            p[j] = g[j] = 0;
            slope[j] = 1;
            for (int64_t c = 0; c < d; c++)
                p[j] += (double)a->scale * q[i * d + c] * k[j * d + c];
            for (int64_t c = 0; c < m; c++)
                g[j] += go[i * m + c] * v[j * m + c];
            if (cap > 0) {
                p[j] = cap * tanh(p[j] / cap);
                slope[j] = 1 - p[j] / cap * (p[j] / cap);
            }
            most = fmax(most, p[j]);
        }
        if (a->sinks)
            sum = exp((double)a->sinks[head] - most);
        for (int64_t j = from; j <= i; j++)
            sum += p[j] = exp(p[j] - most);
        for (int64_t j = from; j <= i; j++) {
            p[j] /= sum;
            dot += p[j] * g[j];
        }
        for (int64_t j = from; j <= i; j++) {
            double s = p[j] * (g[j] - dot) * slope[j] * (double)a->scale;

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
    free(slope);
}

/* A sequence's rows [n, heads * d]. */
struct rows {
    double *x;
    int64_t n, heads, d;
};

/* A copy [n, d] of a head. */
static double *take(const struct rows *r, int64_t head)
{
    double *m = room((size_t)(r->n * r->d) * 8);

    for (int64_t i = 0; i < r->n; i++)
        memcpy(m + i * r->d, r->x + (i * r->heads + head) * r->d,
               (size_t)r->d * 8);
    return m;
}

/* The head = m, which is freed. */
static void give(const struct rows *r, int64_t head, double *m)
{
    for (int64_t i = 0; i < r->n; i++)
        memcpy(r->x + (i * r->heads + head) * r->d, m + i * r->d,
               (size_t)r->d * 8);
    free(m);
}

static double *zeros(const struct rows *r)
{
    double *m = calloc((size_t)(r->n * r->d), 8);

    CHECK(m);
    return m;
}

static double *turned(const struct backward_attend *a, const float *norm,
                      const struct rows *r, double *x)
{
    double *y = zeros(r);

    for (int64_t i = 0; i < r->n; i++)
        turn(a, norm, i, x + i * r->d, y + i * r->d, false);
    return y;
}

/* The head, which was x, = its gradient, from g, that of turned(x); x and g are
 * freed. */
static void give_back(const struct backward_attend *a, const float *norm,
                      const struct rows *r, int64_t head, double *x, double *g)
{
    for (int64_t i = 0; i < r->n; i++)
        turn(a, norm, i, x + i * r->d, g + i * r->d, true);
    give(r, head, x);
    free(g);
}

/* A head of keys of a sequence, and the heads of queries that share it. */
static void attend_keys(const struct backward_attend *a, int64_t head,
                        const struct rows *q, const struct rows *k,
                        const struct rows *v, const struct rows *go)
{
    int64_t group = a->n_heads / a->n_kv_heads;
    double *kx = take(k, head), *ky = turned(a, a->k_norm, k, kx);
    double *w = take(v, head), *gk = zeros(k), *gv = zeros(v);

    for (int64_t j = head * group; j < (head + 1) * group; j++) {
        double *x = take(q, j), *y = turned(a, a->q_norm, q, x);
        double *o = take(go, j), *gy = zeros(q);

        grow(a, q->n, y);
        attend_head(a, j, q->n, y, ky, w, o, gy, gk, gv);
        grow(a, q->n, gy);
        give_back(a, a->q_norm, q, j, x, gy);
        free(y);
        free(o);
    }
    give_back(a, a->k_norm, k, head, kx, gk);
    give(v, head, gv);
    free(ky);
    free(w);
}

static void attend_in_double(const struct backward_attend *a, double *q,
                             double *k, double *v, double *go)
{
    int64_t d = a->head_dim, m = a->v_dim, heads = a->n_heads,
            kv = a->n_kv_heads;

    for (int64_t s = 0; s < a->n_sequences; s++) {
        int64_t row = a->first[s], n = a->first[s + 1] - row;
        struct rows rq = { q + row * heads * d, n, heads, d };
        struct rows rk = { k + row * kv * d, n, kv, d };
        struct rows rv = { v + row * kv * m, n, kv, m };
        struct rows ro = { go + row * heads * m, n, heads, m };

        for (int64_t h = 0; h < kv; h++)
            attend_keys(a, h, &rq, &rk, &rv, &ro);
    }
}

struct inputs {
    struct twin q, k, v, go, cs, qn, kn, sinks, growth;
};

/* Of the CPU's function, or of the GPU's. */
static struct backward_attend call_of(const struct heads *h,
                                      const struct inputs *x, bool there)
{
#define AT(t) (there ? x->t.there : x->t.host)
    return (struct backward_attend){
        .n_heads = h->heads,
        .n_kv_heads = h->kv,
        .head_dim = h->dim,
        .v_dim = h->v_dim,
        .window = h->window,
        .chunk = h->chunk,
        .cap = h->cap,
        .sinks = h->sinks ? AT(sinks) : NULL,
        .growth = h->grows ? AT(growth) : NULL,
        .scale = 1 / sqrtf((float)h->dim),
        .eps = 1e-6f,
        .q_norm = h->norm ? AT(qn) : NULL,
        .k_norm = h->norm ? AT(kn) : NULL,
        .rotary_at = h->at,
        .rotary = h->rotary,
        .pairs = h->pairs,
        .cs = AT(cs),
        .go = AT(go),
        .q = AT(q),
        .k = AT(k),
        .v = AT(v),
    };
#undef AT
}

/* rounded: the GPU's products, to TF32, 2^-11 a number. */
static void test_attend(const struct heads *h, const int64_t *length, int64_t n,
                        bool rounded)
{
    const double most = 2e-3;

    int64_t first[16], longest = sequences(first, length, n), rows = first[n];
    struct inputs x = { .q = normals(rows * h->heads * h->dim, 1),
                        .k = normals(rows * h->kv * h->dim, 1),
                        .v = normals(rows * h->kv * h->v_dim, 1),
                        .go = normals(rows * h->heads * h->v_dim, 1),
                        .cs = normals(longest * h->rotary + 1, .7f),
                        .qn = normals(h->dim, 1),
                        .kn = normals(h->dim, 1),
                        .sinks = normals(h->heads, 1),
                        .growth = normals(longest, 1) };
    double *dq = wide(&x.q), *dk = wide(&x.k), *dv = wide(&x.v);
    double *dgo = wide(&x.go);

    for (int there = 0; there < 2; there++) {
        struct backward_attend a = call_of(h, &x, there);

        a.rows = rows;
        a.n_sequences = n;
        a.first = first;
        a.rounded = there && rounded;
        if (!there)
            attend_in_double(&a, dq, dk, dv, dgo);
        OK(there ? back->attend(gpu, &a, e) : backward_cpu.attend(NULL, &a, e));
    }
    if (rounded) {
        near("attention, queries", &x.q, dq, most);
        near("attention, keys", &x.k, dk, most);
        near("attention, values", &x.v, dv, most);
    } else {
        judge("attention, queries", &x.q, dq);
        judge("attention, keys", &x.k, dk);
        judge("attention, values", &x.v, dv);
    }
    drop(&x.go);
    drop(&x.cs);
    drop(&x.qn);
    drop(&x.kn);
    drop(&x.sinks);
    drop(&x.growth);
    free(dgo);
}

int main(int argc, char **argv)
{
    static const int64_t ragged[] = { 1, 65, 3, 130 }, one[] = { 600 },
                         alike[] = { 90, 90, 90, 7, 7, 530, 530 };
    static const struct heads all[] = {
        { 4, 4, 64, 64, 0, 0, 64, false, false, 0, 0, false, false },
        { 8, 2, 128, 128, 0, 0, 128, false, true, 0, 0, false, false },
        { 6, 3, 32, 32, 100, 0, 16, false, false, 0, 0, false, false },
        { 4, 1, 20, 12, 64, 0, 10, true, true, 0, 0, false, false },
        /* gpt-oss, Gemma 2, Llama 4 */
        { 8, 2, 64, 64, 100, 0, 64, false, false, 0, 0, true, false },
        { 4, 2, 32, 32, 0, 0, 32, false, false, 0, 2, false, false },
        { 4, 2, 32, 32, 0, 0, 32, true, true, 37, 0, false, false },
        { 4, 2, 32, 32, 0, 0, 0, false, false, 0, 0, false, true },
        { 3, 1, 20, 20, 0, 0, 20, false, true, 37, 3, true, false },
        { 4, 4, 192, 128, 0, 128, 64, true, false, 0, 0, false, false },
        { 2, 1, 256, 256, 0, 0, 256, false, false, 0, 0, false, false },
    };

    gradient_open(argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        test_attend(&all[i], ragged, ARRAY_LEN(ragged), false);
        test_attend(&all[i], alike, ARRAY_LEN(alike), false);
        test_attend(&all[i], alike, ARRAY_LEN(alike), true);
        if (i < 9)
            test_attend(&all[i], one, 1, false);
    }
    return 0;
}
