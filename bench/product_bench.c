/* product_bench - y = x Wᵀ of the forward pass in bf16, in one thread: against
 * sums in double first, then against oneDNN on the same numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/bf16_gemm.h"
#include "common/dtype.h"
#include "common/onednn.h"
#include "peak.h"

enum { TILE = 512, ROUNDS = 8 };

static struct err err;

struct shape {
    int64_t m, k, n;
};

struct bench {
    struct shape s;
    uint16_t *x, *w, *packed;
    float *y, *z;
};

static void *must(void *p)
{
    if (!p)
        die_err(&err);
    return p;
}

static uint16_t *numbers(int64_t n, uint64_t s)
{
    uint16_t *x = must(mem_pages((size_t)n * sizeof(*x), "bench", &err));

    for (int64_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = bf16_from_f32((float)(int32_t)(s >> 32) / 2147483648.0f);
    }
    return x;
}

static void ours(const struct bench *b)
{
    for (int64_t o = 0; o < b->s.n; o += TILE)
        bf16_gemm(
            &(struct bf16_gemm){ .x = b->x,
                                 .ldx = b->s.k,
                                 .m = b->s.m,
                                 .k = b->s.k,
                                 .packed = b->packed,
                                 .first = o,
                                 .n = b->s.n - o < TILE ? b->s.n - o : TILE,
                                 .y = b->y + o,
                                 .ldy = b->s.n });
}

static void theirs(const struct bench *b)
{
    if (onednn_bf16_nt(b->s.m, b->s.n, b->s.k, b->x, b->s.k, b->w, b->z, b->s.n,
                       &err) < 0)
        die_err(&err);
}

static double check(const struct bench *b)
{
    double worst = 0;

    for (int64_t i = 0; i < b->s.m; i += 7)
        for (int64_t o = 0; o < b->s.n; o += 5) {
            double sum = 0;

            for (int64_t k = 0; k < b->s.k; k++)
                sum += (double)f32_from_bf16(b->x[i * b->s.k + k]) *
                       f32_from_bf16(b->w[o * b->s.k + k]);
            worst = fmax(worst, fabs(b->y[i * b->s.n + o] - sum));
        }
    return worst / sqrt((double)b->s.k);
}

static double best_of(void (*f)(const struct bench *), const struct bench *b)
{
    double best = 1e9;

    for (int i = 0; i < ROUNDS; i++) {
        double t = seconds();

        f(b);
        t = seconds() - t;
        best = t < best ? t : best;
    }
    return best;
}

static void run(struct shape s, double peak)
{
    struct bench b = { .s = s };
    double flop = 2.0 * (double)s.m * (double)s.n * (double)s.k, t, u, worst;
    uint16_t *room = must(
        mem_alloc((size_t)(GEMM_COLS * s.k) * sizeof(*room), "bench", &err));

    b.x = numbers(s.m * s.k, 1);
    b.w = numbers(s.n * s.k, 2);
    b.packed = numbers((int64_t)bf16_gemm_packed(s.n, s.k), 2);
    b.y = must(mem_pages((size_t)(s.m * s.n) * sizeof(float), "bench", &err));
    b.z = must(mem_pages((size_t)(s.m * s.n) * sizeof(float), "bench", &err));
    bf16_gemm_pack(b.packed, s.n, s.k, 0, (s.n + GEMM_COLS - 1) / GEMM_COLS,
                   room);
    t = best_of(ours, &b);
    u = best_of(theirs, &b);
    worst = check(&b);
    printf("product %lld x %lld x %lld: error %.1e, %.2f ms, %.0f GFLOP/s, "
           "%.2fx oneDNN (%.0f GFLOP/s), %.0f %% of %.0f (pairs of bf16)\n",
           (long long)s.m, (long long)s.k, (long long)s.n, worst, t * 1e3,
           flop / t / 1e9, u / t, flop / u / 1e9, 100 * flop / t / peak,
           peak / 1e9);
    if (!(worst < 1e-5))
        exit(1);
    free(room);
    free(b.x);
    free(b.w);
    free(b.packed);
    free(b.y);
    free(b.z);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        { 2048, 512, 512 },  { 2048, 512, 256 },   { 2048, 512, 1536 },
        { 2048, 1536, 512 }, { 2048, 1024, 4096 }, { 100, 512, 1536 },
        { 24, 1536, 512 }
    };
    double peak;

    base_init(argv[0]);
    (void)argc;
    threads_set(1);
    if (!bf16_gemm_usable(2)) {
        printf("product: this CPU does not multiply bf16\n");
        return 0;
    }
    peak = peak_pairs();
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        run(shapes[i], peak);
    return 0;
}
