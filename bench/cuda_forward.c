/* cuda_forward.c - the forward pass's products and attention, on rows that stay on
 * the GPU: cuda_forward PLUG-IN [SEED [attention]],
 * the latter for these alone.
 *
 * Each is checked first, some of its results against sums in double.  The ceiling is
 * the same library's largest product, 8,192 each way, in the same run; of attention
 * with a KV cache, whose rows are read once, a copy's bytes, read and written. */
#include <stdio.h>

#include "../tests/gpu/gpu.h"
#include "model/forward_table.h"

enum { REPEATS = 20, SAMPLES = 200 };

static const struct forward_table *table;
static double ceiling; /* TFLOP/s */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n random bf16 on the GPU; *host: the same. */
static void *numbers(int64_t n, float size, uint16_t **host)
{
    uint16_t *x = room((size_t)n * 2);
    bool spilled;
    void *p;

    for (int64_t i = 0; i < n; i++) /* uniform, of variance 1: quick to make */
        x[i] = bf16_from_f32(size * (float)((uniform() - .5) * 3.4641));
    OK(table->alloc(gpu, &p, (size_t)n * 2, false, &spilled, e));
    OK(table->put(gpu, p, x, (size_t)n * 2, e));
    if (host)
        *host = x;
    else
        free(x);
    return p;
}

static void wait_for(const void *p)
{
    uint16_t one;

    OK(table->get(gpu, &one, p, 2, e));
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median seconds of a call; each waits for the GPU, over `calls` of them. */
#define TIME(seconds, calls, out, call)                                        \
    do {                                                                       \
        double t_[REPEATS];                                                    \
        for (int i_ = 0; i_ < REPEATS; i_++) {                                 \
            double begin_ = now();                                             \
            for (int k_ = 0; k_ < (calls); k_++)                               \
                OK(call);                                                      \
            wait_for(out);                                                     \
            t_[i_] = (now() - begin_) / (calls);                               \
        }                                                                      \
        qsort(t_, REPEATS, sizeof(*t_), by_size);                              \
        (seconds) = t_[REPEATS / 2];                                           \
    } while (0)

static void report(const char *what, double flops, double seconds)
{
    double rate = flops / seconds / 1e12;

    printf("%-44s %8.3f ms  %6.0f TFLOP/s  %3.0f %% of the ceiling\n", what,
           seconds * 1e3, rate, ceiling > 0 ? 100 * rate / ceiling : 100);
    if (!ceiling)
        ceiling = rate;
}

static void near(const char *what, double got, double want, double size)
{
    if (!(fabs(got - want) <= 0.02 * fabs(want) + 0.01 * size)) {
        fprintf(stderr, "%s: %g, not %g\n", what, got, want);
        exit(1);
    }
}

static double dot(const uint16_t *a, const uint16_t *b, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)f32_from_bf16(a[i]) * (double)f32_from_bf16(b[i]);
    return sum;
}

/* out = x W', with U: out = silu(x G') (x U'). */
static void product(const char *what, int64_t rows, int64_t n, int64_t depth,
                    bool gated)
{
    uint16_t *x, *w, *u = NULL, *y = room((size_t)(rows * n) * 2);
    float size = 1 / sqrtf((float)depth);
    struct forward_product p = {
        .dtype = DT_BF16, .rows = rows, .n = n, .depth = depth
    };
    double seconds;

    p.x = numbers(rows * depth, 1, &x);
    p.w = numbers(n * depth, size, &w);
    p.second = gated ? numbers(n * depth, size, &u) : NULL;
    p.out = numbers(rows * n, NAN, NULL);
    OK(table->product(gpu, &p, e));
    OK(table->get(gpu, y, p.out, (size_t)(rows * n) * 2, e));
    for (int i = 0; i < SAMPLES; i++) {
        int64_t r = (int64_t)(rnd() % (uint64_t)rows);
        int64_t c = (int64_t)(rnd() % (uint64_t)n);
        double want = dot(x + r * depth, w + c * depth, depth);

        if (gated)
            want *= dot(x + r * depth, u + c * depth, depth) / (1 + exp(-want));
        near(what, (double)f32_from_bf16(y[r * n + c]), want, 1);
    }
    TIME(seconds, 10, p.out, table->product(gpu, &p, e));
    report(what, 2.0 * (double)(rows * n * depth) * (gated ? 2 : 1), seconds);
    table->release(gpu, (void *)(uintptr_t)p.x);
    table->release(gpu, (void *)(uintptr_t)p.w);
    table->release(gpu, (void *)(uintptr_t)p.second);
    table->release(gpu, p.out);
    free(x);
    free(w);
    free(u);
    free(y);
}

/* One query of one head, from the keys' own dims and those of the tail. */
static double attended(const struct forward_attend *a, const uint16_t *q,
                       const uint16_t *k, const uint16_t *v,
                       const uint16_t *tail, int64_t row, int64_t head,
                       int64_t at)
{
    int64_t own = a->head_dim - a->tail_dim;
    int64_t kv = head / (a->n_heads / a->n_kv_heads), first = 0;
    const uint16_t *mine = q + row * a->q.row + head * a->q.head;
    double sum = 0, out = 0;

    while (a->first[1] + first <= row)
        first += a->first[1];
    for (int64_t i = first; i <= row; i++) {
        double s = dot(mine, k + i * a->k.row + kv * a->k.head, own);

        if (tail)
            s += dot(mine + own, tail + i * a->tail.row, a->tail_dim);
        s *= (double)a->scale;
        s = exp(a->cap > 0 ? (double)a->cap * tanh(s / (double)a->cap) : s);
        sum += s;
        out += s * (double)f32_from_bf16(v[i * a->v.row + kv * a->v.head + at]);
    }
    return out / sum;
}

static void attention(const char *what, int64_t heads, int64_t kv, int64_t dim,
                      int64_t v_dim, int64_t tail_dim, int64_t length,
                      int64_t sequences, float cap)
{
    int64_t rows = length * sequences, own = dim - tail_dim, first[9];
    uint16_t *q, *k, *v, *tail = NULL, *y;
    double seconds, pairs = (double)length * (double)(length + 1) / 2;
    struct forward_attend a = {
        .dtype = DT_BF16,
        .rows = rows,
        .n_sequences = sequences,
        .first = first,
        .n_heads = heads,
        .n_kv_heads = kv,
        .head_dim = dim,
        .v_dim = v_dim,
        .tail_dim = tail_dim,
        .scale = 1 / sqrtf((float)dim),
        .cap = cap,
        .rotary_at = own, /* nothing turns: the samples need no rope */
        .rotary = tail_dim,
        .q = { NULL, heads * dim, dim },
        .k = { NULL, kv * own, own },
        .v = { NULL, kv * v_dim, v_dim },
        .tail = { NULL, tail_dim, 0 },
    };
    float *cs = room((size_t)(length * tail_dim + 1) * 4);
    bool spilled;
    void *turns;

    for (int64_t i = 0; i <= sequences; i++)
        first[i] = i * length;
    for (int64_t i = 0; i < length * tail_dim; i++)
        cs[i] = i % tail_dim < tail_dim / 2;
    OK(table->alloc(gpu, &turns, (size_t)(length * tail_dim + 1) * 4, false,
                    &spilled, e));
    OK(table->put(gpu, turns, cs, (size_t)(length * tail_dim) * 4, e));
    a.cs = turns;
    y = room((size_t)(rows * heads * v_dim) * 2);
    a.q.p = numbers(rows * heads * dim, 1, &q);
    a.k.p = numbers(rows * kv * own, 1, &k);
    a.v.p = numbers(rows * kv * v_dim, 1, &v);
    a.tail.p = tail_dim ? numbers(rows * tail_dim, 1, &tail) : NULL;
    a.out = numbers(rows * heads * v_dim, NAN, NULL);
    OK(table->attend(gpu, &a, e));
    OK(table->get(gpu, y, a.out, (size_t)(rows * heads * v_dim) * 2, e));
    for (int i = 0; i < SAMPLES; i++) {
        int64_t r = (int64_t)(rnd() % (uint64_t)rows);
        int64_t h = (int64_t)(rnd() % (uint64_t)heads);
        int64_t c = (int64_t)(rnd() % (uint64_t)v_dim);

        near(what, (double)f32_from_bf16(y[(r * heads + h) * v_dim + c]),
             attended(&a, q, k, v, tail, r, h, c), .3);
    }
    TIME(seconds, 3, a.out, table->attend(gpu, &a, e));
    report(what, 2.0 * (double)(sequences * heads * (dim + v_dim)) * pairs,
           seconds);
    table->release(gpu, (void *)(uintptr_t)a.q.p);
    table->release(gpu, (void *)(uintptr_t)a.k.p);
    table->release(gpu, (void *)(uintptr_t)a.v.p);
    table->release(gpu, (void *)(uintptr_t)a.tail.p);
    table->release(gpu, a.out);
    table->release(gpu, turns);
    free(q);
    free(k);
    free(v);
    free(tail);
    free(y);
    free(cs);
}

/* Bytes/s of a copy, read and written. */
static double copy_rate(void)
{
    const size_t n = (size_t)1 << 30;
    double seconds;
    bool spilled;
    void *a, *b;

    OK(table->alloc(gpu, &a, n, false, &spilled, e));
    OK(table->alloc(gpu, &b, n, false, &spilled, e));
    OK(table->zero(gpu, a, n, e));
    TIME(seconds, 10, b, table->copy(gpu, b, a, n, e));
    table->release(gpu, a);
    table->release(gpu, b);
    return 2 * (double)n / seconds;
}

/* A new token of each sequence, the last of `keys`. */
static void decode(const char *what, int64_t heads, int64_t kv, int64_t dim,
                   int64_t keys, int64_t sequences, double copy)
{
    int64_t *first = room((size_t)(sequences + 1) * 8), last = keys - 1;
    int64_t cached = sequences * keys * kv * dim;
    uint16_t *q, *k, *v, *y = room((size_t)(sequences * heads * dim) * 2);
    double seconds, rate;
    struct forward_attend a = {
        .dtype = DT_BF16,
        .rows = sequences,
        .n_sequences = sequences,
        .first = first,
        .past = last,
        .each = keys,
        .turned = true,
        .n_heads = heads,
        .n_kv_heads = kv,
        .head_dim = dim,
        .v_dim = dim,
        .scale = 1 / sqrtf((float)dim),
        .q = { numbers(sequences * heads * dim, 1, &q), heads * dim, dim },
        .k = { numbers(cached, 1, &k), kv * dim, dim },
        .v = { numbers(cached, 1, &v), kv * dim, dim },
        .out = numbers(sequences * heads * dim, NAN, NULL),
    };
    struct forward_attend one = a; /* a sequence's, whose query is its last */

    for (int64_t i = 0; i <= sequences; i++)
        first[i] = i;
    one.first = (const int64_t[]){ 0, keys };
    one.q.row = 0;
    OK(table->attend(gpu, &a, e));
    OK(table->get(gpu, y, a.out, (size_t)(sequences * heads * dim) * 2, e));
    for (int i = 0; i < SAMPLES; i++) {
        int64_t r = (int64_t)(rnd() % (uint64_t)sequences);
        int64_t h = (int64_t)(rnd() % (uint64_t)heads);
        int64_t c = (int64_t)(rnd() % (uint64_t)dim);

        near(what, (double)f32_from_bf16(y[(r * heads + h) * dim + c]),
             attended(&one, q + r * a.q.row, k + r * keys * a.k.row,
                      v + r * keys * a.v.row, NULL, last, h, c),
             .3);
    }
    TIME(seconds, 10, a.out, table->attend(gpu, &a, e));
    rate = 4 * (double)cached / seconds;
    printf("%-44s %8.3f ms  %6.0f GB/s     %3.0f %% of a copy\n", what,
           seconds * 1e3, rate / 1e9, 100 * rate / copy);
    table->release(gpu, (void *)(uintptr_t)a.q.p);
    table->release(gpu, (void *)(uintptr_t)a.k.p);
    table->release(gpu, (void *)(uintptr_t)a.v.p);
    table->release(gpu, a.out);
    free(first);
    free(q);
    free(k);
    free(v);
    free(y);
}

static void decodes(void)
{
    double copy = copy_rate();

    printf("%-44s %24.0f GB/s\n", "copy, read and written", copy / 1e9);
    decode("a token of 4096 x 256, 6 / 2 heads of 128", 6, 2, 128, 256, 4096,
           copy);
    decode("a token of 1 x 8192, 32 / 8 heads of 128", 32, 8, 128, 8192, 1,
           copy);
}

static void products(void)
{
    product("q of 7B: 2048 rows, 4096 x 4096", 2048, 4096, 4096, false);
    product("gate and up of 7B, silu: 11008 x 4096", 2048, 11008, 4096, true);
    product("down of 7B: 4096 x 11008", 2048, 4096, 11008, false);
    product("gate and up of an expert: 2048 x 7168", 2048, 2048, 7168, true);
}

int main(int argc, char **argv)
{
    struct plugin_table stage = { FORWARD_TABLE, FORWARD_TABLE_VERSION, NULL };

    gpu_open(argc, argv, &stage);
    table = stage.functions;
    product("warm: 8192 x 8192 x 8192", 8192, 8192, 8192, false);
    ceiling = 0;
    product("ceiling: 8192 x 8192 x 8192", 8192, 8192, 8192, false);
    if (argc < 4)
        products();
    attention("attention 64, 32 / 8 heads, 4096", 32, 8, 64, 64, 0, 4096, 1, 0);
    attention("attention 128, 32 heads, 4 x 512", 32, 32, 128, 128, 0, 512, 4,
              0);
    attention("attention 128, 32 / 8 heads, 4096", 32, 8, 128, 128, 0, 4096, 1,
              0);
    attention("attention 192 / 128, 128 heads, 4096", 128, 128, 192, 128, 64,
              4096, 1, 0);
    attention("attention 256, 8 / 4 heads, soft cap, 4 x 2048", 8, 4, 256, 256,
              0, 2048, 4, 50);
    decodes();
    return 0;
}
