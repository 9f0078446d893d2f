/* forge_w4a16.h at every level of CPU: all layouts, zeros, act-order, types,
 * ragged shapes and numbers of rows, against products in double of weights that
 * are put together here from codes, zeros and scales; outputs are poisoned. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/cpu.h"
#include "common/math/dtype.h"
#include "forge_w4a16.h"
#include "test.h"

enum { MOST = 300, SPARE = 5 };

static uint64_t seed = 11;

static uint32_t draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

struct linear {
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

static void put(uint32_t *words, int64_t at, int nibble, unsigned v)
{
    words[at] &= ~(15u << 4 * nibble);
    words[at] |= v << 4 * nibble;
}

/* By the pictures of forge-layouts(5). */
static void pack(struct linear *l)
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

static void store_scales(struct linear *l)
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

static void make(struct linear *l)
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

static void release(struct linear *l)
{
    free(l->code);
    free(l->zero);
    free(l->scale);
    free(l->w);
    free(l->words);
    free(l->zwords);
    free(l->stored);
}

static struct forge_w4a16 *prepare(const struct linear *l)
{
    struct forge_w4a16 *w;
    char why[200] = "";
    int rc = forge_w4a16_prepare(&w,
                                 &(struct forge_w4a16_linear){
                                     .layout = l->layout,
                                     .outputs = l->o,
                                     .inputs = l->i,
                                     .group = l->group,
                                     .codes = l->words,
                                     .scales = l->stored,
                                     .scale_type = l->scales,
                                     .zeros = l->zeros ? l->zwords : NULL,
                                     .g_idx = l->g_idx,
                                 },
                                 why, sizeof(why));

    if (rc)
        fprintf(stderr, "%s\n", why);
    CHECK(rc == 0);
    return w;
}

/* ---- products ---- */

struct rows {
    enum forge_w4a16_type type;
    int64_t m, ld;
    void *p;      /* as stored */
    float *value; /* [m, ld], what that means */
};

static void fill(struct rows *x, int64_t i)
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

static float *multiply(const struct forge_w4a16 *w, const struct rows *x,
                       int64_t o)
{
    struct forge_w4a16_rows from = { x->type, x->p, x->ld };
    struct forge_w4a16_rows to = { FORGE_W4A16_F32, NULL, o + SPARE };
    size_t n = (size_t)(x->m * to.ld);
    float *y = malloc(n * sizeof(*y));
    char why[200];

    memset(y, 0xff, n * sizeof(*y)); /* NaN */
    to.p = y;
    CHECK(forge_w4a16_multiply(w, &from, x->m, &to, why, sizeof(why)) == 0);
    for (int64_t r = 0; r < x->m; r++)
        for (int64_t c = o; c < to.ld; c++)
            CHECK(isnan(y[r * to.ld + c]));
    return y;
}

/* In units of the size of the terms: f32 sums err by some 2^-24 of it each. */
static void compare(const struct linear *l, const struct rows *x,
                    const float *y)
{
    bool rounded = x->m > FORGE_W4A16_FEW && x->type == FORGE_W4A16_BF16;

    for (int64_t r = 0; r < x->m; r += 1 + r / 5)
        for (int64_t o = 0; o < l->o; o++) {
            double sum = 0, size = 0, far;

            for (int64_t k = 0; k < l->i; k++) {
                double w = l->w[o * l->i + k];
                double t =
                    (rounded ? (double)f32_from_bf16(bf16_from_f32((float)w)) :
                               w) *
                    (double)x->value[r * x->ld + k];

                sum += t;
                size += t * t;
            }
            far = fabs((double)y[r * (l->o + SPARE) + o] - sum);
            /* zeros of up to 8 steps away are taken off behind the sum */
            CHECK(far < 4e-6 * (0.05 + sqrt(size)));
        }
}

/* Results in 16 bits are those of f32, rounded. */
static void narrow(const struct forge_w4a16 *w, const struct rows *x, int64_t o,
                   const float *y, enum forge_w4a16_type type)
{
    struct forge_w4a16_rows from = { x->type, x->p, x->ld },
                            to = { type, NULL, o };
    uint16_t *h = malloc((size_t)(x->m * o) * 2), want;
    char why[200];

    to.p = h;
    CHECK(forge_w4a16_multiply(w, &from, x->m, &to, why, sizeof(why)) == 0);
    for (int64_t r = 0; r < x->m; r++)
        for (int64_t c = 0; c < o; c++) {
            CHECK(
                from_f32(&want, (enum dtype)type, y + r * (o + SPARE) + c, 1));
            CHECK(h[r * o + c] == want);
        }
    free(h);
}

/* Rows alone and together, and other levels: the same bytes. */
static void same(const float *y, const float *z, int64_t m, int64_t o)
{
    for (int64_t r = 0; r < m; r++)
        CHECK(!memcmp(y + r * (o + SPARE), z + r * (o + SPARE),
                      (size_t)o * sizeof(*y)));
}

static void alone(const struct forge_w4a16 *w, const struct rows *x, int64_t o,
                  const float *y)
{
    for (int64_t r = 0; r < x->m && x->m <= FORGE_W4A16_FEW; r++) {
        struct rows one = { x->type, 1, x->ld,
                            (char *)x->p +
                                (size_t)(r * x->ld) *
                                    (x->type == FORGE_W4A16_F32 ? 4 : 2),
                            x->value + r * x->ld };
        float *z = multiply(w, &one, o);

        same(y + r * (o + SPARE), z, 1, o);
        free(z);
    }
}

static void at_all_levels(const struct linear *l, const struct rows *x)
{
    float *before = NULL;

    for (int i = 0; i < CPU_LEVELS; i++) {
        bool fused = i != CPU_PLAIN || x->type != FORGE_W4A16_F32;
        bool exact = x->m <= FORGE_W4A16_FEW     ? fused :
                     x->type == FORGE_W4A16_BF16 ? i != CPU_AMX :
                                                   false;
        struct forge_w4a16 *w;
        float *y;

        if (!cpu_has((enum cpu_level)i))
            continue;
        cpu_set((enum cpu_level)i);
        w = prepare(l);
        y = multiply(w, x, l->o);
        compare(l, x, y);
        alone(w, x, l->o, y);
        if (before && exact)
            same(before, y, x->m, l->o);
        if (i == CPU_AVX2 || i == CPU_NEON) {
            narrow(w, x, l->o, y, FORGE_W4A16_F16);
            narrow(w, x, l->o, y, FORGE_W4A16_BF16);
        }
        free(before);
        before = exact ? y : NULL;
        if (!exact)
            free(y);
        forge_w4a16_release(w);
    }
    free(before);
}

static void products(struct linear *l, int64_t m, enum forge_w4a16_type type)
{
    struct rows x = { .type = type, .m = m };

    fill(&x, l->i);
    at_all_levels(l, &x);
    free(x.p);
    free(x.value);
}

/* Groups drawn at random, each with as many inputs: act-order. */
static int32_t *shuffled(int64_t n, int64_t group)
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

static void one(enum forge_w4a16_layout layout, int64_t o, int64_t i,
                int64_t group, bool act_order)
{
    static const int64_t rows[] = { 1, 3, FORGE_W4A16_FEW, FORGE_W4A16_FEW + 1,
                                    37 };
    static int turn;

    for (size_t r = 0; r < ARRAY_LEN(rows); r++, turn++) {
        /* types take turns: all pairs come up in some shape */
        struct linear l = { .layout = layout,
                            .o = o,
                            .i = i,
                            .group = group,
                            .zeros = turn % 2,
                            .scales = (enum forge_w4a16_type)(1 + turn % 3),
                            .g_idx = act_order ? shuffled(i, group) : NULL };

        make(&l);
        for (int t = FORGE_W4A16_F32; t <= FORGE_W4A16_BF16; t++)
            products(&l, rows[r], (enum forge_w4a16_type)t);
        release(&l);
        free(l.g_idx);
    }
}

static void test_shapes(void)
{
    static const struct {
        int64_t o, i, group;
    } shape[] = {
        { 64, 256, 128 }, { 8, 32, 32 },    { 24, 320, 128 }, { 136, 288, 32 },
        { 40, 512, 64 },  { 72, 768, 256 }, { 16, 264, 0 },   { 200, 96, 96 },
        { 8, 1040, 24 },  { 1032, 64, 32 }, { 48, 2560, 32 },
    };

    for (int l = 0; l <= FORGE_W4A16_GPTQ_V2; l++)
        for (size_t i = 0; i < ARRAY_LEN(shape); i++)
            one((enum forge_w4a16_layout)l, shape[i].o, shape[i].i,
                shape[i].group, false);
}

/* Words that are not full; groups that end inside one. */
static void test_ragged(void)
{
    for (int l = 0; l <= FORGE_W4A16_GPTQ_V2; l++) {
        int64_t o = l == FORGE_W4A16_AWQ ? 56 : 51;

        one((enum forge_w4a16_layout)l, o, 203, 32, false);
        one((enum forge_w4a16_layout)l, o, 130, 20, false);
        one((enum forge_w4a16_layout)l, l == FORGE_W4A16_AWQ ? 8 : 1, 5, 0,
            false);
    }
}

static void test_act_order(void)
{
    one(FORGE_W4A16_GPTQ, 72, 512, 128, true);
    one(FORGE_W4A16_GPTQ_V2, 33, 320, 32, true);
    one(FORGE_W4A16_COMPRESSED_TENSORS, 72, 256, 64, true);
}

/* Many rows of bf16 are the product with W in bf16, to the bit. */
static void test_dense(void)
{
    struct linear l = { .layout = FORGE_W4A16_AWQ,
                        .o = 1096,
                        .i = 1000,
                        .group = 128,
                        .zeros = true,
                        .scales = FORGE_W4A16_F16 };
    struct rows x = { .type = FORGE_W4A16_BF16, .m = 270 };
    int64_t group = bf16_gemm_group(), depth = bf16_gemm_depth(l.i);
    uint16_t *w = malloc((size_t)(l.o * l.i) * 2), *packed;
    float *y, *z = malloc((size_t)(x.m * (l.o + SPARE)) * sizeof(*z));
    struct forge_w4a16 *q;

    make(&l);
    fill(&x, l.i);
    for (int64_t i = 0; i < l.o * l.i; i++)
        w[i] = bf16_from_f32((float)l.w[i]);
    packed = malloc(bf16_gemm_packed(l.o, l.i) * 2);
    for (int64_t o = 0; o < l.o; o += group) {
        int64_t n = l.o - o < group ? l.o - o : group;

        bf16_gemm_pack(packed + o * depth, w + o * l.i, n, l.i, 0,
                       (n + GEMM_COLS - 1) / GEMM_COLS);
    }
    bf16_gemm(&(struct bf16_gemm){ .x = x.p,
                                   .ldx = x.ld,
                                   .m = x.m,
                                   .k = l.i,
                                   .packed = packed,
                                   .all = l.o,
                                   .n = l.o,
                                   .y = z,
                                   .ldy = l.o + SPARE });
    q = prepare(&l);
    y = multiply(q, &x, l.o);
    same(y, z, x.m, l.o);
    forge_w4a16_release(q);
    release(&l);
    free(x.p);
    free(x.value);
    free(w);
    free(packed);
    free(y);
    free(z);
}

/* ---- experts ---- */

static void test_grouped(void)
{
    enum { EXPERTS = 5, O = 136, I = 256 };
    static const int64_t first[EXPERTS + 1] = { 0, 2, 2, 45, 46, 52 };
    struct rows x = { .type = FORGE_W4A16_BF16, .m = first[EXPERTS] };
    struct linear l[EXPERTS];
    const struct forge_w4a16 *w[EXPERTS] = { NULL };
    float *y = malloc((size_t)(x.m * O) * sizeof(*y));
    struct forge_w4a16_rows from, to = { FORGE_W4A16_F32, y, O };
    char why[200];

    fill(&x, I);
    from = (struct forge_w4a16_rows){ x.type, x.p, x.ld };
    memset(y, 0xff, (size_t)(x.m * O) * sizeof(*y));
    for (int i = 0; i < EXPERTS; i++) {
        l[i] = (struct linear){ .layout = (enum forge_w4a16_layout)(i % 4),
                                .o = O,
                                .i = I,
                                .group = 64,
                                .zeros = i % 2,
                                .scales = FORGE_W4A16_F16 };
        make(&l[i]);
        if (i != 1) /* nobody goes there */
            w[i] = prepare(&l[i]);
    }
    CHECK(
        !forge_w4a16_grouped(w, first, EXPERTS, &from, &to, why, sizeof(why)));
    for (int i = 0; i < EXPERTS; i++) {
        struct rows part = { x.type, first[i + 1] - first[i], x.ld,
                             (uint16_t *)x.p + first[i] * x.ld,
                             x.value + first[i] * x.ld };
        float *z;

        if (!part.m)
            continue;
        z = multiply(w[i], &part, O);
        compare(&l[i], &part, z);
        for (int64_t r = 0; r < part.m; r++)
            CHECK(!memcmp(z + r * (O + SPARE), y + (first[i] + r) * O,
                          O * sizeof(*y)));
        free(z);
    }
    CHECK(forge_w4a16_grouped(w, (const int64_t[]){ 0, 1, 2 }, 2, &from, &to,
                              why, sizeof(why)) == -78); /* rows of none */
    for (int i = 0; i < EXPERTS; i++) {
        forge_w4a16_release((struct forge_w4a16 *)(uintptr_t)w[i]);
        release(&l[i]);
    }
    free(y);
    free(x.p);
    free(x.value);
}

/* ---- what is refused; memory ---- */

static void refused(struct forge_w4a16_linear l, int code, const char *says)
{
    struct forge_w4a16 *w;
    char why[200] = "";

    CHECK(forge_w4a16_prepare(&w, &l, why, sizeof(why)) == code);
    CHECK(strstr(why, says) && !w);
}

static void test_refusals(void)
{
    uint32_t words[64] = { 0 };
    float scales[64] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    int32_t g_idx[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2 };
    struct forge_w4a16_linear l = { .layout = FORGE_W4A16_AWQ,
                                    .outputs = 12,
                                    .inputs = 16,
                                    .group = 8,
                                    .codes = words,
                                    .scales = scales,
                                    .scale_type = FORGE_W4A16_F32 };

    refused(l, -78, "12 outputs");
    l.outputs = 8;
    scales[13] = INFINITY;
    refused(l, -65, "output 5, group 1 is not finite");
    scales[13] = 1;
    l.layout = FORGE_W4A16_GPTQ;
    l.g_idx = g_idx;
    refused(l, -65, "input 15 in group 2 of 2");
    l.inputs = 0;
    refused(l, -78, "no such shape");
}

/* No copy of codes; less than a twelfth of them is held beside. */
static void test_memory(void)
{
    for (int layout = 0; layout <= FORGE_W4A16_GPTQ_V2; layout++) {
        struct linear l = { .layout = (enum forge_w4a16_layout)layout,
                            .o = 256,
                            .i = 2048,
                            .group = 128,
                            .scales = FORGE_W4A16_F16 };
        struct forge_w4a16 *w;

        make(&l);
        w = prepare(&l);
        CHECK(forge_w4a16_memory(w) < (size_t)(l.o * l.i / 2 / 12));
        forge_w4a16_release(w);
        release(&l);
    }
}

int main(void)
{
    test_shapes();
    test_ragged();
    test_act_order();
    each_level(test_dense);
    each_level(test_grouped);
    test_refusals();
    test_memory();
    return 0;
}
