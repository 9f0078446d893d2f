/* rate.c - see rate.h.  To measure another kernel, change one_product(). */
#include "driver/rate.h"

#include <stdlib.h>

#include "common/bf16_gemm.h"
#include "common/threads.h"

enum { ROWS = 240, COLS = 128, INPUTS = 512, LANES = 16, SUMS = 8 };

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));

/* A product of the size that a thread has at a time; zeros take as long. */
struct bench {
    uint16_t *x, *w;
    float *y;
};

static double one_product(const struct bench *b)
{
    const struct bf16_gemm g = { .x = b->x,
                                 .ldx = INPUTS,
                                 .m = ROWS,
                                 .k = INPUTS,
                                 .packed = b->w,
                                 .all = COLS,
                                 .n = COLS,
                                 .y = b->y,
                                 .ldy = COLS };

    bf16_gemm(&g);
    return 2.0 * ROWS * COLS * INPUTS;
}

static bool bench_open(struct bench *b)
{
    struct err e;

    b->x = mem_zero(ROWS * INPUTS, sizeof(*b->x), "rate", &e);
    b->w = mem_zero(bf16_gemm_packed(COLS, INPUTS), sizeof(*b->w), "rate", &e);
    b->y = mem_zero(ROWS * COLS, sizeof(*b->y), "rate", &e);
    return b->x && b->w && b->y;
}

static void bench_close(struct bench *b)
{
    free(b->x);
    free(b->w);
    free(b->y);
}

struct measure {
    double until;
    double *done; /* [threads]: operations */
    bool products;
};

static double one_vector(float seed)
{
    enum { TIMES = 20000 };
    vec sum[SUMS], a = { 0 }, b = { 0 };
    volatile float sink;

    for (int i = 0; i < LANES; i++)
        a[i] = 1 + seed / (float)(i + 7), b[i] = seed * 1e-6f;
    for (int k = 0; k < SUMS; k++)
        sum[k] = a;
    for (int t = 0; t < TIMES; t++)
        for (int k = 0; k < SUMS; k++)
            sum[k] = sum[k] * b + a;
    for (int k = 1; k < SUMS; k++)
        sum[0] += sum[k];
    sink = sum[0][3];
    (void)sink;
    return 2.0 * TIMES * SUMS * LANES;
}

static void measure_some(void *ctx, size_t begin, size_t end)
{
    struct measure *m = ctx;

    for (size_t i = begin; i < end; i++) {
        struct bench b = { 0 };
        bool products = m->products && bench_open(&b);

        do
            m->done[i] += products ? one_product(&b) : one_vector((float)i);
        while (seconds_now() < m->until);
        if (m->products)
            bench_close(&b);
    }
}

static double measure(double seconds, bool products)
{
    size_t n = (size_t)threads_count();
    struct measure m = { .products = products };
    double start, sum = 0;
    struct err e;

    m.done = mem_zero(n, sizeof(*m.done), "rate", &e);
    if (!m.done)
        return 0;
    start = seconds_now();
    m.until = start + seconds;
    threads_for(n, 1, measure_some, &m);
    seconds = seconds_now() - start;
    for (size_t i = 0; i < n; i++)
        sum += m.done[i];
    free(m.done);
    return sum / seconds;
}

double rate_products(double seconds)
{
    return measure(seconds, true);
}

double rate_vectors(double seconds)
{
    return measure(seconds, false);
}
