/* gradient.h - what the tests of the backward pass on the GPU share.
 *
 * Its functions are compared with plain loops in double (formulas of
 * backward_table.h), from which the CPU's f32 results are as far; what has no
 * sums of many terms with the CPU's.  Outputs are poisoned before (NaN). */
#ifndef FORGE_TEST_GPU_GRADIENT_H
#define FORGE_TEST_GPU_GRADIENT_H

#include "common/math/dtype.h"
#include "gpu.h"
#include "model/backward_table.h"
#include "model/forward_table.h"

static const struct forward_table *memory;
static const struct backward_table *back;

static inline void gradient_open(int argc, char **argv)
{
    struct plugin_table stage = { BACKWARD_TABLE, BACKWARD_TABLE_VERSION,
                                  NULL };
    struct plugin_table rows = { FORWARD_TABLE, FORWARD_TABLE_VERSION, NULL };

    gpu_open(argc, argv, &stage);
    OK(plugin_load(&rows, argv[1], e));
    memory = rows.functions;
    back = stage.functions;
}

struct twin {
    float *host, *there; /* of the CPU's functions; of the GPU's */
    int64_t n;
};

static inline float *put(const void *host, size_t n)
{
    void *p;
    bool spilled;

    OK(memory->alloc(gpu, &p, n, false, &spilled, e));
    OK(memory->put(gpu, p, host, n, e));
    return p;
}

static inline struct twin twin_of(float *host, int64_t n)
{
    return (struct twin){ host, put(host, (size_t)n * 4), n };
}

static inline struct twin normals(int64_t n, float size)
{
    float *x = room((size_t)n * 4);

    for (int64_t i = 0; i < n; i++)
        x[i] = size * normal();
    return twin_of(x, n);
}

/* Of weights; bf16: numbers of bf16. */
static inline struct twin matrix(int64_t n, float size, bool bf16)
{
    float *x = room((size_t)n * 4);

    for (int64_t i = 0; i < n; i++) {
        x[i] = size * normal();
        if (bf16)
            x[i] = f32_from_bf16(bf16_from_f32(x[i]));
    }
    return twin_of(x, n);
}

/* Weights, the GPU's in bf16. */
static inline struct twin bf16_matrix(int64_t n, float size)
{
    struct twin w = matrix(n, size, true);
    uint16_t *half = room((size_t)n * 2);

    CHECK(from_f32(half, DT_BF16, w.host, (size_t)n));
    memory->release(gpu, w.there);
    w.there = put(half, (size_t)n * 2);
    free(half);
    return w;
}

static inline struct twin weights_of(int64_t n, float size, bool bf16)
{
    return bf16 ? bf16_matrix(n, size) : matrix(n, size, false);
}

static inline struct twin poison(int64_t n)
{
    float *x = room((size_t)n * 4);

    memset(x, 0xff, (size_t)n * 4);
    return twin_of(x, n);
}

static inline double *wide(const struct twin *t)
{
    double *x = room((size_t)t->n * 8);

    for (int64_t i = 0; i < t->n; i++)
        x[i] = (double)t->host[i];
    return x;
}

static inline void drop(struct twin *t)
{
    free(t->host);
    memory->release(gpu, t->there);
}

/* ||x - right|| / ||right|| */
static inline double distance(const float *x, const double *right, int64_t all)
{
    double sum = 0, square = 0;

    for (int64_t i = 0; i < all; i++) {
        double d = (double)x[i] - right[i];

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
static inline void judge(const char *what, struct twin *t, double *right)
{
    float *x = room((size_t)t->n * 4);
    double mine, cpu;

    OK(memory->get(gpu, x, t->there, (size_t)t->n * 4, e));
    mine = distance(x, right, t->n);
    cpu = distance(t->host, right, t->n);
    printf("  %-28s GPU %.2g, CPU %.2g of double\n", what, mine, cpu);
    CHECK(mine < 1e-5 && cpu < 1e-5);
    CHECK(mine < 3 * cpu || mine < 2e-6);
    free(x);
    free(right);
    drop(t);
}

/* Of the GPU alone; `most`: of the norm of what is right. */
static inline void near(const char *what, struct twin *t, double *right,
                        double most)
{
    float *x = room((size_t)t->n * 4);
    double d;

    OK(memory->get(gpu, x, t->there, (size_t)t->n * 4, e));
    d = distance(x, right, t->n);
    printf("  %-28s GPU %.2g of double\n", what, d);
    CHECK(d < most);
    free(x);
    free(right);
    drop(t);
}

/* Both sides are within `most` of each other; 0: to the bit. */
static inline void same(const char *what, struct twin *t, double most)
{
    float *x = room((size_t)t->n * 4);
    double *right = wide(t), d;

    OK(memory->get(gpu, x, t->there, (size_t)t->n * 4, e));
    d = distance(x, right, t->n);
    if (d > most) {
        fprintf(stderr, "%s: %g of the CPU's\n", what, d);
        exit(1);
    }
    free(x);
    free(right);
}

#endif
