/* cuda_recur.c - linear attention of the forward pass, on rows that stay on the GPU:
 * cuda_recur PLUG-IN [SEED].
 *
 * Results are finite; tests/gpu/test_gpu_recur.c compares them with the CPU's.  The
 * share of the memory's speed is that of the floor: q, k, v, z and the gates are read
 * once, and the outputs written; what is copied in the same run is the ceiling. */
#include <stdio.h>

#include "../tests/gpu/gpu.h"
#include "model/forward_table.h"

enum { REPEATS = 20, CALLS = 5, COPIED = 256 << 20 };

static const struct forward_table *table;
static double ceiling; /* bytes/s of a copy, read and written */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n random elements on the GPU. */
static void *numbers(enum dtype t, int64_t n, double size)
{
    size_t item = t == DT_BF16 ? 2 : 4;
    char *x = room((size_t)n * item);
    bool spilled;
    void *p;

    for (int64_t i = 0; i < n; i++) {
        float f = (float)(size * (uniform() - .5) * 3.4641);

        CHECK(from_f32(x + (size_t)i * item, t, &f, 1));
    }
    OK(table->alloc(gpu, &p, (size_t)n * item, false, &spilled, e));
    OK(table->put(gpu, p, x, (size_t)n * item, e));
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

static double median(double t[REPEATS])
{
    qsort(t, REPEATS, sizeof(*t), by_size);
    return t[REPEATS / 2];
}

static void find_ceiling(void)
{
    void *a = numbers(DT_BF16, COPIED / 2, 1);
    void *b = numbers(DT_BF16, COPIED / 2, 1);
    double t[REPEATS];

    for (int i = 0; i < REPEATS; i++) {
        double begin = now();

        for (int k = 0; k < CALLS; k++)
            OK(table->copy(gpu, b, a, COPIED, e));
        wait_for(b);
        t[i] = (now() - begin) / CALLS;
    }
    ceiling = 2.0 * COPIED / median(t);
    printf("copy %.0f GB/s\n", ceiling / 1e9);
    table->release(gpu, a);
    table->release(gpu, b);
}

/* A call in rows of q, k, v, z, a, b (or x, B, C, z, t) one behind the other. */
static struct forward_recur call_of(enum delta_form form, int64_t k_heads,
                                    int64_t v_heads, int64_t k_dim,
                                    int64_t v_dim, const int64_t *first,
                                    int64_t n, int64_t *row)
{
    int64_t keys = k_heads * k_dim, inner = v_heads * v_dim;
    int64_t gates = v_heads * (form == DELTA_CHANNELS ? k_dim : 1);
    int64_t each = v_heads / k_heads, channels = 2 * keys + inner;
    bool mamba = form == DELTA_MAMBA;
    struct forward_recur a = { .dtype = DT_BF16,
                               .form = form,
                               .of = { .k_heads = k_heads,
                                       .v_heads = v_heads,
                                       .k_dim = k_dim,
                                       .v_dim = v_dim,
                                       .kernel = 4,
                                       .step_max = 1e9 },
                               .eps = 1e-6,
                               .rows = first[n],
                               .n_sequences = n,
                               .first = first };
    char *p;

    *row = channels + inner + gates + v_heads;
    p = numbers(DT_BF16, first[n] * *row, 1);
    a.v = (struct forward_heads){ p + (mamba ? 0 : 4 * keys), *row,
                                  each * v_dim };
    a.k = (struct forward_heads){ p + 2 * (mamba ? inner : keys), *row, k_dim };
    a.q = (struct forward_heads){ p + (mamba ? 2 * (inner + keys) : 0), *row,
                                  k_dim };
    a.z = (struct forward_heads){ p + 2 * channels, *row, each * v_dim };
    a.a = (struct forward_heads){ p + 2 * (channels + inner), *row,
                                  gates / k_heads };
    a.b = (struct forward_heads){ p + 2 * (channels + inner + gates), *row,
                                  each };
    a.filter = numbers(DT_F32, channels * 4, .5);
    a.decay = numbers(DT_F32, v_heads, 1);
    a.shift = numbers(DT_F32, gates, 1);
    a.skip = numbers(DT_F32, v_heads, 1);
    a.norm = numbers(DT_F32, inner, 1);
    a.out = numbers(DT_BF16, first[n] * inner, NAN);
    return a;
}

static void recurrence(const char *what, enum delta_form form, int64_t k_heads,
                       int64_t v_heads, int64_t k_dim, int64_t v_dim,
                       int64_t length, int64_t n)
{
    int64_t first[9], row, inner = v_heads * v_dim;
    struct forward_recur a;
    double t[REPEATS], bytes;
    bool finite;

    for (int64_t i = 0; i <= n; i++)
        first[i] = i * length;
    a = call_of(form, k_heads, v_heads, k_dim, v_dim, first, n, &row);
    OK(table->recur(gpu, &a, e));
    OK(table->finite(gpu, DT_BF16, a.out, a.rows * inner, &finite, e));
    CHECK(finite);
    for (int i = 0; i < REPEATS; i++) {
        double begin = now();

        for (int k = 0; k < CALLS; k++)
            OK(table->recur(gpu, &a, e));
        wait_for(a.out);
        t[i] = (now() - begin) / CALLS;
    }
    bytes = 2.0 * (double)(a.rows * (row + inner));
    printf("%-44s %8.3f ms  %7.0f ns a token  %3.0f %% of copy\n", what,
           median(t) * 1e3, median(t) * 1e9 / (double)length,
           100 * bytes / median(t) / ceiling);
    table->release(gpu,
                   (void *)(uintptr_t)(form == DELTA_MAMBA ? a.v.p : a.q.p));
    table->release(gpu, (void *)(uintptr_t)a.filter);
    table->release(gpu, (void *)(uintptr_t)a.decay);
    table->release(gpu, (void *)(uintptr_t)a.shift);
    table->release(gpu, (void *)(uintptr_t)a.skip);
    table->release(gpu, (void *)(uintptr_t)a.norm);
    table->release(gpu, a.out);
}

int main(int argc, char **argv)
{
    struct plugin_table stage = { FORWARD_TABLE, FORWARD_TABLE_VERSION, NULL };

    gpu_open(argc, argv, &stage);
    table = stage.functions;
    find_ceiling();
    recurrence("Qwen3-Next, 16 / 32 heads, 4 x 512", DELTA_FUSED, 16, 32, 128,
               128, 512, 4);
    recurrence("Qwen3-Next, 16 / 32 heads, 2048", DELTA_FUSED, 16, 32, 128, 128,
               2048, 1);
    recurrence("Kimi-Linear, 32 heads, 4 x 512", DELTA_CHANNELS, 32, 32, 128,
               128, 512, 4);
    recurrence("Granite 4, 128 heads of 64, 4 x 512", DELTA_MAMBA, 1, 128, 128,
               64, 512, 4);
    recurrence("Qwen3-Next, one token", DELTA_FUSED, 16, 32, 128, 128, 1, 1);
    return 0;
}
