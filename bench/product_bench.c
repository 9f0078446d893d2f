/* product_bench - y = x Wᵀ of the forward pass in bf16, by all threads: at every
 * level of CPU, against sums in double first, then against what the level's
 * multiply-adds reach in turn: medians.  The plain level has large products
 * only where it is named: they take minutes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/dtype.h"
#include "model/internal.h"
#include "peak.h"

enum { ROUNDS = 11 };

static struct err err;

struct shape {
    int64_t m, k, n;
};

static double operations(struct shape s)
{
    return 2.0 * (double)s.m * (double)s.n * (double)s.k;
}

struct bench {
    struct model m;
    struct loaded l;
    struct product p;
    uint16_t *x, *w, *y;
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

/* The worst of some sums, in units of their size; they are stored as bf16. */
static double check(const struct bench *b, struct shape s)
{
    double worst = 0;

    for (int64_t i = 0; i < s.m; i += 61)
        for (int64_t o = 0; o < s.n; o += 47) {
            double sum = 0;

            for (int64_t k = 0; k < s.k; k++)
                sum += (double)f32_from_bf16(b->x[i * s.k + k]) *
                       f32_from_bf16(b->w[o * s.k + k]);
            worst = fmax(worst, fabs(f32_from_bf16(b->y[i * s.n + o]) - sum));
        }
    return worst / sqrt((double)s.k);
}

static void prepare(struct bench *b, struct shape s)
{
    b->m = (struct model){ .dtype = DT_BF16, .bf16 = true, .size = 2 };
    b->m.k = kernels_best();
    b->x = numbers(s.m * s.k, 1);
    b->w = numbers(s.n * s.k, 2);
    b->l = (struct loaded){ .of = { .rows = s.n, .cols = s.k } };
    b->l.w = numbers(s.n * s.k, 2);
    b->y = must(mem_pages((size_t)(s.m * s.n) * 2, "bench", &err));
    if (product_pack(&b->m, s.n, s.k, &b->l.w, &err) < 0)
        die_err(&err);
    b->p = (struct product){
        .m = &b->m, .first = &b->l, .x = b->x, .rows = s.m, .out = b->y
    };
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, ROUNDS, sizeof(*v), ascending);
    return v[ROUNDS / 2];
}

/* Other users of a core slow the product and the multiply-adds alike, so each
 * product is held against multiply-adds before and after it.  peak: the level
 * of these. */
static void run(struct shape s, enum cpu_level level, enum cpu_level peak)
{
    struct bench b = { 0 };
    double flop = operations(s), time[ROUNDS], rate[ROUNDS], share[ROUNDS];
    double worst, threads = threads_count(), before, after, loads;

    prepare(&b, s);
    before = peak_once(peak);
    for (int i = 0; i < ROUNDS; i++, before = after) {
        double t = seconds();

        if (product_run(&b.p, &err) < 0)
            die_err(&err);
        time[i] = seconds() - t;
        after = peak_once(peak);
        rate[i] = (before + after) / 2;
        share[i] = flop / time[i] / rate[i];
    }
    worst = check(&b, s);
    loads = level == CPU_AMX ? peak_run((struct peak){ level, true }) : 0;
    printf("product %-10s %5lld x %5lld x %5lld: error %.1e, %8.2f ms, %5.0f "
           "GFLOP/s a core, %3.0f %% of %.0f",
           cpu_level_name(level), (long long)s.m, (long long)s.k,
           (long long)s.n, worst, median(time) * 1e3,
           flop / median(time) / 1e9 / threads, 100 * median(share),
           median(rate) / 1e9 / threads);
    if (loads)
        printf(", %3.0f %% of %.0f with loads of its operands",
               100 * flop / median(time) / loads, loads / 1e9 / threads);
    putchar('\n');
    if (!(worst < 0.02)) /* a rounding to bf16 of what is 4 sigma */
        exit(1);
    free(b.x);
    free(b.w);
    free(b.l.w);
    free(b.y);
}

/* product_bench [LEVEL [THREADS]] */
int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        { 2048, 4096, 11008 }, { 2048, 11008, 4096 }, { 2048, 4096, 4096 },
        { 2048, 512, 512 },    { 2048, 512, 1536 },   { 2048, 1536, 512 },
        { 256, 7168, 2048 },   { 100, 512, 1536 },    { 24, 1536, 512 }
    };

    base_init(argv[0]);
    threads_set(argc > 2 ? atoi(argv[2]) : 0);
    for (int l = CPU_LEVELS - 1; l >= 0; l--) {
        enum cpu_level level = (enum cpu_level)l, peak;

        if (!cpu_has(level) ||
            (argc > 1 && strcmp(argv[1], cpu_level_name(level))))
            continue;
        cpu_set(level);
        peak = peak_level(level);
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            if (argc > 1 || level != CPU_PLAIN || operations(shapes[i]) < 1e10)
                run(shapes[i], level, peak);
    }
    return 0;
}
