/* The GPU's solver that chooses grids and refines beside the CPU's, on the
 * GPU's factors.  Sums differ in their order and products are of three parts of
 * bf16, so a candidate or a code that ties may be the other one, and the rest of
 * its row follows: codes that differ are counted and bounded, losses compared.
 * The loss is also computed in double from the codes and grids that came back. */
#include "refined.h"

#include "gptq/solve/fisher_descent.h"

static uint64_t total_codes, total_differ;

/* What the codes stand for, [rows, cols]. */
static float *values_of(const struct made *m, const struct outcome *o)
{
    const struct solve_params *p = &m->p.solve;
    uint64_t n = p->cols, groups = quant_groups(n, p->group);
    float *q = room(p->rows * n * 4);
    uint8_t *codes = room(n);

    for (uint64_t r = 0; r < p->rows; r++) {
        quant_unpack_row(codes, o->codes + r * n / 2, n, 4);
        quant_dequantize_row(q + r * n, codes, n, o->meta + r * groups,
                             p->group, p->scale_dtype);
    }
    free(codes);
    return q;
}

/* e H eT, e = x - y, summed over all rows, in double. */
static double norm_of(const struct made *m, const float *x, const float *y)
{
    const struct solve_params *p = &m->p.solve;
    uint64_t n = p->cols;
    double sum = 0;

    for (uint64_t r = 0; r < p->rows; r++, x += n, y += n)
        for (uint64_t i = 0; i < n; i++) {
            double part = 0, d = (double)x[i] - y[i];

            for (uint64_t j = 0; j < i; j++)
                part += m->h[i * (i + 1) / 2 + j] * ((double)x[j] - y[j]);
            sum += d * (2 * part + m->h[i * (i + 1) / 2 + i] * d);
        }
    return sum;
}

/* (w - q) H (w - q)T; the targets are the weights themselves. */
static double loss_of(const struct made *m, const struct outcome *o)
{
    size_t n = m->p.solve.rows * m->p.solve.cols;
    float *w = room(n * 4), *q = values_of(m, o);
    double loss;

    CHECK(to_f32(w, m->w, m->p.solve.dtype, n));
    loss = norm_of(m, w, q);
    free(w);
    free(q);
    return loss;
}

static void compare(const struct made *m, int sweeps)
{
    const struct solve_params *p = &m->p.solve;
    size_t bytes = p->rows * p->cols / 2;
    uint64_t metas = p->rows * quant_groups(p->cols, p->group), grids = 0;
    struct outcome a = solve(m, true, sweeps, gpu),
                   c = solve(m, false, sweeps, NULL);
    struct outcome again = solve(m, true, sweeps, gpu);
    struct outcome first = solve(m, true, 0, gpu);
    uint64_t differ = count_codes(a.codes, c.codes, bytes);
    double off = a.r.solve.loss / c.r.solve.loss - 1;

    for (uint64_t i = 0; i < metas; i++)
        grids += a.meta[i] != c.meta[i];
    printf("[%llu, %llu] group %llu, %d orders, %d sweeps%s%s: %llu codes of "
           "%llu differ, %llu grids of %llu; loss %.6g, %+.2g of the CPU's; "
           "without refinement %.6g; nearest %+.2g\n",
           (unsigned long long)p->rows, (unsigned long long)p->cols,
           (unsigned long long)p->group, m->gpu.starts, sweeps,
           m->p.block.symmetric ? "" : ", asymmetric",
           m->drift || m->output ? ", moved" : "", (unsigned long long)differ,
           (unsigned long long)(2 * bytes), (unsigned long long)grids,
           (unsigned long long)metas, a.r.solve.loss, off, first.r.solve.loss,
           a.r.solve.loss_nearest / c.r.solve.loss_nearest - 1);
    fflush(stdout);
    CHECK(!memcmp(a.codes, again.codes, bytes));
    CHECK(!memcmp(a.meta, again.meta, metas * 4));
    /* by G - W H targets themselves differ, see check_target() */
    CHECK(fabs(off) < (m->output ? 5e-3 : 1e-3));
    CHECK(fabs(a.r.solve.loss_nearest / c.r.solve.loss_nearest - 1) < 1e-3);
    CHECK(fabs(a.r.loss_plain / c.r.loss_plain - 1) < 1e-3);
    CHECK(a.r.solve.loss <= first.r.solve.loss * (1 + 1e-6));
    if (!m->drift && !m->output)
        CHECK(fabs(loss_of(m, &a) / a.r.solve.loss - 1) < 1e-4);
    if (!m->output) { /* or the targets differ, by the rounding of G - W H */
        total_codes += 2 * bytes;
        total_differ += differ;
    }
    outcome_free(&a);
    outcome_free(&c);
    outcome_free(&again);
    outcome_free(&first);
}

/* Where targets go: what the GPU is off by is little of the way, in H's norm. */
static void check_target(struct made *m)
{
    const struct solve_params *p = &m->p.solve;
    size_t n = p->rows * p->cols;
    float *w = room(n * 4), *a = room(n * 4), *c = room(n * 4);
    struct outcome o;
    double off;

    CHECK(to_f32(w, m->w, p->dtype, n));
    m->target = a;
    o = solve(m, true, 0, gpu);
    outcome_free(&o);
    m->target = NULL;
    m->p.target = c;
    o = solve(m, false, 0, NULL);
    outcome_free(&o);
    m->p.target = NULL;
    off = sqrt(norm_of(m, a, c) / norm_of(m, c, w));
    printf("  targets are %.2g of their way off\n", off);
    CHECK(off < 2e-3);
    free(w);
    free(a);
    free(c);
}

/* tr(F E H ET) of an outcome, E = values - target, in double. */
static double coupled_loss(const struct made *m, const struct outcome *o,
                           const float *target, const float *f)
{
    const struct solve_params *p = &m->p.solve;
    uint64_t n = p->cols, rows = p->rows;
    double *d = room(rows * n * 8), *dh = room(rows * n * 8), loss = 0;
    float *q = values_of(m, o);

    for (uint64_t i = 0; i < rows * n; i++)
        d[i] = (double)q[i] - target[i];
    memset(dh, 0, rows * n * 8);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t j = 0; j < n; j++)
                dh[r * n + j] +=
                    d[r * n + i] *
                    m->h[i > j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i];
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t k = 0; k < rows; k++) {
            double sum = 0;

            for (uint64_t i = 0; i < n; i++)
                sum += dh[r * n + i] * d[k * n + i];
            loss += sum * f[r > k ? r * (r + 1) / 2 + k : k * (k + 1) / 2 + r];
        }
    free(d);
    free(dh);
    free(q);
    return loss;
}

/* Rows together: the GPU takes them in another order than the CPU, which begins
 * with the same codes, and comes as far down, in NumPy within 5 % of the way. */
static void check_fisher(struct made *m, float *f)
{
    enum { sweeps = 6 };
    const struct solve_params *p = &m->p.solve;
    float *target = room(p->rows * p->cols * 4);
    struct outcome alone, a, again, c;
    struct fisher_descent d = { .rows = p->rows,
                                .group = p->group,
                                .scale_dtype = p->scale_dtype,
                                .sweeps = sweeps,
                                .plan = &m->cpu.plan[0],
                                .hessian = m->h,
                                .fisher = f };
    double before, gpu_loss, cpu_loss;

    m->target = target;
    alone = solve(m, true, m->p.sweeps, gpu);
    c = solve(m, true, m->p.sweeps, gpu);
    m->target = NULL;
    d.target = target;
    d.meta = c.meta;
    OK((int)fisher_descent(&d, c.codes, &c.r.solve.loss, e));
    m->p.fisher = f;
    m->p.fisher_sweeps = sweeps;
    a = solve(m, true, m->p.sweeps, gpu);
    again = solve(m, true, m->p.sweeps, gpu);
    m->p.fisher = NULL;
    before = coupled_loss(m, &alone, target, f);
    gpu_loss = coupled_loss(m, &a, target, f);
    cpu_loss = coupled_loss(m, &c, target, f);
    printf("  rows together: %.6g -> %.6g, the CPU's %.6g\n", before, gpu_loss,
           cpu_loss);
    CHECK(cpu_loss < before && gpu_loss < before);
    CHECK(gpu_loss - cpu_loss < 0.05 * (before - cpu_loss));
    CHECK(!memcmp(a.codes, again.codes, p->rows * p->cols / 2));
    CHECK(!memcmp(a.meta, alone.meta,
                  p->rows * quant_groups(p->cols, p->group) * 4));
    if (!m->drift && !m->output)
        CHECK(fabs(loss_of(m, &a) / a.r.solve.loss - 1) < 1e-4);
    outcome_free(&alone);
    outcome_free(&a);
    outcome_free(&again);
    outcome_free(&c);
    free(f);
    free(target);
}

/* In little memory rows go in several batches: cuBLAS may then sum otherwise,
 * which moves a target by G - W H as compare() says, and a code that ties.  Where
 * nothing moves targets the bound was 1e-4; that 1e-3 is needed there is not shown. */
static void check_batches(const struct made *m, int sweeps)
{
    const struct solve_params *p = &m->p.solve;
    struct outcome a = solve(m, true, sweeps, gpu), b;
    struct cuda_refined x = { .w = m->w, .output = m->output };
    struct cuda_context *small;
    struct err why;
    uint64_t rows = (p->rows + 63) / 64 * 64,
             cols = (p->cols + 127) / 128 * 128;

    /* room for half of the rows, beside what moves targets */
    OK(device->open(
        &small, 0,
        (m->drift || m->output ? 12 * cols * cols : 0) + 15 * rows * cols, e));
    b = solve(m, true, sweeps, small);
    CHECK(fabs(a.r.solve.loss / b.r.solve.loss - 1) < 1e-3);
    outcome_free(&b);
    OK(device->open(&small, 0, 1 << 10, e));
    x.meta = a.meta;
    x.codes = a.codes;
    CHECK(solve_functions()->solve_refined(small, &m->p, &m->gpu, &x, 1,
                                           &why) == E_TEMP);
    outcome_free(&a);
}

/* The same codes and grids of both. */
static void check_same(const struct made *m, struct outcome *a,
                       struct outcome *b)
{
    const struct solve_params *p = &m->p.solve;

    CHECK(!memcmp(a->codes, b->codes, p->rows * p->cols / 2));
    CHECK(!memcmp(a->meta, b->meta,
                  p->rows * quant_groups(p->cols, p->group) * 4));
    outcome_free(a);
    outcome_free(b);
}

/* Weights in 8-bit floats give what their bf16 give, with room for all rows and for
 * half of them. */
static void check_fp8(void)
{
    const struct refined_params p = { .solve = { 300, 1024, 128, 4, DT_BF16,
                                                 DT_F16, false, false },
                                      .block = { true, true, 12, DT_F16 },
                                      .sweeps = 2 };
    float *h = make_hessian(p.solve.cols);
    struct made m = make(&p, h, NOT);
    struct cuda_context *small;
    struct outcome a, b;
    struct fp8_matrix x;
    uint16_t *w;

    free(m.w);
    free(m.nearest);
    x = random_fp8(DT_F8_E4M3, p.solve.rows, p.solve.cols, &w);
    m.w = w;
    m.nearest = grids(&p.solve, w, true);
    open_hessians(&m, 1);
    OK(device->open(&small, 0, 15 * 320 * p.solve.cols, e));
    for (int i = 0; i < 2; i++) {
        m.fp8 = NULL;
        a = solve(&m, true, p.sweeps, i ? small : gpu);
        m.fp8 = &x;
        b = solve(&m, true, p.sweeps, i ? small : gpu);
        check_same(&m, &a, &b);
    }
    close_hessians(&m);
    made_free(&m);
    free_fp8(&x);
    free(h);
}

static void check(const struct refined_params *p, int starts, enum moved moved,
                  bool batches)
{
    uint64_t rows = p->solve.rows, cols = p->solve.cols;
    float *h = make_hessian(cols);
    struct made m = make(p, h, moved);

    open_hessians(&m, starts);
    compare(&m, p->sweeps);
    if (moved != NOT)
        check_target(&m);
    if (rows * cols < 200000) {
        check_fisher(&m, random_hessian(rows, 3 * rows));
        check_fisher(&m, heads_hessian(rows, 64, 1));
        check_fisher(&m, heads_hessian(rows, 32, 9));
    }
    if (batches)
        check_batches(&m, p->sweeps);
    close_hessians(&m);
    made_free(&m);
    free(h);
}

/* The smallest first: a third argument says how many, for sanitizers. */
static const struct {
    struct refined_params p;
    int starts;
    enum moved moved;
    bool batches;
} cases[] = {
    { .p = { .solve = { 129, 200, 32, 4, DT_F16, DT_BF16, false, false },
             .block = { false, false, 5, DT_BF16 },
             .sweeps = 12 },
      .starts = 1 },
    { .p = { .solve = { 64, 264, 128, 4, DT_BF16, DT_F16, false, false },
             .block = { true, true, 12, DT_F16 },
             .sweeps = 2,
             .alpha = 0.75,
             .beta = 0.75 },
      .starts = 2,
      .moved = DRIFT },
    { .p = { .solve = { 300, 1024, 128, 4, DT_BF16, DT_F16, false, false },
             .block = { true, true, 12, DT_F16 },
             .sweeps = 2 },
      .starts = 1,
      .batches = true },
    { .p = { .solve = { 64, 264, 128, 4, DT_BF16, DT_F16, false, false },
             .block = { true, true, 8, DT_F16 },
             .sweeps = 2,
             .gap = true,
             .beta = 0.75 },
      .starts = 1,
      .moved = OUTPUT },
    { .p = { .solve = { 300, 1024, 128, 4, DT_BF16, DT_F16, false, false },
             .block = { true, true, 24, DT_F16 },
             .sweeps = 12,
             .alpha = 0.75,
             .beta = 0.75 },
      .starts = 2,
      .moved = OUTPUT,
      .batches = true },
    /* 40 in the last group */
    { .p = { .solve = { 129, 1192, 64, 4, DT_F32, DT_BF16, false, false },
             .block = { true, false, 24, DT_BF16 },
             .sweeps = 12 },
      .starts = 2 },
    /* more than two super-blocks */
    { .p = { .solve = { 1000, 2176, 128, 4, DT_F16, DT_F16, false, false },
             .block = { false, false, 7, DT_F16 },
             .sweeps = 3 },
      .starts = 2 },
    { .p = { .solve = { 1000, 2176, 128, 4, DT_F16, DT_F16, false, false },
             .block = { true, true, 1, DT_F16 } },
      .starts = 1 },
};

int main(int argc, char **argv)
{
    size_t n = argc > 3 ? strtoull(argv[3], NULL, 0) : ARRAY_LEN(cases);

    gpu_open(argc, argv, &solve_plugin);
    for (size_t i = 0; i < n && i < ARRAY_LEN(cases); i++)
        check(&cases[i].p, cases[i].starts, cases[i].moved, cases[i].batches);
    if (n >= ARRAY_LEN(cases))
        check_fp8();
    printf("%llu of %llu codes differ\n", (unsigned long long)total_differ,
           (unsigned long long)total_codes);
    CHECK(n < ARRAY_LEN(cases) || total_differ <= total_codes / 100);
    return 0;
}
