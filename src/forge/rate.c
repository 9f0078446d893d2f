/* rate.c - see rate.h. */
#include "forge/rate.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/threads.h"
#include "gptq/solve/split.h"

enum { ROWS = 240, COLS = 128, INPUTS = 512, SOLVE_DEPTH = 128 };

/* A product of the size that a thread computes at a time.  Its numbers are not zeros,
 * of which AMX makes up to 2.4 times as many products. */
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

/* A bf16 between 1 and 2. */
static uint16_t some_number(uint32_t i)
{
    return (uint16_t)(0x3f80 + (i * 2654435761u >> 25));
}

static bool bench_open(struct bench *b)
{
    struct err e;

    b->x = mem_zero(ROWS * INPUTS, sizeof(*b->x), "rate", &e);
    b->w = mem_zero(bf16_gemm_packed(COLS, INPUTS), sizeof(*b->w), "rate", &e);
    b->y = mem_zero(ROWS * COLS, sizeof(*b->y), "rate", &e);
    if (!b->x || !b->w || !b->y)
        return false;
    for (uint32_t i = 0; i < ROWS * INPUTS; i++)
        b->x[i] = some_number(i);
    for (uint32_t i = 0; i < COLS * INPUTS; i++)
        b->w[i] = some_number(ROWS * INPUTS + i);
    return true;
}

static void bench_close(struct bench *b)
{
    free(b->x);
    free(b->w);
    free(b->y);
}

/* SOLVE_ROWS rows of d times SPLIT_COLS_MAX columns of l, SOLVE_DEPTH deep. */
struct solve_bench {
    float *memory, *l, *d, *acc, *work;
};

static bool solve_bench_open(struct solve_bench *b)
{
    enum { L = SPLIT_COLS_MAX * SOLVE_DEPTH, D = SOLVE_DEPTH * SOLVE_ROWS };
    size_t n = L + D + 2 * SPLIT_WORK;
    struct err e;

    b->memory = mem_pages(n * sizeof(float), "rate", &e);
    if (!b->memory)
        return false;
    memset(b->memory, 0, n * sizeof(float));
    b->l = b->memory;
    b->d = b->l + L;
    b->acc = b->d + D;
    b->work = b->acc + SPLIT_WORK;
    return true;
}

static float *at_row(const void *of, uint64_t c, uint64_t k)
{
    return (float *)of + (c / FACTOR_PANEL * SOLVE_DEPTH + k) * FACTOR_PANEL;
}

struct measure {
    double until;
    double *done; /* [threads]: operations */
    bool products;
};

/* Run a product as the solver does at this level; returns its operations. */
static double one_solve(const struct solve_bench *b)
{
    const struct split_part part = {
        .at = at_row, .of = b->l, .c1 = SPLIT_COLS_MAX, .k1 = SOLVE_DEPTH
    };
    const struct split_sum sum = { b->acc, (const void *)b->d, b->work };

    if (split_is_there())
        split_add(&sum, 1, &part);
    else
        for (uint64_t c = 0; c < SPLIT_COLS_MAX; c += FACTOR_PANEL)
            solve_kernels_best()->product(b->acc + c * SOLVE_ROWS, b->d,
                                          at_row(b->l, c, 0), SOLVE_DEPTH);
    return 2.0 * SOLVE_ROWS * SPLIT_COLS_MAX * SOLVE_DEPTH;
}

static void measure_some(void *ctx, size_t begin, size_t end)
{
    struct measure *m = ctx;

    for (size_t i = begin; i < end; i++) {
        struct solve_bench s = { 0 };
        struct bench b = { 0 };

        if (m->products ? bench_open(&b) : solve_bench_open(&s))
            do
                m->done[i] += m->products ? one_product(&b) : one_solve(&s);
            while (seconds_now() < m->until);
        bench_close(&b);
        free(s.memory);
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
