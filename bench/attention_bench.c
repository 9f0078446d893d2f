/* attention_bench - causal attention of one sequence in one thread, from pairs
 * of bf16: against sums in double first, then against the kernel for f32.
 *
 * Counted: 4 dim operations for each key that a query sees. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/dtype.h"
#include "model/kernels.h"
#include "peak.h"

enum { KEYS = 512, HEADS = 6, ROUNDS = 30 };

static struct err err;

struct bench {
    const struct kernels *k;
    int64_t dim;
    bool pairs;
    uint16_t *q, *key, *v; /* [KEYS][dim] bf16 */
    void *packed_q, *packed_k, *packed_v;
    float *out; /* of one block */
};

static void *room(size_t n)
{
    void *p = mem_pages(n, "bench", &err);

    if (!p)
        die_err(&err);
    memset(p, 0, n);
    return p;
}

static void fill(uint16_t *x, int64_t n, uint64_t s)
{
    for (int64_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = bf16_from_f32((float)(int32_t)(s >> 32) * 0x1p-30f);
    }
}

/* As kernels.h wants them. */
static void lay_out(struct bench *b)
{
    int64_t d = b->dim;

    for (int64_t i = 0; i < KEYS * d; i++) {
        int64_t t = i / d, c = i % d, block = t / ATTEND_KEYS;
        int64_t k = t % ATTEND_KEYS;

        if (b->pairs) {
            ((uint16_t *)b->packed_q)[i] = b->q[i];
            ((uint16_t *)
                 b->packed_k)[((block * d / 2 + c / 2) * ATTEND_KEYS + k) * 2 +
                              c % 2] = b->key[i];
            ((uint16_t *)b->packed_v)[(t / 2 * d + c) * 2 + t % 2] = b->v[i];
        } else {
            ((float *)b->packed_q)[i] = f32_from_bf16(b->q[i]);
            ((float *)b->packed_k)[(block * d + c) * ATTEND_KEYS + k] =
                f32_from_bf16(b->key[i]);
            ((float *)b->packed_v)[i] = f32_from_bf16(b->v[i]);
        }
    }
}

static void attend(const struct bench *b, int64_t first)
{
    size_t size = b->pairs ? sizeof(uint16_t) : sizeof(float);
    struct attend a = {
        .dim = b->dim,
        .padded = b->dim,
        .first = first,
        .n = KEYS - first < ATTEND_QUERIES ? KEYS - first : ATTEND_QUERIES,
        .scale = 1 / sqrtf((float)b->dim),
        .q = (char *)b->packed_q + (size_t)(first * b->dim) * size,
        .k = b->packed_k,
        .v = b->packed_v,
        .out = b->out,
    };

    if (b->pairs)
        b->k->attend_pairs(&a);
    else
        b->k->attend(&a);
}

static double dot(const uint16_t *a, const uint16_t *b, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)f32_from_bf16(a[i]) * f32_from_bf16(b[i]);
    return sum;
}

/* The largest error of the last block. */
static double check(const struct bench *b)
{
    int64_t d = b->dim, first = KEYS / ATTEND_QUERIES * ATTEND_QUERIES;
    double worst = 0, weight[KEYS];

    attend(b, first);
    for (int64_t i = first; i < KEYS; i++) {
        double total = 0;

        for (int64_t t = 0; t <= i; t++) {
            weight[t] =
                exp(dot(b->q + i * d, b->key + t * d, d) / sqrt((double)d));
            total += weight[t];
        }
        for (int64_t c = 0; c < d; c++) {
            double sum = 0;

            for (int64_t t = 0; t <= i; t++)
                sum += weight[t] / total * f32_from_bf16(b->v[t * d + c]);
            worst = fmax(worst, fabs(sum - b->out[(i - first) * d + c]));
        }
    }
    return worst;
}

static double best_time(const struct bench *b)
{
    double best = 1e9;

    for (int i = 0; i < ROUNDS; i++) {
        double t = seconds();

        for (int h = 0; h < HEADS; h++)
            for (int64_t first = 0; first < KEYS; first += ATTEND_QUERIES)
                attend(b, first);
        t = seconds() - t;
        best = t < best ? t : best;
    }
    return best;
}

static void run(struct bench b, double peak)
{
    size_t n = (size_t)((KEYS + ATTEND_QUERIES) * b.dim);
    double flop = 2.0 * HEADS * KEYS * (KEYS + 1) * (double)b.dim, t[2], e[2];

    b.q = room(n * sizeof(*b.q));
    b.key = room(n * sizeof(*b.key));
    b.v = room(n * sizeof(*b.v));
    b.packed_q = room(n * sizeof(float));
    b.packed_k = room(n * sizeof(float));
    b.packed_v = room(n * sizeof(float));
    b.out = room(sizeof(float) * (size_t)(ATTEND_QUERIES * b.dim));
    fill(b.q, KEYS * b.dim, 1);
    fill(b.key, KEYS * b.dim, 2);
    fill(b.v, KEYS * b.dim, 3);
    for (int i = 0; i < 2; i++) {
        b.pairs = i;
        lay_out(&b);
        e[i] = check(&b);
        t[i] = best_time(&b);
    }
    printf("attention %d keys, %d heads of %lld: error %.1e, %.2f ms, "
           "%.0f GFLOP/s, %.2fx f32 (error %.1e), %.0f %% of %.0f (pairs of "
           "bf16)\n",
           KEYS, HEADS, (long long)b.dim, e[1], t[1] * 1e3, flop / t[1] / 1e9,
           t[0] / t[1], e[0], 100 * flop / t[1] / peak, peak / 1e9);
    if (!(e[0] < 1e-5) || !(e[1] < 0.01))
        exit(1);
    free(b.q);
    free(b.key);
    free(b.v);
    free(b.packed_q);
    free(b.packed_k);
    free(b.packed_v);
    free(b.out);
}

int main(int argc, char **argv)
{
    struct bench b = { .k = kernels_best() };
    double peak;

    base_init(argv[0]);
    (void)argc;
    threads_set(1);
    if (!b.k->attend_pairs) {
        printf("attention: this CPU does not multiply bf16\n");
        return 0;
    }
    peak = peak_pairs();
    for (b.dim = 64; b.dim <= 128; b.dim += 64)
        run(b, peak);
    return 0;
}
