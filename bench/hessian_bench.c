/* hessian_bench - accumulate a Hessian of bf16 inputs, against double precision
 * first, then against ssyrk of the same numbers: hessian_bench [C [TOKENS]].
 *
 * Counted: tokens C (C + 1) operations, of the lower triangle. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/math/blas.h"
#include "hessian/hessian.h"
#include "peak.h"

static struct err err;

static void *must(void *p)
{
    if (!p)
        die_err(&err);
    return p;
}

static void fill(uint16_t *x, float *f, uint64_t n)
{
    uint64_t s = 1;

    for (uint64_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = bf16_from_f32((float)(int32_t)(s >> 32) / 1e9f);
        f[i] = f32_from_bf16(x[i]);
    }
}

static double accumulate(uint64_t cols, uint64_t tokens, const uint16_t *x,
                         float *out)
{
    struct hessian_shape shape = { .cols = cols, .dtype = DT_BF16 };
    struct hessian_part part = { .x = x, .dtype = DT_BF16, .tokens = tokens };
    struct hessian *h;
    const float *data;
    double start = seconds(), t;

    if (hessian_open(&h, &shape, &err) < 0 || hessian_add(h, &part, &err) < 0 ||
        hessian_finish(h, &data, &err) < 0)
        die_err(&err);
    t = seconds() - start;
    for (uint64_t i = 0; out && i < cols * (cols + 1) / 2; i++)
        out[i] = data[i];
    hessian_close(h);
    return t;
}

static void check(const uint16_t *x, const float *f)
{
    enum { C = 300, T = 5000 };
    float *h = must(mem_alloc(C * (C + 1) / 2 * sizeof(*h), "bench", &err));
    double worst = 0;

    accumulate(C, T, x, h);
    for (int i = 0; i < C; i += 7)
        for (int j = 0; j <= i; j += 3) {
            double sum = 0;

            for (int t = 0; t < T; t++)
                sum += (double)f[t * C + i] * f[t * C + j];
            worst = fmax(worst, fabs(h[i * (i + 1) / 2 + j] - 2 * sum / T));
        }
    /* the diagonal is 2 * 2.147^2 / 3 */
    printf("check: largest error %.1e of the diagonal\n", worst / 3.07);
    if (!(worst / 3.07 < 5e-6))
        exit(1);
    free(h);
}

int main(int argc, char **argv)
{
    uint64_t cols = argc > 1 ? strtoull(argv[1], NULL, 10) : 4096;
    uint64_t tokens = argc > 2 ? strtoull(argv[2], NULL, 10) : 16384;
    uint64_t n = cols * tokens > 5000 * 300 ? cols * tokens : 5000 * 300;
    double flop = (double)tokens * (double)cols * (double)(cols + 1);
    double ours = 1e9, theirs = 1e9, start, peak;
    uint16_t *x = must(mem_alloc(n * sizeof(*x), "bench", &err));
    float *f = must(mem_alloc(n * sizeof(*f), "bench", &err));
    float *c = must(mem_zero(cols * cols, sizeof(*c), "bench", &err));

    base_init(argv[0]);
    /* The kernels that OpenBLAS takes by itself, whatever the shell says. */
    unsetenv("OPENBLAS_CORETYPE");
    threads_set(0);
    if (blas_open(&err) < 0)
        die_err(&err);
    blas_own_threads(true);
    fill(x, f, n);
    check(x, f);
    peak = peak_pairs();
    for (int i = 0; i < 4; i++) {
        double t = accumulate(cols, tokens, x, NULL);

        ours = t < ours ? t : ours;
        start = seconds();
        blas_ssyrk_lower_t((int)cols, (int)tokens, 1, f, (int)cols, 0, c,
                           (int)cols);
        t = seconds() - start;
        theirs = t < theirs ? t : theirs;
    }
    printf("hessian %llu inputs, %llu tokens, %d threads: %.0f ms, "
           "%.0f GFLOP/s, %.2fx ssyrk (%.0f ms, %.0f GFLOP/s)",
           (unsigned long long)cols, (unsigned long long)tokens,
           threads_count(), ours * 1e3, flop / ours / 1e9, theirs / ours,
           theirs * 1e3, flop / theirs / 1e9);
    if (peak > 0)
        printf(", %.0f %% of %.0f (pairs of bf16)", 100 * flop / ours / peak,
               peak / 1e9);
    printf("\n");
    return 0;
}
