/* The GPU's solver beside the CPU's, on the GPU's factors: sums differ in their
 * order and by 2^-16 of what is pushed, so a weight that lies between two
 * codes may take the other one, and the rest of its row follows.  Codes that
 * differ are counted and bounded, losses compared. */
#include "gpu.h"

static uint64_t total_codes, total_differ;

static void compare(const struct solve_params *p, const struct cuda_factors *f,
                    const struct cuda_matrix *h, struct cuda_module *m, int i)
{
    size_t bytes = p->rows * p->cols / 2;
    uint8_t *codes = room(bytes);
    struct factor *host = host_factor(f, i, h, p->cols);
    struct solve_result r;
    uint64_t differ;
    double off, off_nearest;

    OK(solve_cpu.run(p, m->w, m->meta, host, codes, &r, e));
    differ = count_codes(codes, m->codes, bytes);
    off = m->result.loss / r.loss - 1;
    off_nearest = p->compare ? m->result.loss_nearest / r.loss_nearest - 1 : 0;
    printf("[%llu, %llu] group %llu%s: %llu codes of %llu differ; loss %.6g, "
           "%+.2g of the CPU's; nearest %.6g, %+.2g\n",
           (unsigned long long)p->rows, (unsigned long long)p->cols,
           (unsigned long long)p->group, p->nearest ? ", nearest" : "",
           (unsigned long long)differ, (unsigned long long)(2 * bytes),
           m->result.loss, off, m->result.loss_nearest, off_nearest);
    /* of many rows the CPU estimates it: solve_compare_sum() */
    CHECK(fabs(off) < 2e-3 &&
          fabs(off_nearest) <
              (solve_compare_step(p->rows) > 1 && !p->nearest ? 0.05 : 1e-3));
    CHECK(p->nearest ? !differ : differ <= 2 * bytes / 200 + 64);
    if (!p->nearest) {
        total_codes += 2 * bytes;
        total_differ += differ;
    }
    host_factor_free(host);
    free(codes);
}

/* n Hessians, each of them `share` modules'. */
static void check(struct solve_params p, int n, int share, bool natural,
                  bool symmetric)
{
    struct cuda_matrix *h = calloc((size_t)n, sizeof(*h));
    int all = n * share;
    struct cuda_module *m = calloc((size_t)all, sizeof(*m));
    size_t bytes = p.rows * p.cols / 2;
    uint8_t *again = room(bytes);
    struct cuda_factors *f;

    CHECK(h && m);
    for (int i = 0; i < n; i++) {
        float *x = random_hessian(p.cols, p.cols + 200);

        kill_input(x, p.cols, rnd() % p.cols);
        h[i].h = x;
        h[i].input = random_order(p.cols);
        for (uint64_t c = 0; c < p.cols && natural; c++)
            ((uint32_t *)(uintptr_t)h[i].input)[c] = (uint32_t)(p.cols - 1 - c);
        h[i].dead = dead_columns(x, h[i].input, p.cols);
        h[i].mean = mean_diagonal(x, p.cols);
        h[i].damping = 0.01;
    }
    for (int i = 0; i < all; i++) {
        m[i].w = weights(p.dtype, p.rows * p.cols);
        m[i].meta = grids(&p, m[i].w, symmetric);
        m[i].codes = room(bytes);
    }
    OK(solve_functions()->factors_build(&f, gpu, p.cols, h, n, e));
    OK(solve_functions()->solve(gpu, &p, f, m, all, e));
    memcpy(again, m[all - 1].codes, bytes);
    OK(solve_functions()->solve(gpu, &p, f, m, all, e));
    CHECK(!memcmp(again, m[all - 1].codes, bytes));
    for (int i = 0; i < all; i++) {
        compare(&p, f, h + i / share, m + i, i / share);
        free((void *)(uintptr_t)m[i].w);
        free((void *)(uintptr_t)m[i].meta);
        free(m[i].codes);
    }
    for (int i = 0; i < n; i++) {
        free((void *)(uintptr_t)h[i].h);
        free((void *)(uintptr_t)h[i].input);
        free((void *)(uintptr_t)h[i].dead);
    }
    solve_functions()->factors_free(f);
    free(again);
    free(h);
    free(m);
}

int main(int argc, char **argv)
{
    struct solve_params p = { .rows = 200,
                              .cols = 512,
                              .group = 128,
                              .dtype = DT_BF16,
                              .scale_dtype = DT_F16,
                              .compare = true };

    gpu_open(argc, argv, &solve_plugin);
    check(p, 1, 1, true, true);
    check(p, 3, 1, false, false);
    p.nearest = true;
    check(p, 1, 2, false, false);
    p = (struct solve_params){ .rows = 129,
                               .cols = 1192,
                               .group = 64,
                               .dtype = DT_F32,
                               .scale_dtype = DT_BF16,
                               .compare = true };
    check(p, 2, 2, false, true);
    p = (struct solve_params){ .rows = 8,
                               .cols = 72,
                               .group = 32,
                               .dtype = DT_F16,
                               .scale_dtype = DT_F16 };
    check(p, 1, 1, true, false);
    p = (struct solve_params){ .rows = 700,
                               .cols = 1536,
                               .group = 128,
                               .dtype = DT_BF16,
                               .scale_dtype = DT_F16,
                               .compare = true };
    check(p, 1, 3, true, true);
    printf("%llu of %llu codes differ\n", (unsigned long long)total_differ,
           (unsigned long long)total_codes);
    return 0;
}
