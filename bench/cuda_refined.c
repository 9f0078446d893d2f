/* cuda_refined.c - a linear with the default effort and with the best one: grids
 * chosen on the way, codes refined, targets moved; from RAM to RAM through the
 * plug-in's table, and the same by the CPU.
 *
 *     cuda_refined PLUG-IN [ROWS COLS]
 *
 * The Hessian is that of a first-order process whose inputs differ in size,
 * weights are random.  The two sides make their own factors; their losses are
 * compared. */
#include <stdio.h>

#include "../tests/gpu/gpu.h"
#include "common/math/threads.h"
#include "gptq/solve/solve_cost.h"
#include "gptq/solve/solve_refined.h"

enum { REPEATS = 5, GROUP = 128 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct linear {
    struct factor_params factor;
    struct refined_params p;
    float *h, *drift, *output, *fisher;
    void *w;
    uint32_t *nearest, *meta;
    uint8_t *codes;
    size_t metas;
};

static void *pages(size_t n)
{
    void *p;

    OK((p = mem_pages(n, "bench", e)) ? 0 : e->code);
    memset(p, 0xa5, n);
    return p;
}

static void make(struct linear *l, uint64_t rows, uint64_t cols)
{
    float *size = room(cols * 4), *near = room(cols * 4), *to;

    l->factor =
        (struct factor_params){ .cols = cols, .group = GROUP, .damping = 0.01 };
    l->p.solve = (struct solve_params){ .rows = rows,
                                        .cols = cols,
                                        .group = GROUP,
                                        .dtype = DT_BF16,
                                        .scale_dtype = DT_F16 };
    l->p.alpha = l->p.beta = 0.75;
    for (uint64_t i = 0; i < cols; i++) {
        size[i] = expf(0.7f * normal());
        near[i] = powf(0.7f, (float)i);
    }
    to = l->fisher = pages(rows * (rows + 1) / 2 * 4);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j <= i; j++)
            *to++ = size[i % cols] * size[j % cols] * near[(i - j) % cols];
    to = l->h = pages(cols * (cols + 1) / 2 * 4);
    l->drift = pages(cols * cols * 4);
    l->output = pages(rows * cols * 4);
    for (uint64_t i = 0; i < cols; i++)
        for (uint64_t j = 0; j < cols; j++) {
            float x = size[i] * size[j] * near[i > j ? i - j : j - i];

            if (j <= i)
                *to++ = x;
            l->drift[i * cols + j] = 0.03f * x;
        }
    l->w = weights(DT_BF16, rows * cols);
    for (uint64_t i = 0; i < rows * cols; i++) {
        uint16_t x = ((const uint16_t *)l->w)[i];

        /* what the diagonal alone would give, and somewhat more */
        l->output[i] =
            1.05f * f32_from_bf16(x) * size[i % cols] * size[i % cols];
    }
    l->nearest = grids(&l->p.solve, l->w, true);
    l->metas = rows * quant_groups(cols, GROUP) * 4;
    l->meta = room(l->metas);
    l->codes = room(rows * cols / 2);
    free(size);
    free(near);
}

/* Factors of all orders on the GPU, as refined_open() has them made. */
static void open_gpu(struct refined_hessian *b, const struct linear *l,
                     int starts)
{
    static const enum factor_order orders[] = { ORDER_GROUP, ORDER_INSIDE };

    *b = (struct refined_hessian){ .starts = starts };
    for (int i = 0; i < starts; i++) {
        struct factor_params q = l->factor;
        struct cuda_matrix m = { .h = l->h,
                                 .damping = q.damping,
                                 .whole = true };

        q.order = orders[i];
        OK(factor_plan(&b->factor[i], &q, l->h, e));
        m.input = b->factor[i]->input;
        m.dead = b->factor[i]->dead;
        m.mean = b->factor[i]->mean;
        OK(solve_functions()->factors_build(&b->factor[i]->gpu, gpu, q.cols, &m,
                                            1, e));
        OK(tile_plan_open(&b->plan[i], b->factor[i], &q, l->h, e));
    }
    OK(solve_functions()->factors_drift(b->factor[0]->gpu, 0, l->drift, e));
    b->target.plan = &b->plan[0];
}

static void close_gpu(struct refined_hessian *b)
{
    b->target.plan = NULL;
    for (int i = 0; i < b->starts; i++) {
        solve_functions()->factors_free(b->factor[i]->gpu);
        b->factor[i]->gpu = NULL;
    }
    refined_close(b);
}

/* Median seconds of the GPU. */
static double time_gpu(struct linear *l, const struct refined_params *p,
                       const struct refined_hessian *b,
                       struct refined_result *r)
{
    struct cuda_refined m = { .w = l->w,
                              .meta = l->meta,
                              .codes = l->codes,
                              .output = p->output,
                              .fisher = p->fisher };
    double t[REPEATS + 1];

    for (int i = 0; i <= REPEATS; i++) {
        memcpy(l->meta, l->nearest, l->metas);
        t[i] = now();
        OK(solve_functions()->solve_refined(gpu, p, b, &m, 1, e));
        t[i] = now() - t[i];
        *r = m.result;
    }
    for (int i = 1; i <= REPEATS; i++) /* the first one warms up */
        for (int k = i + 1; k <= REPEATS; k++)
            if (t[k] < t[i]) {
                double x = t[i];

                t[i] = t[k];
                t[k] = x;
            }
    return t[1 + REPEATS / 2];
}

static void bench(struct linear *l, enum effort effort, bool moved)
{
    struct effort_plan plan = effort_plan(effort);
    struct refined_params p = l->p;
    struct refined_hessian b;
    struct refined_result on_gpu, on_cpu;
    double gpu_open_s = now(), gpu_s, cpu_open_s, cpu_s, together_s = 0;

    p.block = (struct block_params){ true, true, plan.factors, DT_F16, 4 };
    p.sweeps = plan.sweeps;
    p.output = moved ? l->output : NULL;
    open_gpu(&b, l, plan.starts);
    gpu_open_s = now() - gpu_open_s;
    if (!moved)
        OK(solve_functions()->factors_drift(b.factor[0]->gpu, 0, NULL, e));
    gpu_s = time_gpu(l, &p, &b, &on_gpu);
    if (effort == EFFORT_BEST) {
        struct refined_params q = p;
        struct refined_result r;

        q.fisher = l->fisher;
        q.fisher_sweeps = FISHER_SWEEPS_BEST;
        together_s = time_gpu(l, &q, &b, &r) - gpu_s;
    }
    close_gpu(&b);
    cpu_open_s = now();
    OK(refined_open(&b, &l->factor, plan.starts, l->h, false, e));
    if (moved)
        OK(target_open(&b.target, &b.plan[0], l->drift, e));
    cpu_open_s = now() - cpu_open_s;
    memcpy(l->meta, l->nearest, l->metas);
    cpu_s = now();
    OK(refined_solve(&p, &b, l->w, l->meta, l->codes, &on_cpu, e));
    cpu_s = now() - cpu_s;
    refined_close(&b);
    printf("%s effort%s, [%llu, %llu], RAM to RAM: %.1f ms (factors and "
           "moments %.0f); CPU, %d threads: %.0f ms (%.0f); loss %+.1e of "
           "the CPU's\n",
           effort == EFFORT_BEST ? "best" : "default",
           moved ? ", targets moved" : "", (unsigned long long)p.solve.rows,
           (unsigned long long)p.solve.cols, 1e3 * gpu_s, 1e3 * gpu_open_s,
           threads_count(), 1e3 * cpu_s, 1e3 * cpu_open_s,
           on_gpu.solve.loss / on_cpu.solve.loss - 1);
    if (effort == EFFORT_BEST)
        printf("rows together, %d sweeps at most: %.0f ms more\n",
               FISHER_SWEEPS_BEST, 1e3 * together_s);
    fflush(stdout);
    CHECK(fabs(on_gpu.solve.loss / on_cpu.solve.loss - 1) < 1e-3);
}

int main(int argc, char **argv)
{
    struct linear l = { .h = NULL };
    bool given = argc == 4;

    gpu_open(2, argv, &solve_plugin);
    make(&l, given ? strtoull(argv[2], NULL, 0) : 2048,
         given ? strtoull(argv[3], NULL, 0) : 7168);
    bench(&l, EFFORT_DEFAULT, false);
    bench(&l, EFFORT_DEFAULT, true);
    bench(&l, EFFORT_BEST, true);
    return 0;
}
