/* w4_matrix.h - 4-bit matrices for benchmarks: symmetric, groups of 128, scales of
 * f16, words of any layout. */
#ifndef FORGE_W4_MATRIX_H
#define FORGE_W4_MATRIX_H

#include <stdlib.h>

#include "common/math/dtype.h"
#include "forge_w4a16.h"

enum { GROUP = 128 };

static struct err err;
static inline void *must(void *p)
{
    if (!p)
        die_err(&err);
    return p;
}

static uint64_t seed = 5;

static inline uint32_t draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

struct matrix {
    int64_t o, i;
    uint32_t *words;
    uint16_t *scales;
    struct forge_w4a16 *w;
    size_t stored; /* bytes of words and scales */
};

static inline void fill(struct matrix *m, enum forge_w4a16_layout layout,
                        int64_t o, int64_t i)
{
    size_t n = (size_t)(o * i / 8), groups = (size_t)(o * (i / GROUP));
    char why[200];

    *m = (struct matrix){ .o = o, .i = i };
    m->stored = n * 4 + groups * 2;
    m->words = must(mem_pages(n * 4, "bench", &err));
    m->scales = must(mem_pages(groups * 2, "bench", &err));
    for (size_t k = 0; k < n; k++)
        m->words[k] = draw();
    for (size_t k = 0; k < groups; k++)
        m->scales[k] = f16_from_f32(0.01f + (float)(draw() % 64) / 1024);
    if (forge_w4a16_prepare(
            &m->w,
            &(struct forge_w4a16_linear){ .layout = layout,
                                          .outputs = o,
                                          .inputs = i,
                                          .group = GROUP,
                                          .codes = m->words,
                                          .scales = m->scales,
                                          .scale_type = FORGE_W4A16_F16 },
            why, sizeof(why)) < 0)
        die(E_BUG, "%s", why);
}

static inline void empty(struct matrix *m)
{
    forge_w4a16_release(m->w);
    free(m->words);
    free(m->scales);
}

/* From the pictures of forge-layouts(5). */
static inline double value(const struct matrix *m, int layout, int64_t o,
                           int64_t k)
{
    static const int awq[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    int64_t g = k / GROUP;
    uint32_t q;

    if (layout == FORGE_W4A16_COMPRESSED_TENSORS)
        q = m->words[o * (m->i / 8) + k / 8] >> 4 * (k % 8);
    else if (layout == FORGE_W4A16_AWQ)
        q = m->words[k * (m->o / 8) + o / 8] >> 4 * awq[o % 8];
    else
        q = m->words[k / 8 * m->o + o] >> 4 * (k % 8);
    return ((double)(q & 15) - 8) *
           (double)f32_from_f16(
               m->scales[layout ? g * m->o + o : o * (m->i / GROUP) + g]);
}

static inline uint16_t *rows_of(int64_t m, int64_t i)
{
    uint16_t *x = must(mem_pages((size_t)(m * i) * 2, "bench", &err));

    for (int64_t k = 0; k < m * i; k++)
        x[k] = bf16_from_f32((float)(int32_t)draw() / 2147483648.0f);
    return x;
}

static inline void multiply(const struct matrix *w, const uint16_t *x,
                            int64_t m, float *y)
{
    const struct forge_w4a16_rows from = { FORGE_W4A16_BF16,
                                           (void *)(uintptr_t)x, w->i };
    const struct forge_w4a16_rows to = { FORGE_W4A16_F32, y, w->o };
    char why[200];

    if (forge_w4a16_multiply(w->w, &from, m, &to, why, sizeof(why)) < 0)
        die(E_BUG, "%s", why);
}

#endif
