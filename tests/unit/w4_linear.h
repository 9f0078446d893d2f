/* w4_linear.h - 4-bit linears for tests: codes, zeros and scales that are drawn,
 * the tensors of any layout by the pictures of forge-layouts(5), and the weights
 * that these mean, in double. */
#ifndef FORGE_TEST_W4_LINEAR_H
#define FORGE_TEST_W4_LINEAR_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/dtype.h"
#include "forge_w4a16.h"
#include "test.h"

enum { SPARE = 5 }; /* elements behind each row of x and y */

static uint64_t seed = 11;

static inline uint32_t draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

struct w4_linear {
    enum forge_w4a16_layout layout;
    int64_t o, i, group, groups;
    bool zeros;
    int32_t *g_idx;
    enum forge_w4a16_type scales;
    unsigned char *code, *zero; /* [o][i], [o][groups] */
    float *scale;               /* [o][groups], as stored */
    uint32_t *words, *zwords;
    void *stored;
    double *w; /* [o][i] */
};

static const int awq[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };

static inline void put(uint32_t *words, int64_t at, int nibble, unsigned v)
{
    words[at] &= ~(15u << 4 * nibble);
    words[at] |= v << 4 * nibble;
}

/* By the pictures of forge-layouts(5). */
static inline void pack(struct w4_linear *l)
{
    int64_t ow = (l->o + 7) / 8, iw = (l->i + 7) / 8;
    bool ct = l->layout == FORGE_W4A16_COMPRESSED_TENSORS;
    bool aw = l->layout == FORGE_W4A16_AWQ;
    size_t n = (size_t)(aw ? l->i * ow : iw * l->o);
    size_t nz = (size_t)(l->groups * ow);

    l->words = malloc(n * 4);
    l->zwords = malloc(nz * 4);
    memset(l->words, 0xff, n * 4); /* nibbles of no input hold anything */
    memset(l->zwords, 0xff, nz * 4);
    for (int64_t o = 0; o < l->o; o++) {
        int lane = 0;

        while (awq[lane] != o % 8)
            lane++;
        for (int64_t k = 0; k < l->i; k++)
            if (ct)
                put(l->words, o * iw + k / 8, (int)(k % 8),
                    l->code[o * l->i + k]);
            else if (aw)
                put(l->words, k * ow + o / 8, lane, l->code[o * l->i + k]);
            else
                put(l->words, k / 8 * l->o + o, (int)(k % 8),
                    l->code[o * l->i + k]);
        for (int64_t g = 0; g < l->groups; g++) {
            unsigned z = l->zero[o * l->groups + g];

            if (ct)
                put(l->zwords, o / 8 * l->groups + g, (int)(o % 8), z);
            else
                put(l->zwords, g * ow + o / 8, aw ? lane : (int)(o % 8),
                    l->layout == FORGE_W4A16_GPTQ ? z - 1 : z);
        }
    }
}

static inline void store_scales(struct w4_linear *l)
{
    bool ct = l->layout == FORGE_W4A16_COMPRESSED_TENSORS;
    size_t n = (size_t)(l->o * l->groups);
    float *turned = malloc(n * sizeof(*turned));

    for (int64_t o = 0; o < l->o; o++)
        for (int64_t g = 0; g < l->groups; g++)
            turned[ct ? o * l->groups + g : g * l->o + o] =
                l->scale[o * l->groups + g];
    l->stored = malloc(n * sizeof(float));
    CHECK(from_f32(l->stored, (enum dtype)l->scales, turned, n));
    free(turned);
}

static inline void make(struct w4_linear *l)
{
    size_t n = (size_t)(l->o * l->i), m;

    l->groups = l->group ? (l->i + l->group - 1) / l->group : 1;
    m = (size_t)(l->o * l->groups);
    l->code = malloc(n);
    l->zero = malloc(m);
    l->scale = malloc(m * sizeof(*l->scale));
    l->w = malloc(n * sizeof(*l->w));
    for (size_t i = 0; i < n; i++)
        l->code[i] = draw() & 15;
    for (size_t i = 0; i < m; i++) {
        float s = 0.01f + (float)(draw() % 1000) / 20000;
        uint16_t half;

        s = draw() % 2 ? -s : s; /* negative scales are stored, too */
        CHECK(from_f32(&half,
                       (enum dtype)l->scales == DT_F32 ? DT_BF16 :
                                                         (enum dtype)l->scales,
                       &s, 1));
        CHECK(to_f32(&s, &half,
                     (enum dtype)l->scales == DT_F32 ? DT_BF16 :
                                                       (enum dtype)l->scales,
                     1));
        l->scale[i] = s;
        /* v1 does not hold 0 */
        l->zero[i] = l->zeros ? (unsigned char)(1 + draw() % 15) : 8;
    }
    for (int64_t o = 0; o < l->o; o++)
        for (int64_t k = 0; k < l->i; k++) {
            int64_t g = l->g_idx ? l->g_idx[k] : l->group ? k / l->group : 0;
            int64_t at = o * l->groups + g;

            l->w[o * l->i + k] = (double)(l->code[o * l->i + k] - l->zero[at]) *
                                 (double)l->scale[at];
        }
    pack(l);
    store_scales(l);
}

static inline void release(struct w4_linear *l)
{
    free(l->code);
    free(l->zero);
    free(l->scale);
    free(l->w);
    free(l->words);
    free(l->zwords);
    free(l->stored);
    free(l->g_idx);
}

/* The tensors of a linear, for prepare(). */
static inline struct forge_w4a16_linear stored(const struct w4_linear *l)
{
    return (struct forge_w4a16_linear){ .layout = l->layout,
                                        .outputs = l->o,
                                        .inputs = l->i,
                                        .group = l->group,
                                        .codes = l->words,
                                        .scales = l->stored,
                                        .scale_type = l->scales,
                                        .zeros = l->zeros ? l->zwords : NULL,
                                        .g_idx = l->g_idx };
}

struct rows {
    enum forge_w4a16_type type;
    int64_t m, ld;
    void *p;      /* as stored */
    float *value; /* [m, ld], what that means */
};

static inline void fill(struct rows *x, int64_t i)
{
    size_t n;

    x->ld = i + SPARE;
    n = (size_t)(x->m * x->ld);
    x->p = malloc(n * sizeof(float));
    x->value = malloc(n * sizeof(float));
    for (size_t k = 0; k < n; k++)
        x->value[k] = (float)(int32_t)draw() / 2147483648.0f;
    CHECK(from_f32(x->p, (enum dtype)x->type, x->value, n));
    CHECK(to_f32(x->value, x->p, (enum dtype)x->type, n));
}

/* Element k, row by row, to v in x's type. */
static inline void set_value(struct rows *x, int64_t k, float v)
{
    char *p = (char *)x->p + k * (x->type == FORGE_W4A16_F32 ? 4 : 2);

    CHECK(from_f32(p, (enum dtype)x->type, &v, 1));
    CHECK(to_f32(&x->value[k], p, (enum dtype)x->type, 1));
}

/* Groups drawn at random, each with as many inputs: act-order. */
static inline int32_t *shuffled(int64_t n, int64_t group)
{
    int32_t *g = malloc((size_t)n * sizeof(*g));

    for (int64_t k = 0; k < n; k++)
        g[k] = (int32_t)(k / group);
    for (int64_t k = n - 1; k > 0; k--) {
        int64_t j = draw() % (uint32_t)(k + 1);
        int32_t t = g[k];

        g[k] = g[j];
        g[j] = t;
    }
    return g;
}

/* Zeros and types of scales take turns. */
static inline struct w4_linear drawn(int turn, enum forge_w4a16_layout layout,
                                     int64_t o, int64_t i, int64_t group,
                                     bool act_order)
{
    struct w4_linear l = { .layout = layout,
                           .o = o,
                           .i = i,
                           .group = group,
                           .zeros = turn % 2,
                           .scales = (enum forge_w4a16_type)(1 + turn % 3),
                           .g_idx = act_order ? shuffled(i, group) : NULL };

    make(&l);
    return l;
}

struct shape {
    int64_t o, i, group;
};

/* Calls one() for all layouts with groups of all kinds and `more` shapes, words
 * that are not full, groups that end inside one, and act-order. */
static inline void each_shape(void (*one)(enum forge_w4a16_layout layout,
                                          int64_t o, int64_t i, int64_t group,
                                          bool act_order),
                              const struct shape *more, size_t n)
{
    static const struct shape some[] = {
        { 64, 256, 128 }, { 8, 32, 32 },   { 24, 320, 128 },
        { 136, 288, 32 }, { 40, 512, 64 }, { 72, 768, 256 },
        { 16, 264, 0 },   { 200, 96, 96 }, { 8, 1040, 24 },
    };

    for (int l = 0; l <= FORGE_W4A16_GPTQ_V2; l++)
        for (size_t k = 0; k < ARRAY_LEN(some) + n; k++) {
            const struct shape *s =
                k < ARRAY_LEN(some) ? &some[k] : &more[k - ARRAY_LEN(some)];

            one((enum forge_w4a16_layout)l, s->o, s->i, s->group, false);
        }
    for (int l = 0; l <= FORGE_W4A16_GPTQ_V2; l++) {
        int64_t o = l == FORGE_W4A16_AWQ ? 56 : 51;

        one((enum forge_w4a16_layout)l, o, 203, 32, false);
        one((enum forge_w4a16_layout)l, o, 130, 20, false);
        one((enum forge_w4a16_layout)l, l == FORGE_W4A16_AWQ ? 8 : 1, 5, 0,
            false);
    }
    one(FORGE_W4A16_GPTQ, 72, 512, 128, true);
    one(FORGE_W4A16_GPTQ_V2, 33, 320, 32, true);
    one(FORGE_W4A16_COMPRESSED_TENSORS, 72, 256, 64, true);
}

#endif
