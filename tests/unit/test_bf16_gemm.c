/* Products of bf16 matrices at every level of CPU that this one has: against
 * sums in double, for every number of rows that the kernels know; the same bytes
 * however the work is cut, and at all levels that promise it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/bf16_gemm.h"
#include "common/math/bf16_kernel_list.h"
#include "common/math/cpu.h"
#include "common/math/dtype.h"
#include "test.h"

static uint64_t seed = 3;

static void fill(uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = bf16_from_f32((float)(int32_t)(seed >> 32) / 2147483648.0f);
    }
}

static double dot(const uint16_t *a, const uint16_t *b, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)f32_from_bf16(a[i]) * f32_from_bf16(b[i]);
    return sum;
}

static uint16_t *packed(const uint16_t *w, int64_t n, int64_t k)
{
    uint16_t *p = malloc(bf16_gemm_packed(n, k) * sizeof(*p));

    for (int64_t o = 0; o < n; o += bf16_gemm_group()) {
        int64_t rows = n - o < bf16_gemm_group() ? n - o : bf16_gemm_group();

        bf16_gemm_pack(p + o * bf16_gemm_depth(k), w + o * k, rows, k, 0,
                       (rows + GEMM_COLS - 1) / GEMM_COLS);
    }
    return p;
}

struct shape {
    int64_t m, n, k, first;
};

struct operands {
    struct shape s;
    int64_t ldx, ldy;
    uint16_t *x, *w;
    float *y, *widened; /* what the first level made */
};

/* Against sums in double, and each row alone. */
static void check(const struct operands *o, const uint16_t *p)
{
    int64_t n = o->s.n - o->s.first, k = o->s.k;
    int64_t some = n < GEMM_COLS ? n : GEMM_COLS;
    float part[GEMM_COLS];

    for (int64_t r = 0; r < o->s.m; r++) {
        const uint16_t *x = o->x + r * o->ldx;
        const float *y = o->y + r * o->ldy;

        for (int64_t c = 0; c < n; c++)
            CHECK(fabs(y[c] - dot(x, o->w + (o->s.first + c) * k, k)) <
                  1e-6 * (double)k);
        for (int64_t c = n; c < o->ldy; c++)
            CHECK(y[c] == 77); /* nothing else is written */
        bf16_gemm(&(struct bf16_gemm){ x, o->ldx, 1, k, p, o->s.n, o->s.first,
                                       some, part, GEMM_COLS, NULL, false, NULL,
                                       0 });
        CHECK(!memcmp(part, y, (size_t)some * sizeof(*part)));
    }
}

/* y by 64 inputs at a time, from the strips x of all. */
static void check_part_strips(const struct operands *o, const uint16_t *x,
                              float *y)
{
    enum { PART = 64 };
    const struct shape *s = &o->s;
    uint16_t *w = malloc((size_t)(s->n * PART) * sizeof(*w));

    for (int64_t at = 0; at < s->k; at += PART) {
        int64_t k = s->k - at < PART ? s->k - at : PART;
        uint16_t *p;

        for (int64_t r = 0; r < s->n; r++)
            memcpy(w + r * k, o->w + r * s->k + at, (size_t)k * sizeof(*w));
        p = packed(w, s->n, k);
        bf16_gemm(&(struct bf16_gemm){
            NULL, 0, s->m, k, p, s->n, s->first, s->n - s->first, y, o->ldy,
            NULL, at > 0, x + at * GEMM_STRIP, bf16_gemm_depth(s->k) });
        free(p);
    }
    free(w);
}

/* Packed rows of x give the same bytes. */
static void check_strips(const struct operands *o, const uint16_t *p)
{
    const struct shape *s = &o->s;
    size_t n = bf16_gemm_strips_packed(s->m, s->k);
    size_t bytes = (size_t)(s->m * o->ldy) * sizeof(float);
    uint16_t *x = aligned_alloc(64, n * sizeof(*x));
    float *y = malloc(bytes);

    for (int64_t i = 0; i < s->m * o->ldy; i++)
        y[i] = 77;
    memset(x, 0x7f, n * sizeof(*x));
    bf16_gemm_pack_strips(x, o->x, o->ldx, s->m, s->k);
    bf16_gemm(&(struct bf16_gemm){ NULL, 0, s->m, s->k, p, s->n, s->first,
                                   s->n - s->first, y, o->ldy, NULL, false, x,
                                   0 });
    CHECK(!memcmp(y, o->y, bytes));
    check_part_strips(o, x, y);
    CHECK(!memcmp(y, o->y, bytes));
    free(x);
    free(y);
}

static void at_level(const struct operands *o, enum cpu_level l)
{
    const struct shape *s = &o->s;
    size_t bytes = (size_t)(s->m * o->ldy) * sizeof(float);
    uint16_t *p;

    cpu_set(l);
    for (int64_t i = 0; i < s->m * o->ldy; i++)
        o->y[i] = 77;
    p = packed(o->w, s->n, s->k);
    bf16_gemm(&(struct bf16_gemm){ o->x, o->ldx, s->m, s->k, p, s->n, s->first,
                                   s->n - s->first, o->y, o->ldy, NULL, false,
                                   NULL, 0 });
    check(o, p);
    if (bf16_gemm_strips())
        check_strips(o, p);
    if (l == CPU_PLAIN)
        memcpy(o->widened, o->y, bytes);
    if (l != CPU_AMX && l != CPU_NEONBF16)
        CHECK(!memcmp(o->widened, o->y, bytes));
    free(p);
}

static void one(int64_t m, int64_t n, int64_t k, int64_t first)
{
    struct operands o = { .s = { m, n, k, first },
                          .ldx = k + 6,
                          .ldy = n - first + 3 };

    o.x = malloc((size_t)(m * o.ldx) * sizeof(*o.x));
    o.w = malloc((size_t)(n * k) * sizeof(*o.w));
    o.y = malloc((size_t)(m * o.ldy) * sizeof(*o.y));
    o.widened = malloc((size_t)(m * o.ldy) * sizeof(*o.y));
    fill(o.x, m * o.ldx);
    fill(o.w, n * k);
    for (int l = 0; l < CPU_LEVELS; l++)
        if (cpu_has((enum cpu_level)l))
            at_level(&o, (enum cpu_level)l);
    free(o.x);
    free(o.w);
    free(o.y);
    free(o.widened);
}

#ifdef __x86_64__
enum { PAIRS = 37 };

/* The kernel of vdpbf16ps, which Intel's CPUs do not take, against the one that
 * widens: the same bytes. */
static void test_pairs(int rows, enum kernel_sum how)
{
    uint16_t x[12 * 2 * PAIRS], w[PAIRS * 2 * GEMM_COLS];
    float wide[12 * 2 * PAIRS], y[12 * GEMM_COLS], z[12 * GEMM_COLS];
    const struct kernel_strip a = { x, 4 * PAIRS, 4, NULL };
    const struct kernel_strip b = { wide, 8 * PAIRS, 8, NULL };

    fill(x, ARRAY_LEN(x));
    fill(w, ARRAY_LEN(w));
    for (size_t i = 0; i < ARRAY_LEN(x); i++)
        wide[i] = f32_from_bf16(x[i]);
    for (size_t i = 0; i < ARRAY_LEN(y); i++)
        y[i] = z[i] = (float)i / 7;
    kernel_avx512bf16.run(rows, y, GEMM_COLS, &a, w, PAIRS, how, w);
    kernel_avx512.run(rows, z, GEMM_COLS, &b, w, PAIRS, how, w);
    CHECK(!memcmp(y, z, sizeof(y)));
}

static void test_all_pairs(void)
{
    for (int rows = 1; rows <= 12 && cpu_has(CPU_AVX512BF16); rows++) {
        test_pairs(rows, SUM_NEW);
        test_pairs(rows, SUM_CONTINUE);
        test_pairs(rows, SUM_ADD);
    }
}
#else
static void test_all_pairs(void)
{
}
#endif

int main(void)
{
    test_all_pairs();
    for (int64_t m = 1; m <= 33; m++)
        one(m, 70, 34, 0);
    one(30, 64, 512, 32);
    one(13, 97, 2, 64);
    one(70, 40, 1, 0);
    one(5, 1, 131, 0);
    one(100, 70, 1190, 32); /* several blocks of inputs */
    one(97, 33, 1057, 0);
    one(3, 1700, 500, 32); /* several groups of columns */
    return 0;
}
