/* twins.h - what the tests of the forward pass on the GPU share: its operations
 * against the CPU's, which are those of the fake plug-in, in ../helper or beside
 * the program.
 *
 * What is rounded element by element is equal to the bit; sums are made in
 * another order: f32 to 1e-5 of the largest number, bf16 to the neighbour of what
 * was rounded.  Outputs are poisoned before (NaN), so that none goes unwritten. */
#ifndef FORGE_TEST_GPU_TWINS_H
#define FORGE_TEST_GPU_TWINS_H

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "gpu.h"
#include "model/forward_table.h"

enum { GPU, CPU, SIDES };
static const struct forward_table *table[SIDES];
static struct cuda_context *context[SIDES];

/* Memory on both, with the same in it. */
struct twin {
    void *p[SIDES];
    size_t n;
};

static inline size_t item(enum dtype t)
{
    return t == DT_BF16 ? 2 : 4;
}

static inline struct twin twin(const void *host, size_t n)
{
    struct twin t = { .n = n };
    bool spilled;

    for (int s = 0; s < SIDES; s++) {
        OK(table[s]->alloc(context[s], &t.p[s], n, false, &spilled, e));
        OK(table[s]->put(context[s], t.p[s], host, n, e));
    }
    return t;
}

static inline struct twin poisoned(size_t n)
{
    void *host = room(n);
    struct twin t;

    memset(host, 0xff, n); /* NaN, in both types */
    t = twin(host, n);
    free(host);
    return t;
}

/* n elements, normal. */
static inline struct twin elements(enum dtype t, int64_t n, float size)
{
    float *x = room((size_t)n * 4);
    void *to = room((size_t)n * 4);
    struct twin r;

    for (int64_t i = 0; i < n; i++)
        x[i] = size * normal();
    CHECK(from_f32(to, t, x, (size_t)n));
    r = twin(to, (size_t)n * item(t));
    free(x);
    free(to);
    return r;
}

static inline void drop(struct twin *t)
{
    for (int s = 0; s < SIDES; s++)
        table[s]->release(context[s], t->p[s]);
}

/* Both as f32. */
static inline void fetch(const struct twin *t, enum dtype dtype,
                         float *to[SIDES])
{
    void *host = room(t->n);

    for (int s = 0; s < SIDES; s++) {
        to[s] = room(t->n / item(dtype) * 4);
        OK(table[s]->get(context[s], host, t->p[s], t->n, e));
        CHECK(to_f32(to[s], host, dtype, t->n / item(dtype)));
    }
    free(host);
}

static double wrong; /* the largest norm of a difference so far */

/* tolerance: of the largest number; 0: equal to the bit. */
static inline void compare(const char *what, const float *a, const float *b,
                           size_t n, double tolerance, double most_wrong)
{
    double most = 0, error = 0, sum = 0, square = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);

        if (!isfinite(a[i]) || !isfinite(b[i])) {
            fprintf(stderr, "%s: %zu of %zu: %g, CPU %g\n", what, i, n,
                    (double)a[i], (double)b[i]);
            exit(1);
        }
        most = fmax(most, fabs((double)b[i]));
        error = fmax(error, d);
        sum += d * d;
        square += (double)b[i] * (double)b[i];
    }
    sum = square > 0 ? sqrt(sum / square) : sqrt(sum);
    if (error > tolerance * most || sum > most_wrong) {
        fprintf(stderr, "%s: %zu: error %g of %g, norm %g\n", what, n, error,
                most, sum);
        exit(1);
    }

    wrong = fmax(wrong, sum);
}

static inline void near(const char *what, struct twin *t, enum dtype dtype,
                        double tolerance, double most_wrong)
{
    float *x[SIDES];

    fetch(t, dtype, x);
    compare(what, x[GPU], x[CPU], t->n / item(dtype), tolerance, most_wrong);
    for (int s = 0; s < SIDES; s++)
        free(x[s]);
    drop(t);
}

/* exact: the same bits. */
static inline void same(const char *what, struct twin *t, enum dtype dtype,
                        bool exact)
{
    bool half = dtype == DT_BF16;

    near(what, t, dtype,
         exact ? 0 :
         half  ? 0.02 :
                 2e-5,
         exact ? 0 :
         half  ? 4e-3 :
                 1e-5);
}

#define BOTH(call)                                                             \
    for (int s = 0; s < SIDES; s++)                                            \
    OK(call)

/* Weights are the device's own; they come from the same numbers. */
static inline struct twin weights_of(enum dtype t, int64_t rows, int64_t depth)
{
    float *x = room((size_t)(rows * depth) * 4);
    void *host = room((size_t)(rows * depth) * 4);
    struct twin r = { .n = 0 };

    for (int64_t i = 0; i < rows * depth; i++)
        x[i] = normal() / sqrtf((float)depth);
    CHECK(from_f32(host, t, x, (size_t)(rows * depth)));
    for (int s = 0; s < SIDES; s++)
        OK(table[s]->weight(context[s], t, rows, depth, host, &r.p[s], e));
    free(x);
    free(host);
    return r;
}

static inline void open_side(int s, const char *path)
{
    struct plugin_table own = { DEVICE_TABLE, DEVICE_TABLE_VERSION, NULL };
    struct plugin_table stage = { FORWARD_TABLE, FORWARD_TABLE_VERSION, NULL };

    OK(plugin_load(&own, path, e));
    OK(plugin_load(&stage, path, e));
    table[s] = stage.functions;
    context[s] = gpu;
    if (s == CPU)
        OK(((const struct device_table *)own.functions)
               ->open(&context[s], 0, 0, e));
}

static inline void twins_open(int argc, char **argv)
{
    struct plugin_table stage = { FORWARD_TABLE, FORWARD_TABLE_VERSION, NULL };
    char path[PATH_MAX], dir[PATH_MAX / 2];

    gpu_open(argc, argv, &stage);
    snprintf(dir, sizeof(dir), "%s", argv[0]);
    dirname(dir);
    snprintf(path, sizeof(path), "%s/../helper/forge-cuda.so", dir);
    if (access(path, R_OK))
        snprintf(path, sizeof(path), "%s/fake-cuda.so", dir);
    open_side(GPU, argv[1]);
    open_side(CPU, path);
}

/* What has been compared since the last report. */
static inline void report(enum dtype t)
{
    printf("%s: largest norm of a difference %.2g of the result's\n",
           dtype_name(t), wrong);
    wrong = 0;
}

#endif
