/* The GPU's factors against Cholesky in double; damping grows for the matrix
 * that needs it, and for no other. */
#include "gpu.h"

/* Lower Cholesky in place, by rows; false: not positive definite. */
static bool cholesky(double *a, uint64_t n)
{
    for (uint64_t j = 0; j < n; j++) {
        for (uint64_t i = j; i < n; i++) {
            double s = a[i * n + j];

            for (uint64_t k = 0; k < j; k++)
                s -= a[i * n + k] * a[j * n + k];
            if (i == j && s <= 0)
                return false;
            a[i * n + j] = i == j ? sqrt(s) : s / a[j * n + j];
        }
    }
    return true;
}

/* Relative error of L of matrix i. */
static double error_of(const struct cuda_factors *f, int which,
                       const struct cuda_matrix *m, uint64_t n)
{
    double *a = room(n * n * 8), wrong = 0, all = 0;
    float *l = room(n * n * 4);

    for (uint64_t r = 0; r < n; r++)
        for (uint64_t c = 0; c <= r; c++) {
            uint64_t i = m->input[r], j = m->input[c];

            a[r * n + c] =
                i > j ? m->h[i * (i + 1) / 2 + j] : m->h[j * (j + 1) / 2 + i];
            if (r == c)
                a[r * n + c] += (m->dead[r] ? 1 : 0) + m->lambda;
        }
    CHECK(cholesky(a, n));
    OK(solve_functions()->factors_read(f, which, l, e));
    for (uint64_t r = 0; r < n; r++)
        for (uint64_t c = 0; c < n; c++) {
            double want = c <= r ? a[r * n + c] : 0;

            CHECK(isfinite(l[r * n + c]));
            wrong += (l[r * n + c] - want) * (l[r * n + c] - want);
            all += want * want;
        }
    free(a);
    free(l);
    return sqrt(wrong / all);
}

static void fill(struct cuda_matrix *m, uint64_t cols, uint64_t tokens)
{
    float *h = random_hessian(cols, tokens);

    kill_input(h, cols, rnd() % cols);
    m->h = h;
    m->input = random_order(cols);
    m->dead = dead_columns(h, m->input, cols);
    m->mean = mean_diagonal(h, cols);
    m->damping = 0.01;
}

static void release(struct cuda_matrix *m)
{
    free((void *)(uintptr_t)m->h);
    free((void *)(uintptr_t)m->input);
    free((void *)(uintptr_t)m->dead);
}

static void check(uint64_t cols, int n)
{
    struct cuda_matrix *m = calloc((size_t)n, sizeof(*m));
    struct cuda_factors *f;
    double worst = 0;

    CHECK(m);
    for (int i = 0; i < n; i++)
        fill(m + i, cols, cols * 2);
    OK(solve_functions()->factors_build(&f, gpu, cols, m, n, e));
    for (int i = 0; i < n; i++) {
        double x = error_of(f, i, m + i, cols);

        CHECK(!m[i].failed && m[i].n_tried == 1);
        worst = x > worst ? x : worst;
        release(m + i);
    }
    printf("%d matrices of %llu inputs: relative error %.2g\n", n,
           (unsigned long long)cols, worst);
    CHECK(worst < 1e-4);
    solve_functions()->factors_free(f);
    free(m);
}

/* Matrix 1 of 3 needs 10 times the damping, 2 cannot be helped. */
static void check_damping(uint64_t cols, int n)
{
    struct cuda_matrix *m = calloc((size_t)n, sizeof(*m));
    struct cuda_factors *f;

    CHECK(m);
    for (int i = 0; i < n; i++) {
        float *h = random_hessian(cols, cols * 2);
        float factor = i == 1 ? 1.03f : i == 2 ? 9 : 0.1f;

        memset(h, 0, cols * (cols + 1) / 2 * 4);
        for (uint64_t k = 0; k < cols; k++)
            h[k * (k + 1) / 2 + k] = 1;
        h[5 * 6 / 2 + 3] = factor; /* beside ones on the diagonal */
        m[i] = (struct cuda_matrix){
            .h = h, .input = random_order(cols), .mean = 1, .damping = 0.01
        };
        m[i].dead = dead_columns(h, m[i].input, cols);
    }
    OK(solve_functions()->factors_build(&f, gpu, cols, m, n, e));
    for (int i = 0; i < n; i++) {
        CHECK(m[i].n_tried == (i == 1 ? 2 : i == 2 ? 3 : 1));
        CHECK(m[i].failed == (i == 2));
        CHECK(fabs(m[i].lambda - (i == 1 ? 0.1 : i == 2 ? 1 : 0.01)) < 1e-12);
        if (!m[i].failed)
            CHECK(error_of(f, i, m + i, cols) < 1e-5);
        release(m + i);
    }
    solve_functions()->factors_free(f);
    free(m);
}

int main(int argc, char **argv)
{
    gpu_open(argc, argv, &solve_plugin);
    check(8, 1);
    check(96, 2);
    check(300, 9);
    check(512, 3);
    check(1032, 1);
    check_damping(40, 3);
    check_damping(136, 10);
    return 0;
}
