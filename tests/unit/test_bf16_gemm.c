/* Products of bf16 matrices against sums in double, for every number of rows
 * that the kernels know, and the same bytes however the work is cut. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/bf16_gemm.h"
#include "common/dtype.h"
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
    uint16_t *room = malloc((size_t)(GEMM_COLS * k) * sizeof(*room));

    memcpy(p, w, (size_t)(n * k) * sizeof(*p));
    bf16_gemm_pack(p, n, k, 0, (n + GEMM_COLS - 1) / GEMM_COLS, room);
    free(room);
    return p;
}

static void one(int64_t m, int64_t n, int64_t k, int64_t first)
{
    int64_t ldx = k + 6, ldy = n - first + 3, columns = n - first;
    uint16_t *x = malloc((size_t)(m * ldx) * sizeof(*x));
    uint16_t *w = malloc((size_t)(n * k) * sizeof(*w)), *p;
    float *y = malloc((size_t)(m * ldy) * sizeof(*y)), part[GEMM_COLS];

    fill(x, m * ldx);
    fill(w, n * k);
    for (int64_t i = 0; i < m * ldy; i++)
        y[i] = 77;
    p = packed(w, n, k);
    bf16_gemm(&(struct bf16_gemm){ x, ldx, m, k, p, first, columns, y, ldy });
    for (int64_t r = 0; r < m; r++) {
        for (int64_t c = 0; c < columns; c++)
            CHECK(fabs(y[r * ldy + c] - dot(x + r * ldx, w + (first + c) * k,
                                            k)) < 1e-6 * (double)k);
        for (int64_t c = columns; c < ldy; c++)
            CHECK(y[r * ldy + c] == 77); /* nothing else is written */
        columns = columns < GEMM_COLS ? columns : GEMM_COLS;
        bf16_gemm(&(struct bf16_gemm){ x + r * ldx, ldx, 1, k, p, first,
                                       columns, part, GEMM_COLS });
        CHECK(!memcmp(part, y + r * ldy, (size_t)columns * sizeof(*part)));
        columns = n - first;
    }
    free(x);
    free(w);
    free(p);
    free(y);
}

int main(void)
{
    if (!bf16_gemm_usable(2))
        return 77;
    CHECK(!bf16_gemm_usable(3));
    for (int64_t m = 1; m <= 2 * GEMM_ROWS + 1; m++)
        one(m, 70, 34, 0);
    one(30, 64, 512, 32);
    one(13, 97, 2, 64);
    one(5, 1, 130, 0);
    return 0;
}
