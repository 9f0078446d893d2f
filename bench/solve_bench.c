/* solve_bench - factor and solve one layer, against the classic form in double
 * precision first, then for the clock: solve_bench [N [OUTPUTS [LEVEL OF CPU]]].
 *
 * Counted: outputs n² + n³/3 operations.  The time is that of the factor and
 * the solver, without the extra pass that measures round-to-nearest. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "gptq/solve/solve.h"
#include "peak.h"

enum { GROUP = 128, ROUNDS = 5 };

static struct err err;

static void *must(void *p)
{
    if (!p)
        die_err(&err);
    return p;
}

static float noise(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*s >> 32) / 2147483648.0f;
}

/* A Hessian of n correlated inputs whose sizes differ: tridiagonal with a
 * bit of rank one, in closed form so that large ones cost nothing. */
static float *make_hessian(uint64_t n)
{
    float *h = must(mem_pages(n * (n + 1) / 2 * sizeof(*h), "bench", &err));

    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j <= i; j++) {
            float size = (1 + (float)(i * 7 % 13)) * (1 + (float)(j * 7 % 13));

            h[i * (i + 1) / 2 + j] =
                size * (powf(0.9f, (float)(i - j)) + (i == j ? 0.2f : 0.1f));
        }
    return h;
}

struct layer {
    uint64_t rows, cols;
    float *w, *h;
    uint32_t *meta;
    uint8_t *codes;
};

static void make_layer(struct layer *l, uint64_t rows, uint64_t cols)
{
    uint64_t seed = 1, groups = quant_groups(cols, GROUP);

    l->rows = rows;
    l->cols = cols;
    l->h = make_hessian(cols);
    l->w = must(mem_pages(rows * cols * sizeof(float), "bench", &err));
    l->meta = must(mem_alloc(rows * groups * 4, "bench", &err));
    l->codes = must(mem_pages(rows * cols / 2, "bench", &err));
    for (uint64_t i = 0; i < rows * cols; i++)
        l->w[i] = noise(&seed) + noise(&seed) + noise(&seed);
    for (uint64_t i = 0; i < rows * groups; i++)
        l->meta[i] = quant_meta(0.3f, 8, true, 4, DT_F16);
}

static double solve(struct layer *l, double *factored)
{
    struct factor_params fp = { .cols = l->cols,
                                .group = GROUP,
                                .order = ORDER_ACTIVATION,
                                .damping = 0.01 };
    struct solve_params sp = { .rows = l->rows,
                               .cols = l->cols,
                               .group = GROUP,
                               .dtype = DT_F32,
                               .scale_dtype = DT_F16 };
    struct solve_result r;
    struct factor *f;
    double start = seconds();

    if (solve_cpu.build(&f, &fp, l->h, &err))
        die(E_BUG, "cannot factor: %s", err.msg);
    *factored = seconds() - start;
    if (solve_cpu.run(&sp, l->w, l->meta, f, l->codes, &r, &err) < 0)
        die_err(&err);
    factor_free(f);
    return seconds() - start;
}

/* ---- the classic form, in double ---- */

static void factor_of_inverse(double *a, uint64_t n) /* a = U, H⁻¹ = UᵀU */
{
    double *b = must(mem_zero(n * n, sizeof(*b), "bench", &err));

    for (uint64_t i = 0; i < n; i++)
        b[i * n + i] = 1;
    for (uint64_t c = 0; c < n; c++) /* Gauss-Jordan: H is well behaved */
        for (uint64_t r = 0; r < n; r++) {
            double f = a[r * n + c] / a[c * n + c];

            for (uint64_t k = 0; r != c && k < n; k++) {
                a[r * n + k] -= f * a[c * n + k];
                b[r * n + k] -= f * b[c * n + k];
            }
        }
    for (uint64_t i = 0; i < n * n; i++)
        b[i] /= a[i / n * n + i / n];
    memset(a, 0, n * n * sizeof(*a));
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = i; j < n; j++) {
            double s = b[i * n + j];

            for (uint64_t k = 0; k < i; k++)
                s -= a[k * n + i] * a[k * n + j];
            a[i * n + j] = i == j ? sqrt(s) : s / a[i * n + i];
        }
    free(b);
}

static uint64_t differences(const struct layer *l, const uint32_t *order)
{
    uint64_t n = l->cols, bad = 0;
    double *u = must(mem_alloc(n * n * sizeof(*u), "bench", &err)), mean = 0;
    double *w = must(mem_alloc(n * sizeof(*w), "bench", &err));

    for (uint64_t i = 0; i < n; i++)
        mean += l->h[i * (i + 3) / 2] / (double)n;
    for (uint64_t i = 0; i < n * n; i++) {
        uint64_t r = order[i / n], c = order[i % n], t = r > c ? r : c;

        u[i] = l->h[t * (t + 1) / 2 + (r < c ? r : c)];
        u[i] += r == c ? 0.01 * mean : 0;
    }
    factor_of_inverse(u, n);
    for (uint64_t row = 0; row < l->rows; row++) {
        for (uint64_t j = 0; j < n; j++)
            w[j] = l->w[row * n + order[j]];
        for (uint64_t j = 0; j < n; j++) {
            uint64_t at = row * n + order[j];
            struct qgrid g = quant_grid(
                l->meta[row * quant_groups(n, GROUP) + order[j] / GROUP],
                DT_F16);
            int code = quant_code((float)w[j], g);
            double e = (w[j] - quant_value(code, g)) / u[j * n + j];

            bad += code != (l->codes[at / 2] >> (at % 2 * 4) & 15);
            for (uint64_t k = j; k < n; k++)
                w[k] -= e * u[j * n + k];
        }
    }
    free(u);
    free(w);
    return bad;
}

static void check(void)
{
    struct layer l;
    struct factor_params fp = {
        .cols = 256, .group = GROUP, .order = ORDER_ACTIVATION, .damping = 0.01
    };
    struct factor *f;
    uint32_t order[256];
    uint64_t bad;
    double t;

    make_layer(&l, 64, 256);
    solve(&l, &t);
    if (solve_cpu.build(&f, &fp, l.h, &err))
        die(E_BUG, "cannot factor");
    for (int i = 0; i < 256; i++)
        order[i] = f->input[255 - i];
    bad = differences(&l, order);
    factor_free(f);
    printf("check: %llu of %d codes differ from the classic form in double\n",
           (unsigned long long)bad, 64 * 256);
    if (bad > 64 * 256 / 1000)
        exit(1);
}

int main(int argc, char **argv)
{
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 4096;
    uint64_t rows = argc > 2 ? strtoull(argv[2], NULL, 10) : n;
    double flop = (double)rows * (double)n * (double)n + pow((double)n, 3) / 3;
    double best = 1e9, factor = 0, peak;
    struct layer l;

    base_init(argv[0]);
    if (cpu_choose(argc > 3 ? argv[3] : NULL, &err) < 0)
        die_err(&err);
    /* The kernels that OpenBLAS takes by itself, whatever the shell says. */
    unsetenv("OPENBLAS_CORETYPE");
    threads_set(0);
    check();
    make_layer(&l, rows, n);
    peak = peak_f32();
    for (int i = 0; i < ROUNDS; i++) {
        double f, t = solve(&l, &f);

        if (t < best) {
            best = t;
            factor = f;
        }
    }
    printf("solve %llu x %llu, %d threads: %.0f ms (factor %.0f ms), "
           "%.0f GFLOP/s, %.0f %% of %.0f (f32 multiply-adds)\n",
           (unsigned long long)rows, (unsigned long long)n, threads_count(),
           best * 1e3, factor * 1e3, flop / best / 1e9,
           100 * flop / best / peak, peak / 1e9);
    return 0;
}
