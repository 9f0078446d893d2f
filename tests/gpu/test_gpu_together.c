/* test_gpu_together - modules that share matrices, refined on the GPU in one call,
 * beside the same modules one after the other: PROGRAM PLUG-IN [SEED [CASES]]. */
#include "refined.h"

/* Factors of MATRICES matrices in a call, as those of the singles. */
enum { MATRICES = 2, SHARE = 2, TOGETHER = MATRICES * SHARE };
static void open_together(struct refined_hessian *b, struct factor *shell,
                          const struct made *m, int starts)
{
    *b = (struct refined_hessian){ .starts = starts };
    for (int i = 0; i < starts; i++) {
        struct cuda_matrix x[MATRICES] = { 0 };

        for (int k = 0; k < MATRICES; k++) {
            const struct factor *f = m[k * SHARE].gpu.factor[i];

            x[k] = (struct cuda_matrix){ .h = m[k * SHARE].h,
                                         .input = f->input,
                                         .dead = f->dead,
                                         .mean = f->mean,
                                         .damping = 0.01,
                                         .whole = true };
        }
        shell[i] = *m[0].gpu.factor[i];
        OK(solve_functions()->factors_build(&shell[i].gpu, gpu, shell[i].cols,
                                            x, MATRICES, e));
        b->factor[i] = &shell[i];
        b->plan[i] = m[0].gpu.plan[i];
    }
    for (int k = 0; k < MATRICES && m[0].drift; k++)
        OK(solve_functions()->factors_drift(shell[0].gpu, k, m[k * SHARE].drift,
                                            e));
}

/* Modules that share matrices, all in one call: the same bytes as one after the
 * other.  Losses are summed by products of other shapes.  With p->fisher_sweeps
 * all but the last have the same F. */
static void check_together(const struct refined_params *p, int starts,
                           enum moved moved)
{
    const struct solve_params *s = &p->solve;
    float *fisher[2] = { 0 };
    size_t bytes = s->rows * s->cols / 2;
    size_t metas = s->rows * quant_groups(s->cols, s->group) * 4;
    struct refined_hessian b;
    struct factor shell[REFINED_STARTS];
    struct cuda_refined x[TOGETHER] = { 0 };
    struct outcome one[TOGETHER];
    struct made m[TOGETHER];

    for (int i = 0; i < 2 && p->fisher_sweeps; i++)
        fisher[i] = make_hessian(s->rows);
    for (int i = 0; i < TOGETHER; i++) {
        float *h = i % SHARE ? m[i - 1].h : make_hessian(s->cols);

        m[i] = make(p, h, moved);
        m[i].p.fisher = fisher[i == TOGETHER - 1];
        if (i % SHARE && m[i].drift)
            memcpy(m[i].drift, m[i - 1].drift, s->cols * s->cols * 4);
        open_hessians(&m[i], starts);
        one[i] = solve(&m[i], true, p->sweeps, gpu);
        x[i] = (struct cuda_refined){ .w = m[i].w,
                                      .meta = room(metas),
                                      .codes = room(bytes),
                                      .output = m[i].output,
                                      .fisher = m[i].p.fisher };
        memcpy(x[i].meta, m[i].nearest, metas);
    }
    open_together(&b, shell, m, starts);
    OK(solve_functions()->solve_refined(gpu, p, &b, x, TOGETHER, e));
    for (int i = 0; i < TOGETHER; i++) {
        printf("together, %d: %llu codes differ; loss %+.2g\n", i,
               (unsigned long long)count_codes(x[i].codes, one[i].codes, bytes),
               x[i].result.solve.loss / one[i].r.solve.loss - 1);
        CHECK(!memcmp(x[i].codes, one[i].codes, bytes));
        CHECK(!memcmp(x[i].meta, one[i].meta, metas));
        CHECK(fabs(x[i].result.solve.loss / one[i].r.solve.loss - 1) < 1e-6);
        free(x[i].meta);
        free(x[i].codes);
        outcome_free(&one[i]);
    }
    for (int i = 0; i < 2; i++)
        free(fisher[i]);
    for (int i = 0; i < starts; i++)
        solve_functions()->factors_free(shell[i].gpu);
    for (int i = 0; i < TOGETHER; i++) {
        close_hessians(&m[i]);
        made_free(&m[i]);
        if (i % SHARE)
            free(m[i].h);
    }
}

/* No group is narrower: all matrices have the same columns in each. */
static const struct refined_params together[] = {
    { .solve = { 72, 256, 64, 4, DT_BF16, DT_F16, false, false },
      .block = { true, true, 12, DT_F16 },
      .sweeps = 12,
      .alpha = 0.75 },
    { .solve = { 129, 192, 32, 4, DT_F16, DT_BF16, false, false },
      .block = { false, false, 5, DT_BF16 },
      .sweeps = 1,
      .beta = 0.75 },
    { .solve = { 1000, 1664, 128, 4, DT_BF16, DT_F16, false, false },
      .block = { true, true, 8, DT_F16 },
      .sweeps = 1,
      .alpha = 0.75 },
    { .solve = { 200, 192, 64, 4, DT_BF16, DT_F16, false, false },
      .block = { true, true, 8, DT_F16 },
      .sweeps = 2,
      .fisher_sweeps = 3 },
    { .solve = { 1100, 256, 128, 4, DT_BF16, DT_BF16, false, false },
      .block = { true, true, 8, DT_BF16 },
      .sweeps = 1,
      .beta = 0.75,
      .fisher_sweeps = 2 },
};

int main(int argc, char **argv)
{
    gpu_open(argc, argv, &solve_plugin);
    check_together(&together[0], 2, DRIFT);
    check_together(&together[1], 1, OUTPUT);
    check_together(&together[1], 2, NOT);
    check_together(&together[3], 2, NOT);
    if (argc > 3) /* for sanitizers */
        return 0;
    check_together(&together[2], 1, DRIFT);
    check_together(&together[4], 1, OUTPUT);
    return 0;
}
