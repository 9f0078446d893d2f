/* gpu.h - what the tests of the plug-in share: PROGRAM PLUG-IN [SEED].
 *
 * Inputs are random and new in every run; the seed is printed, and given back
 * it repeats the run. */
#ifndef FORGE_TEST_GPU_H
#define FORGE_TEST_GPU_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../unit/test.h"
#include "common/math/quant.h"
#include "device/device.h"
#include "gptq/grid/grid.h"
#include "gptq/solve/solve_table.h"

static const struct device_table *device;
static struct cuda_context *gpu;
static uint64_t state;

/* Fail with the reason when rc says so. */
#define OK(call)                                                               \
    do {                                                                       \
        struct err e_;                                                         \
        struct err *e = &e_;                                                   \
        if ((call) < 0) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, e_.msg);        \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* The stage that is tested: its table, of the plug-in that is named. */
static inline void gpu_open(int argc, char **argv, struct plugin_table *stage)
{
    struct plugin_table own = { DEVICE_TABLE, DEVICE_TABLE_VERSION, NULL };
    struct err why;

    state = argc > 2 ? strtoull(argv[2], NULL, 0) :
                       (uint64_t)time(NULL) * 0x9e3779b97f4a7c15;
    if (argc < 2 || plugin_load(&own, argv[1], &why) < 0) {
        fprintf(stderr, "skipped: %s\n", argc < 2 ? "no plug-in" : why.msg);
        exit(TEST_SKIP);
    }
    OK(plugin_load(stage, argv[1], e));
    device = own.functions;
    if (!device->count()) {
        fprintf(stderr, "skipped: no device\n");
        exit(TEST_SKIP);
    }
    OK(device->open(&gpu, 0, 0, e));
    printf("seed 0x%llx\n", (unsigned long long)state);
    state |= 1;
}

static inline uint64_t rnd(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d;
}

static inline double uniform(void)
{
    return (double)(rnd() >> 11) * 0x1p-53;
}

static inline float normal(void)
{
    double u = uniform(), v = uniform();

    return (float)(sqrt(-2 * log(u + 1e-300)) * cos(6.283185307179586 * v));
}

static inline void *room(size_t n)
{
    void *p = malloc(n);

    CHECK(p);
    memset(p, 0xa5, n); /* poison */
    return p;
}

/* first[n + 1], the first row of each of n sequences and the end; returns the
 * length of the longest. */
static inline int64_t sequences(int64_t *first, const int64_t *length,
                                int64_t n)
{
    int64_t longest = 0;

    first[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        first[i + 1] = first[i] + length[i];
        longest = length[i] > longest ? length[i] : longest;
    }
    return longest;
}

/* A packed lower triangle, mean of 2 x xT over `tokens` random tokens whose
 * inputs are correlated and of different size. */
static inline float *random_hessian(uint64_t cols, uint64_t tokens)
{
    float *h = room(cols * (cols + 1) / 2 * 4), *x = room(cols * 4);
    float *size = room(cols * 4), k = 2 / (float)tokens;

    memset(h, 0, cols * (cols + 1) / 2 * 4);
    for (uint64_t i = 0; i < cols; i++)
        size[i] = expf(0.7f * normal());
    for (uint64_t t = 0; t < tokens; t++) {
        float last = 0;

        for (uint64_t i = 0; i < cols; i++) {
            last = 0.6f * last + normal();
            x[i] = last * size[i];
        }
        for (uint64_t i = 0; i < cols; i++)
            for (uint64_t j = 0; j <= i; j++)
                h[i * (i + 1) / 2 + j] += k * x[i] * x[j];
    }
    free(x);
    free(size);
    return h;
}

/* A packed lower triangle: 1 of each row's own, and `common` of all of its head's. */
static inline float *heads_hessian(uint64_t rows, uint64_t head, float common)
{
    float *h = room(rows * (rows + 1) / 2 * 4);

    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j <= i; j++)
            h[i * (i + 1) / 2 + j] =
                (float)(i == j) + (i / head == j / head ? common : 0);
    return h;
}

static inline double mean_diagonal(const float *h, uint64_t cols)
{
    double sum = 0;
    uint64_t live = 0;

    for (uint64_t i = 0; i < cols; i++) {
        sum += h[i * (i + 1) / 2 + i];
        live += h[i * (i + 1) / 2 + i] != 0;
    }
    return sum / (double)live;
}

/* A random order of the inputs. */
static inline uint32_t *random_order(uint64_t cols)
{
    uint32_t *input = room(cols * 4);

    for (uint64_t i = 0; i < cols; i++)
        input[i] = (uint32_t)i;
    for (uint64_t i = cols - 1; i > 0; i--) {
        uint64_t j = rnd() % (i + 1);
        uint32_t t = input[i];

        input[i] = input[j];
        input[j] = t;
    }
    return input;
}

static inline bool *dead_columns(const float *h, const uint32_t *input,
                                 uint64_t cols)
{
    bool *dead = room(cols);

    for (uint64_t c = 0; c < cols; c++)
        dead[c] = h[(uint64_t)input[c] * (input[c] + 1) / 2 + input[c]] == 0;
    return dead;
}

/* An input that never occurred. */
static inline void kill_input(float *h, uint64_t cols, uint64_t k)
{
    for (uint64_t i = 0; i < cols; i++)
        h[i > k ? i * (i + 1) / 2 + k : k * (k + 1) / 2 + i] = 0;
}

/* n weights of a dtype, as layers have them: normal, some far out. */
static inline void *weights(enum dtype t, size_t n)
{
    float *x = room(n * sizeof(*x));
    void *to = room(n * sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = normal() * (rnd() % 100 ? 0.02f : 0.2f);
    CHECK(from_f32(to, t, x, n));
    free(x);
    return to;
}

/* A matrix of 8-bit floats, finite ones, in blocks of 128 x 128, as weights() are; and its
 * bf16.  free() both, and its data and scale. */
static inline struct fp8_matrix random_fp8(enum dtype t, uint64_t rows,
                                           uint64_t cols, uint16_t **bf16)
{
    struct fp8_matrix m = { .dtype = t,
                            .rows = rows,
                            .cols = cols,
                            .block_rows = 128,
                            .block_cols = 128 };
    uint8_t *codes = room(rows * cols), most = t == DT_F8_E4M3 ? 0x7e : 0x5f;
    size_t n = fp8_down(&m) * fp8_across(&m);
    float *scale = room(n * sizeof(*scale));

    for (uint64_t i = 0; i < rows * cols; i++)
        codes[i] = (uint8_t)((rnd() & 0x80) | rnd() % (most + 1u));
    for (size_t i = 0; i < n; i++)
        scale[i] = 0.0005f * (float)exp(normal());
    m.data = codes;
    m.scale = scale;
    *bf16 = room(rows * cols * 2);
    fp8_to_bf16(*bf16, &m);
    return m;
}

static inline void free_fp8(struct fp8_matrix *m)
{
    free((void *)(uintptr_t)m->data);
    free((void *)(uintptr_t)m->scale);
}

/* Factor i as the CPU's solver takes it. */
static inline struct factor *host_factor(const struct cuda_factors *from, int i,
                                         const struct cuda_matrix *m,
                                         uint64_t n)
{
    struct factor *f = calloc(1, sizeof(*f));
    float *l = room(n * n * 4), *to;

    CHECK(f);
    OK(solve_functions()->factors_read(from, i, l, e));
    f->cols = n;
    f->padded = (n + FACTOR_PANEL - 1) / FACTOR_PANEL * FACTOR_PANEL;
    f->lambda = m->lambda;
    f->input = room(n * 4);
    f->dead = room(n);
    memcpy(f->input, m->input, n * 4);
    memcpy(f->dead, m->dead, n);
    f->panel = room(factor_panel_at(f->padded, f->padded / FACTOR_PANEL) * 4);
    to = f->panel;
    for (uint64_t c0 = 0; c0 < f->padded; c0 += FACTOR_PANEL)
        for (uint64_t r = c0; r < f->padded; r++)
            for (uint64_t c = c0; c < c0 + FACTOR_PANEL; c++)
                *to++ = r < n && c <= r ? l[r * n + c] : (float)(r == c);
    free(l);
    return f;
}

static inline void host_factor_free(struct factor *f)
{
    free(f->input);
    free(f->dead);
    free(f->panel);
    free(f);
}

/* Absmax grids of p's weights. */
static inline uint32_t *grids(const struct solve_params *p, const void *w,
                              bool symmetric)
{
    struct grid_params g = {
        .rows = p->rows,
        .cols = p->cols,
        .group = p->group,
        .symmetric = symmetric,
        .search = GRID_ABSMAX,
        .norm = 2,
        .candidates = 1,
        .scale_dtype = p->scale_dtype,
        .dtype = p->dtype,
    };
    uint32_t *meta = room(p->rows * quant_groups(p->cols, p->group) * 4);

    OK(grid_cpu.search(&g, w, meta, e));
    return meta;
}

static inline uint64_t count_codes(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint64_t differ = 0;

    for (size_t i = 0; i < n; i++)
        differ += ((a[i] ^ b[i]) & 15) != 0;
    for (size_t i = 0; i < n; i++)
        differ += ((a[i] ^ b[i]) >> 4) != 0;
    return differ;
}

#endif
