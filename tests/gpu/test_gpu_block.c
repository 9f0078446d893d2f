/* The solver's kernel alone: up to 128 inputs are one block, for which no
 * product of cuBLAS runs, so that compute-sanitizer's racecheck sees nothing
 * but our own kernels (it breaks on cuBLAS's).  Codes against the CPU's. */
#include "gpu.h"

static void check(uint64_t rows, uint64_t cols, enum dtype scale, int n)
{
    struct solve_params p = { .rows = rows,
                              .cols = cols,
                              .group = 32,
                              .dtype = DT_BF16,
                              .scale_dtype = scale };
    struct cuda_matrix h[4] = { 0 };
    struct cuda_module m[4] = { 0 };
    struct cuda_factors *f;
    uint64_t differ = 0;

    for (int i = 0; i < n; i++) {
        h[i].h = random_hessian(cols, cols + 100);
        h[i].input = random_order(cols);
        h[i].dead = dead_columns(h[i].h, h[i].input, cols);
        h[i].mean = mean_diagonal(h[i].h, cols);
        h[i].damping = 0.01;
        m[i].w = weights(p.dtype, rows * cols);
        m[i].meta = grids(&p, m[i].w, i % 2);
        m[i].codes = room(rows * cols / 2);
    }
    OK(solve_functions()->factors_build(&f, gpu, cols, h, n, e));
    OK(solve_functions()->solve(gpu, &p, f, m, n, e));
    for (int i = 0; i < n; i++) {
        struct factor *host = host_factor(f, i, h + i, cols);
        uint8_t *codes = room(rows * cols / 2);
        struct solve_result r;

        OK(solve_cpu.run(&p, m[i].w, m[i].meta, host, codes, &r, e));
        differ += count_codes(codes, m[i].codes, rows * cols / 2);
        CHECK(fabs(m[i].result.loss / r.loss - 1) < 1e-3);
        host_factor_free(host);
        free(codes);
        free((void *)(uintptr_t)h[i].h);
        free((void *)(uintptr_t)h[i].input);
        free((void *)(uintptr_t)h[i].dead);
        free((void *)(uintptr_t)m[i].w);
        free((void *)(uintptr_t)m[i].meta);
        free(m[i].codes);
    }
    printf("%d x [%d, %d]: %d codes differ\n", n, (int)rows, (int)cols,
           (int)differ);
    CHECK(differ <= (uint64_t)n * rows * cols / 200 + 32);
    solve_functions()->factors_free(f);
}

/* Weights in 8-bit floats give the codes of their bf16, two modules of one factor. */
static void check_fp8(enum dtype t, uint64_t rows, uint64_t cols)
{
    struct solve_params p = { .rows = rows,
                              .cols = cols,
                              .group = 32,
                              .dtype = DT_BF16,
                              .scale_dtype = DT_F16 };
    struct cuda_matrix h = { .h = random_hessian(cols, cols + 100),
                             .input = random_order(cols),
                             .damping = 0.01 };
    struct cuda_module m[4] = { 0 };
    struct fp8_matrix x[2];
    struct cuda_factors *f;
    uint16_t *w[2];

    h.dead = dead_columns(h.h, h.input, cols);
    h.mean = mean_diagonal(h.h, cols);
    for (int i = 0; i < 4; i++) {
        if (i < 2)
            x[i] = random_fp8(t, rows, cols, &w[i]);
        m[i].w = i < 2 ? w[i] : NULL;
        m[i].fp8 = i < 2 ? NULL : &x[i - 2];
        m[i].meta = grids(&p, w[i % 2], false);
        m[i].codes = room(rows * cols / 2);
    }
    OK(solve_functions()->factors_build(&f, gpu, cols, &h, 1, e));
    OK(solve_functions()->solve(gpu, &p, f, m, 2, e));
    OK(solve_functions()->solve(gpu, &p, f, m + 2, 2, e));
    for (int i = 0; i < 4; i++) {
        CHECK(!memcmp(m[i].codes, m[i % 2].codes, rows * cols / 2));
        CHECK(m[i].result.loss == m[i % 2].result.loss);
    }
    for (int i = 0; i < 4; i++) {
        free((void *)(uintptr_t)m[i].meta);
        free(m[i].codes);
        if (i < 2) {
            free_fp8(&x[i]);
            free(w[i]);
        }
    }
    free((void *)(uintptr_t)h.h);
    free((void *)(uintptr_t)h.input);
    free((void *)(uintptr_t)h.dead);
    solve_functions()->factors_free(f);
}

int main(int argc, char **argv)
{
    gpu_open(argc, argv, &solve_plugin);
    check_fp8(DT_F8_E4M3, 200, 128);
    check_fp8(DT_F8_E5M2, 131, 120);
    check(64, 128, DT_F16, 1);
    check(100, 72, DT_BF16, 3);
    if (argc <= 3) /* under a checker the small ones do */
        check(128 * 140, 128, DT_F16, 1);
    return 0;
}
