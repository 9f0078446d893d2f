/* forge_w4a16.h at every level of CPU: all layouts, zeros, act-order, types, ragged shapes,
 * against products in double of codes, zeros and scales; outputs are poisoned. */
#include "common/math/bf16_gemm.h"
#include "common/math/cpu.h"
#include "w4_linear.h"
#include "w4a16/kernels.h"

static struct forge_w4a16 *prepare(const struct w4_linear *l)
{
    struct forge_w4a16 *w;
    char why[200] = "";
    struct forge_w4a16_linear from = stored(l);
    int rc = forge_w4a16_prepare(&w, &from, why, sizeof(why));

    if (rc)
        fprintf(stderr, "%s\n", why);
    CHECK(rc == 0);
    return w;
}

/* ---- products ---- */

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

/* Of some rows and outputs of a product, in double: the sums, and the root of their
 * terms' squares. */
struct truth {
    double bound; /* of errors, in units of the latter */
    int64_t n;
    struct entry {
        int64_t row, output;
        double sum, size;
    } * of; /* [n] */
};

static struct entry entry(const struct w4_linear *l, const struct rows *x,
                          int64_t row, int64_t output)
{
    bool rounded = x->m > FORGE_W4A16_FEW && x->type == FORGE_W4A16_BF16;
    const double *w = l->w + output * l->i;
    const float *x_row = x->value + row * x->ld;
    struct entry t = { .row = row, .output = output };
    double squares = 0;

    for (int64_t k = 0; k < l->i; k++) {
        double d =
            rounded ? (double)f32_from_bf16(bf16_from_f32((float)w[k])) : w[k];

        d *= (double)x_row[k];
        t.sum += d;
        squares += d * d;
    }
    t.size = sqrt(squares);
    return t;
}

/* Rows ever farther apart; all outputs, or of a wide linear each seventh, which is each
 * place of a tile in turn. */
static struct truth truth_of(const struct w4_linear *l, const struct rows *x)
{
    int64_t step = l->o > 1024 ? 7 : 1;
    bool fixed = x->m <= FORGE_W4A16_FEW && x->type != FORGE_W4A16_F32;
    /* f32 sums err by some 2^-24 of each term; x of up to 1 in multiples of 2^-14 by
     * 2^-14 / sqrt(12) of a term's weight, where x is 1 / sqrt(3) on average */
    struct truth t = { .bound = fixed ? 1.6e-4 : 4e-6,
                       .of = malloc((size_t)(x->m * (l->o / step + 1)) *
                                    sizeof(*t.of)) };

    for (int64_t r = 0; r < x->m; r += 1 + r / 5)
        for (int64_t o = 0; o < l->o; o += step)
            t.of[t.n++] = entry(l, x, r, o);
    return t;
}

static void compare(const struct truth *t, int64_t ld, const float *y)
{
    for (int64_t i = 0; i < t->n; i++) {
        const struct entry *e = &t->of[i];

        /* zeros of up to 8 steps away are taken off behind the sum */
        CHECK(fabs((double)y[e->row * ld + e->output] - e->sum) <
              t->bound * (0.05 + e->size));
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

static void again(const struct forge_w4a16 *w, const struct rows *x, int64_t o,
                  const float *y)
{
    float *z = multiply(w, x, o);

    same(y, z, x->m, o);
    free(z);
}

static void alone(const struct forge_w4a16 *w, const struct rows *x, int64_t o,
                  const float *y)
{
    for (int64_t r = 0; r < x->m && x->m <= FORGE_W4A16_FEW; r++) {
        int64_t at = r * x->ld, size = x->type == FORGE_W4A16_F32 ? 4 : 2;
        struct rows one = { x->type, 1, x->ld, (char *)x->p + at * size,
                            x->value + at };

        again(w, &one, o, y + r * (o + SPARE));
    }
}

/* On CPUs that read words in another order, with and without VNNI. */
static void on_other_cpus(const struct forge_w4a16 *w, const struct rows *x,
                          int64_t o, const float *y)
{
    for (int i = 0; i < 2 * W4_AWQ_BY_CPU && x->m <= FORGE_W4A16_FEW; i++) {
        w4_awq_set((enum w4_awq)(i / 2));
        w4_near_set((i + i / 2) % 2); /* in either, with and without VNNI */
        cpu_set_vnni(i % 2);
        again(w, x, o, y);
    }
    w4_awq_set(W4_AWQ_BY_CPU);
    w4_near_set(-1);
    cpu_set_vnni(true);
}

static void at_all_levels(const struct w4_linear *l, const struct rows *x)
{
    struct truth truth = truth_of(l, x);
    float *before = NULL;

    for (int i = 0; i < CPU_LEVELS; i++) {
        bool exact = x->m <= FORGE_W4A16_FEW ||
                     (x->type == FORGE_W4A16_BF16 && i != CPU_AMX);
        struct forge_w4a16 *w;
        float *y;

        if (!cpu_has((enum cpu_level)i))
            continue;
        cpu_set((enum cpu_level)i);
        w = prepare(l);
        y = multiply(w, x, l->o);
        compare(&truth, l->o + SPARE, y);
        alone(w, x, l->o, y);
        if (before && exact)
            same(before, y, x->m, l->o);
        on_other_cpus(w, x, l->o, y);
        if (i == CPU_AVX2 || i == CPU_NEON) {
            narrow(w, x, l->o, y, FORGE_W4A16_F16);
            narrow(w, x, l->o, y, FORGE_W4A16_BF16);
        }
        free(exact ? before : y);
        before = exact ? y : before;
        forge_w4a16_release(w);
    }
    free(before);
    free(truth.of);
}

enum { LARGE = 1 << 20 }; /* weights */

/* Of a large linear one type of x at a time, which takes turns. */
static void products(struct w4_linear *l, int64_t m, enum forge_w4a16_type type,
                     int turn)
{
    struct rows x = { .type = type, .m = m };

    fill(&x, l->i);
    if (l->o * l->i < LARGE ||
        (int)type == FORGE_W4A16_F32 + (turn + turn / 5) % 3)
        at_all_levels(l, &x);
    free(x.p);
    free(x.value);
}

static void one(enum forge_w4a16_layout layout, int64_t o, int64_t i,
                int64_t group, bool act_order)
{
    static const int64_t rows[] = { 1, 3, FORGE_W4A16_FEW, FORGE_W4A16_FEW + 1,
                                    37 };
    static int turn;

    for (size_t r = 0; r < ARRAY_LEN(rows); r++, turn++) {
        /* types take turns: all pairs come up in some shape */
        struct w4_linear l = drawn(turn, layout, o, i, group, act_order);

        for (int t = FORGE_W4A16_F32; t <= FORGE_W4A16_BF16; t++)
            products(&l, rows[r], (enum forge_w4a16_type)t, turn);
        release(&l);
    }
}

/* Many rows of bf16 are the product with W in bf16, to the bit. */
static void test_dense(void)
{
    struct w4_linear l = { .layout = FORGE_W4A16_AWQ,
                           .o = 1096,
                           .i = 424, /* two blocks of inputs */
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

/* ---- few rows: x as integers ---- */

/* Inputs of all sizes: a few rows have errors of 2^-22 of the largest input of 128, of
 * 16 bits 2^-14, none where its weight is 0, and f32's. */
static void wide(const struct w4_linear *l, const struct rows *x,
                 const float *y)
{
    double unit = x->type == FORGE_W4A16_F32 ? 0x1p-22 : 0x1p-14;
    float *most = calloc((size_t)(l->i / 128 + 1), sizeof(*most));

    for (int64_t k = 0; k < l->i; k++)
        most[k / 128] = fmaxf(most[k / 128], fabsf(x->value[k]));
    for (int64_t o = 0; o < l->o; o++) {
        double sum = 0, size = 0, bound = 0;

        for (int64_t k = 0; k < l->i; k++) {
            double w = l->w[o * l->i + k], t = w * (double)x->value[k];

            bound += fabs(w) * (double)most[k / 128] * unit;
            sum += t;
            size += t * t;
        }
        CHECK(fabs((double)y[o] - sum) < bound + 1e-6 * sqrt(size));
    }
    free(most);
}

static void wide_of(struct w4_linear *l, enum forge_w4a16_type type)
{
    /* below all normal numbers of a type */
    static const float tiny[] = { 0, 0x1p-140f, 0x1p-18f, 0x1p-130f };
    struct rows x = { .type = type, .m = 1 };
    struct forge_w4a16 *w = prepare(l);
    float *y;

    fill(&x, l->i);
    for (int64_t k = 0; k < l->i; k++) {
        int by = (int)(draw() % 60) - 30;

        set_value(
            &x, k,
            k / 128 == 1 ? 0 :
            k / 128 == 2 ? tiny[type] * x.value[k] :
                           ldexpf(x.value[k],
                                  by / (type == FORGE_W4A16_F16 ? 2 : 1)));
    }
    y = multiply(w, &x, l->o);
    wide(l, &x, y);
    free(y);
    for (int64_t k = 0; k < 2; k++) {
        set_value(&x, l->i - 1, k ? NAN : -INFINITY);
        y = multiply(w, &x, l->o);
        for (int64_t o = 0; o < l->o; o++)
            CHECK(isnan(y[o]));
        free(y);
    }
    forge_w4a16_release(w);
    free(x.p);
    free(x.value);
}

static void test_wide(void)
{
    for (int layout = 0; layout <= FORGE_W4A16_GPTQ; layout++) {
        struct w4_linear l = { .layout = (enum forge_w4a16_layout)layout,
                               .o = 136,
                               .i = 640,
                               .group = 64,
                               .scales = FORGE_W4A16_F16 };

        make(&l);
        for (int t = FORGE_W4A16_F32; t <= FORGE_W4A16_BF16; t++)
            wide_of(&l, (enum forge_w4a16_type)t);
        release(&l);
    }
}

/* ---- experts ---- */

static void test_grouped(void)
{
    enum { EXPERTS = 5, O = 136, I = 1088 };
    static const int64_t first[EXPERTS + 1] = { 0, 2, 2, 45, 46, 52 };
    struct rows x = { .type = FORGE_W4A16_BF16, .m = first[EXPERTS] };
    struct w4_linear l[EXPERTS];
    const struct forge_w4a16 *w[EXPERTS] = { NULL };
    float *y = malloc((size_t)(x.m * O) * sizeof(*y));
    struct forge_w4a16_rows from, to = { FORGE_W4A16_F32, y, O };
    char why[200];

    fill(&x, I);
    from = (struct forge_w4a16_rows){ x.type, x.p, x.ld };
    memset(y, 0xff, (size_t)(x.m * O) * sizeof(*y));
    for (int i = 0; i < EXPERTS; i++) {
        l[i] = (struct w4_linear){ .layout = (enum forge_w4a16_layout)(i % 4),
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
        struct truth truth;
        float *z;

        if (!part.m)
            continue;
        z = multiply(w[i], &part, O);
        truth = truth_of(&l[i], &part);
        compare(&truth, O + SPARE, z);
        free(truth.of);
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

/* ---- several linears of the same x ---- */

/* Of the third the order of inputs differs, the fourth has zeros, the fifth other groups:
 * each has the bits that it has by itself. */
static void several_of(enum forge_w4a16_layout layout, int64_t rows,
                       enum forge_w4a16_type type)
{
    enum { N = 5, I = 640 };
    struct rows x = { .type = type, .m = rows };
    struct w4_linear l[N];
    const struct forge_w4a16 *w[N];
    struct forge_w4a16_rows from, to[N];
    char why[200];

    fill(&x, I);
    from = (struct forge_w4a16_rows){ x.type, x.p, x.ld };
    for (int i = 0; i < N; i++) {
        int64_t o = i % 2 ? 1160 : 264;
        size_t n = (size_t)(rows * (o + SPARE)) * sizeof(float);

        l[i] = (struct w4_linear){ .layout = layout,
                                   .o = o,
                                   .i = I,
                                   .group = i < 4 ? 128 : 64,
                                   .zeros = i == 3,
                                   .scales = FORGE_W4A16_F16 };
        if (i == 2 && layout != FORGE_W4A16_AWQ)
            l[i].g_idx = shuffled(I, 128);
        make(&l[i]);
        w[i] = prepare(&l[i]);
        to[i] =
            (struct forge_w4a16_rows){ FORGE_W4A16_F32,
                                       memset(malloc(n), 0xff, n), o + SPARE };
    }
    CHECK(!forge_w4a16_several(w, N, &from, rows, to, why, sizeof(why)));
    CHECK(!forge_w4a16_several(w, 0, &from, rows, to, why, sizeof(why)));
    for (int i = 0; i < N; i++) {
        float *z = multiply(w[i], &x, l[i].o);

        same(z, to[i].p, rows, l[i].o);
        free(z);
        free(to[i].p);
    }
    for (int i = 0; i < N; i++) {
        forge_w4a16_release((struct forge_w4a16 *)(uintptr_t)w[i]);
        release(&l[i]);
    }
    free(x.p);
    free(x.value);
}

static void test_several(void)
{
    for (int layout = 0; layout <= FORGE_W4A16_GPTQ; layout++)
        for (int64_t rows = 1; rows < 90; rows += 43) {
            several_of((enum forge_w4a16_layout)layout, rows, FORGE_W4A16_BF16);
            several_of((enum forge_w4a16_layout)layout, rows, FORGE_W4A16_F32);
        }
}

/* ---- memory ---- */

/* No copy of codes; less than a twelfth of them is held beside. */
static void test_memory(void)
{
    for (int layout = 0; layout <= FORGE_W4A16_GPTQ_V2; layout++) {
        struct w4_linear l = { .layout = (enum forge_w4a16_layout)layout,
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

/* Codes of 15 and equal inputs as large as they get: the largest sums. */
static void largest_of(enum forge_w4a16_layout layout, float x)
{
    enum { O = 136, I = 256, GROUP = 128 };
    static uint32_t codes[O * I / 8];
    static float scales[O * I / GROUP], row[I], y[O];
    uint16_t half[I];
    struct forge_w4a16_linear l = { .layout = layout,
                                    .outputs = O,
                                    .inputs = I,
                                    .group = GROUP,
                                    .codes = codes,
                                    .scales = scales,
                                    .scale_type = FORGE_W4A16_F32 };
    struct forge_w4a16_rows to = { FORGE_W4A16_F32, y, O };
    struct forge_w4a16 *w;
    char why[200];

    memset(codes, 0xff, sizeof(codes));
    for (size_t i = 0; i < ARRAY_LEN(scales); i++)
        scales[i] = 1;
    for (int i = 0; i < I; i++) {
        row[i] = x;
        half[i] = bf16_from_f32(x);
    }
    CHECK(forge_w4a16_prepare(&w, &l, why, sizeof(why)) == 0);
    for (int t = 0; t < 2 * W4_AWQ_BY_CPU; t++) {
        struct forge_w4a16_rows from = { t % 2 ? FORGE_W4A16_BF16 :
                                                 FORGE_W4A16_F32,
                                         t % 2 ? (void *)half : (void *)row,
                                         I };

        w4_awq_set((enum w4_awq)(t / 2));
        CHECK(forge_w4a16_multiply(w, &from, 1, &to, why, sizeof(why)) == 0);
        for (int o = 0; o < O; o++)
            CHECK(y[o] == (15 - 8) * x * I); /* exact */
    }
    w4_awq_set(W4_AWQ_BY_CPU);
    forge_w4a16_release(w);
}

static void test_largest(void)
{
    for (int layout = 0; layout <= FORGE_W4A16_GPTQ_V2; layout++) {
        largest_of((enum forge_w4a16_layout)layout, 1.9921875F);
        largest_of((enum forge_w4a16_layout)layout, -1.9921875F);
    }
}

int main(void)
{
    static const struct shape more[] = { { 1032, 64, 32 },
                                         { 48, 2560, 32 },
                                         { 4232, 544, 32 }, /* wide */
                                         { 4232, 544, 128 },
                                         /* parts and units end within groups */
                                         { 136, 1344, 96 },
                                         { 136, 1280, 320 } };

    each_shape(one, more, ARRAY_LEN(more));
    each_level(test_dense);
    each_level(test_wide);
    each_level(test_largest);
    each_level(test_grouped);
    each_level(test_several);
    test_memory();
    return 0;
}
