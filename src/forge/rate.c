/* rate.c - see rate.h. */
#include "forge/rate.h"

#include <stdlib.h>

#include "common/math/bf16_gemm.h"
#include "common/math/threads.h"
#include "gptq/solve/solve_kernel.h"

enum { ROWS = 240, COLS = 128, INPUTS = 512, SOLVE_DEPTH = 128 };

/* A product of the size that a thread computes at a time, on zeros, which take
 * as long as other numbers. */
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

struct solve_bench {
    const struct solve_kernels *kernels;
    float acc[FACTOR_PANEL * SOLVE_ROWS], d[SOLVE_DEPTH * SOLVE_ROWS],
        l[SOLVE_DEPTH * FACTOR_PANEL];
};

struct measure {
    double until;
    double *done; /* [threads]: operations */
    bool products;
};

/* Run a product of the solver's kernel; returns its operations. */
static double one_solve(struct solve_bench *b)
{
    b->kernels->product(b->acc, b->d, b->l, SOLVE_DEPTH);
    return 2.0 * SOLVE_ROWS * FACTOR_PANEL * SOLVE_DEPTH;
}

static void measure_some(void *ctx, size_t begin, size_t end)
{
    struct measure *m = ctx;

    for (size_t i = begin; i < end; i++) {
        struct solve_bench s = { .kernels = solve_kernels_best() };
        struct bench b = { 0 };

        if (!m->products || bench_open(&b))
            do
                m->done[i] += m->products ? one_product(&b) : one_solve(&s);
            while (seconds_now() < m->until);
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
