/* refined.h - what the tests of the solver on the GPU that refines share: inputs of
 * a case, factors of both orders, and what comes out. */
#ifndef FORGE_TEST_GPU_REFINED_H
#define FORGE_TEST_GPU_REFINED_H

#include "gpu.h"

#include "gptq/solve/solve_refined.h"

/* By what targets are moved. */
enum moved { NOT, DRIFT, OUTPUT };

/* What a case is made of. */
struct made {
    struct refined_params p;
    float *h, *drift, *output, *target; /* target: room for it, or NULL */
    void *w;
    const struct fp8_matrix *fp8; /* w as the GPU gets it; or NULL */
    uint32_t *nearest;            /* grids of round-to-nearest */
    struct refined_hessian gpu, cpu;
};

struct outcome {
    uint32_t *meta;
    uint8_t *codes;
    struct refined_result r;
};

/* Factors of both orders on the GPU; the CPU gets the same. */
static inline void open_hessians(struct made *m, int starts)
{
    static const enum factor_order orders[] = { ORDER_GROUP, ORDER_INSIDE };
    const struct solve_params *p = &m->p.solve;
    struct factor_params q = { .cols = p->cols,
                               .group = p->group,
                               .damping = 0.01 };

    m->gpu = m->cpu = (struct refined_hessian){ .starts = starts };
    for (int i = 0; i < starts; i++) {
        struct cuda_matrix x = { .h = m->h, .damping = 0.01, .whole = true };
        struct factor *f;

        q.order = orders[i];
        OK(factor_plan(&f, &q, m->h, e));
        x.input = f->input;
        x.dead = f->dead;
        x.mean = f->mean;
        OK(solve_functions()->factors_build(&f->gpu, gpu, p->cols, &x, 1, e));
        CHECK(!x.failed);
        m->gpu.factor[i] = f;
        OK(tile_plan_open(&m->gpu.plan[i], f, &q, m->h, e));
        m->cpu.factor[i] = host_factor(f->gpu, 0, &x, p->cols);
        OK(tile_plan_open(&m->cpu.plan[i], m->cpu.factor[i], &q, m->h, e));
    }
    if (!m->drift && !m->output)
        return;
    OK(solve_functions()->factors_drift(m->gpu.factor[0]->gpu, 0, m->drift, e));
    m->gpu.target.plan = &m->gpu.plan[0];
    OK(target_open(&m->cpu.target, &m->cpu.plan[0], m->drift, e));
}

static inline void close_hessians(struct made *m)
{
    target_close(&m->cpu.target);
    for (int i = 0; i < m->gpu.starts; i++) {
        solve_functions()->factors_free(m->gpu.factor[i]->gpu);
        m->gpu.factor[i]->gpu = NULL;
        factor_free(m->gpu.factor[i]);
        tile_plan_close(&m->gpu.plan[i]);
        tile_plan_close(&m->cpu.plan[i]);
        host_factor_free(m->cpu.factor[i]);
    }
}

static inline struct outcome solve(const struct made *m, bool on_gpu,
                                   int sweeps, struct cuda_context *context)
{
    const struct solve_params *s = &m->p.solve;
    size_t metas = s->rows * quant_groups(s->cols, s->group) * 4;
    struct refined_params p = m->p;
    struct outcome o = { room(metas),
                         room(s->rows * s->cols / 2),
                         { { 0, 0 }, 0, 0 } };

    p.sweeps = sweeps;
    memcpy(o.meta, m->nearest, metas);
    if (on_gpu) {
        struct cuda_refined x = { .w = m->fp8 ? NULL : m->w,
                                  .fp8 = m->fp8,
                                  .meta = o.meta,
                                  .codes = o.codes,
                                  .output = m->output,
                                  .target = m->target,
                                  .fisher = p.fisher };

        OK(solve_functions()->solve_refined(context, &p, &m->gpu, &x, 1, e));
        o.r = x.result;
    } else
        OK(refined_solve(&p, &m->cpu, m->w, o.meta, o.codes, &o.r, e));
    return o;
}

static inline void outcome_free(struct outcome *o)
{
    free(o->meta);
    free(o->codes);
}

/* E of the size that the loop has: some percent of H. */
static inline void make_drift(struct made *m)
{
    uint64_t n = m->p.solve.cols;

    m->drift = room(n * n * 4);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++) {
            uint64_t a = i > j ? i : j, b = i > j ? j : i;

            m->drift[i * n + j] =
                (0.03f + 0.01f * normal()) * m->h[a * (a + 1) / 2 + b];
        }
}

/* G of weights that are some percent off, or F of some percent; in one row of 16
 * too far. */
static inline void make_output(struct made *m)
{
    const struct solve_params *p = &m->p.solve;
    uint64_t n = p->cols;
    float *w = room(n * 4);

    m->output = room(p->rows * n * 4);
    for (uint64_t r = 0; r < p->rows; r++) {
        const char *from = m->w;

        CHECK(to_f32(w, from + r * n * dtype_bits(p->dtype) / 8, p->dtype, n));
        for (uint64_t i = 0; i < n; i++)
            w[i] *= (m->p.gap ? 0 : 1) + (r % 16 == 5 ? 2 : 0.05f) * normal();
        for (uint64_t i = 0; i < n; i++) {
            double sum = 0;

            for (uint64_t j = 0; j < n; j++)
                sum += (double)w[j] *
                       m->h[i > j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i];
            m->output[r * n + i] = (float)sum;
        }
    }
    free(w);
}

static inline struct made make(const struct refined_params *p, float *h,
                               enum moved moved)
{
    const struct solve_params *s = &p->solve;
    struct made m = { .p = *p, .h = h };

    m.w = weights(s->dtype, s->rows * s->cols);
    m.nearest = grids(s, m.w, p->block.symmetric);
    if (moved == DRIFT)
        make_drift(&m);
    if (moved == OUTPUT)
        make_output(&m);
    m.p.output = m.output;
    return m;
}

static inline void made_free(struct made *m)
{
    free(m->w);
    free(m->nearest);
    free(m->drift);
    free(m->output);
}

static inline float *make_hessian(uint64_t cols)
{
    float *h = random_hessian(cols, cols + 200);

    kill_input(h, cols, rnd() % cols);
    return h;
}

#endif
