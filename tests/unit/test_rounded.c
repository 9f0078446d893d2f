/* Products of operands that are rounded to bf16: against sums in double of the rounded
 * numbers, for every way in which an operand may lie, at every level of CPU. */
#include <math.h>
#include <stdlib.h>

#include "common/math/dtype.h"
#include "common/math/rounded.h"
#include "common/math/threads.h"
#include "test.h"

static uint64_t state = 5;

static float next_number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int64_t)state >> 40) * 0x1p-22F;
}

static float *numbers(int64_t n)
{
    float *x = malloc((size_t)n * sizeof(*x));

    for (int64_t i = 0; i < n; i++)
        x[i] = next_number();
    return x;
}

static double nearest(float x)
{
    return (double)f32_from_bf16(bf16_from_f32(x));
}

/* Element (i, j) of op(X), X of rows ld apart. */
static double element(const float *x, bool transposed, int64_t ld, int64_t i,
                      int64_t j)
{
    return nearest(transposed ? x[j * ld + i] : x[i * ld + j]);
}

static void one(int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool adds,
                int64_t pad)
{
    struct sgemm g = { .ta = ta, .tb = tb, .m = m, .n = n, .k = k };
    struct err e;
    float *a, *b, *c, *before;

    g.lda = (ta ? m : k) + pad;
    g.ldb = (tb ? k : n) + pad;
    g.ldc = n + pad;
    g.beta = adds;
    g.a = a = numbers((ta ? k : m) * g.lda);
    g.b = b = numbers((tb ? n : k) * g.ldb);
    g.c = c = numbers(m * g.ldc);
    before = malloc((size_t)(m * g.ldc) * sizeof(*before));
    for (int64_t i = 0; i < m * g.ldc; i++)
        before[i] = c[i];
    CHECK(rounded_gemm(&g, &e) == 0);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < g.ldc; j++) {
            float old = before[i * g.ldc + j];
            double sum = adds ? (double)old : 0, size = fabs((double)old);

            for (int64_t t = 0; t < k && j < n; t++) {
                double x =
                    element(a, ta, g.lda, i, t) * element(b, !tb, g.ldb, j, t);

                sum += x;
                size += fabs(x);
            }
            if (j < n)
                CHECK(fabs((double)c[i * g.ldc + j] - sum) <= 1e-6 * size);
            else
                CHECK(c[i * g.ldc + j] == old);
        }
    free(a);
    free(b);
    free(c);
    free(before);
}

static void test_ways(void)
{
    for (int way = 0; way < 8; way++) {
        one(67, 70, 131, way & 1, way & 2, way & 4, 0);
        one(70, 33, 16, way & 1, way & 2, way & 4, 5);
        one(1, 97, 64, way & 1, way & 2, way & 4, 0);
    }
    one(48, 600, 300, false, true, false, 0);
}

/* y = x op(B), or y += x op(B), with B packed once. */
static void test_packed(void)
{
    enum { M = 37, N = 83, K = 51 };
    float *x = numbers(M * K), *b = numbers(N * K), y[M * N];
    struct rounded_operand o;
    uint16_t room[M * K];
    struct err e;

    for (int way = 0; way < 4; way++) {
        bool tb = way & 1, add = way & 2;

        for (int64_t i = 0; i < M * N; i++)
            y[i] = 3;
        CHECK(rounded_pack(&o, b, tb, 0, N, K, &e) == 0);
        rounded_multiply(&o, x, M, room, y, add);
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++) {
                double sum = add ? 3 : 0, size = sum;

                for (int64_t t = 0; t < K; t++) {
                    double z = nearest(x[i * K + t]) *
                               element(b, !tb, tb ? K : N, j, t);

                    sum += z;
                    size += fabs(z);
                }
                CHECK(fabs((double)y[i * N + j] - sum) <= 1e-6 * size);
            }
        rounded_release(&o);
    }
    free(x);
    free(b);
}

static void test_limit(void)
{
    CHECK(!rounded(4096));
    rounded_set(true);
    CHECK(rounded(4096) && !rounded(8));
    rounded_set(false);
}

int main(void)
{
    test_limit();
    each_level(test_ways);
    each_level(test_packed);
    return 0;
}
