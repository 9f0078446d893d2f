/* solve_gpu.c - see solve.h: the factor and the solver on the GPU.
 *
 * The host reads H's diagonal (order, dead inputs, mean), and searches for the
 * place when the GPU has reported an element that is not finite.  The factor
 * stays on the device for all modules that share it. */
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "device/device.h"
#include "device/jobs.h"
#include "gptq/solve/fishers.h"
#include "gptq/solve/solve_refined.h"
#include "gptq/solve/solve_table.h"

static int build_any(struct factor **out, const struct factor_params *p,
                     const float *h, bool whole, struct err *e)
{
    struct cuda_matrix m = { .h = h, .damping = p->damping, .whole = whole };
    struct factor *f;
    int rc;

    *out = NULL;
    if (p->block)
        return err_set(e, E_CONFIG, "the GPU takes no diagonal blocks");
    if (p->cols % 8)
        return err_set(e, E_CONFIG, "the GPU solves inputs in multiples of 8");
    if ((rc = factor_plan(&f, p, h, e)) < 0)
        return rc;
    m.input = f->input;
    m.dead = f->dead;
    m.mean = f->mean;
    f->gpu_free = solve_functions()->factors_free;
    rc = solve_functions()->factors_build(&f->gpu, device_gpu(), p->cols, &m, 1,
                                          e);
    if (!rc && m.bad)
        rc = factor_check(p, h, e);
    if (rc < 0) {
        factor_free(f);
        return rc;
    }
    memcpy(f->tried, m.tried, sizeof(f->tried));
    f->n_tried = m.n_tried;
    f->lambda = m.lambda;
    *out = f;
    return m.failed;
}

static int build(struct factor **f, const struct factor_params *p,
                 const float *h, struct err *e)
{
    return build_any(f, p, h, false, e);
}

int solve_gpu_whole(struct factor **f, const struct factor_params *p,
                    const float *h, struct err *e)
{
    return build_any(f, p, h, true, e);
}

static int run(const struct solve_params *p, const void *w,
               const uint32_t *meta, const struct factor *f, uint8_t *codes,
               struct solve_result *r, struct err *e)
{
    struct cuda_module m = { .w = w, .meta = meta, .codes = codes };
    int rc;

    *r = (struct solve_result){ 0, 0 };
    if (p->bits == 8)
        return err_set(e, E_CONFIG, "the GPU solves codes of 4 bits");
    if (p->of)
        return err_set(e, E_CONFIG, "the GPU solves all rows of a linear");
    if (!f)
        return solve_functions()->nearest(device_gpu(), p, &m, e);
    rc = solve_functions()->solve(device_gpu(), p, f->gpu, &m, 1, e);
    *r = m.result;
    return rc;
}

const struct solve_backend solve_gpu = { .name = "cuda",
                                         .build = build,
                                         .run = run };

/* ---- a batch ---- */

struct batch {
    struct solve_input *in; /* of solve_gpu_batch() */
    const int *job;         /* [n]: which of them form this batch */
    int n;
    struct cuda_matrix *matrix; /* [n] */
    struct cuda_module *module; /* [n * SOLVE_LINEARS] */
    struct cuda_factors *factors;
    /* Of the refined solver: */
    struct cuda_refined *refined;  /* [n * SOLVE_LINEARS] */
    struct factor **later;         /* [n]: plans of an order but the first */
    struct refined_hessian orders; /* of all inputs */
};

/* The linears of the first input that have linear j's shape: their numbers to
 * at, how many is returned; their bits of *done are set. */
static int same_shape(const struct batch *b, int j, int *at, uint32_t *done)
{
    const struct solve_input *first = &b->in[b->job[0]];
    int n = 0;

    if (first->alone) {
        *done |= 1u << j;
        at[0] = j;
        return 1;
    }
    for (int k = j; k < first->n; k++)
        if (solve_same(&first->linear[k].params, &first->linear[j].params)) {
            *done |= 1u << k;
            at[n++] = k;
        }
    return n;
}

/* Solve linear j, and all later linears of the same shape, of all inputs in one
 * call.  Sets their bits of *done. */
static int run_shape(struct batch *b, int j, uint32_t *done, struct err *e)
{
    const struct solve_input *first = &b->in[b->job[0]];
    const struct solve_params *p = &first->linear[j].params;
    int at[SOLVE_LINEARS] = { 0 }, sets = same_shape(b, j, at, done), rc;

    for (int i = 0; i < b->n * sets; i++) {
        const struct solve_input *in = &b->in[b->job[i / sets]];

        b->module[i] =
            (struct cuda_module){ .w = in->linear[at[i % sets]].w,
                                  .fp8 = in->linear[at[i % sets]].fp8,
                                  .meta = in->linear[at[i % sets]].meta,
                                  .codes = in->linear[at[i % sets]].codes };
    }
    rc = solve_functions()->solve(device_gpu(), p, b->factors, b->module,
                                  b->n * sets, e);
    for (int i = 0; i < b->n * sets; i++)
        b->in[b->job[i / sets]].linear[at[i % sets]].result =
            b->module[i].result;
    return rc;
}

/* A diagonal alone is diagonal blocks of one input. */
static int plan_input(struct factor **f, const struct factor_params *p,
                      const struct solve_input *in, struct err *e)
{
    struct factor_params q = *p;

    q.block = in->diagonal ? 1 : 0;
    return factor_plan(f, &q, in->diagonal ? in->diagonal : in->h, e);
}

/* Factors of all inputs in one order; plans[n] as factor_plan() makes them. */
static int build_all(struct batch *b, const struct factor_params *p,
                     struct factor **plans, struct cuda_factors **out,
                     struct err *e)
{
    int rc;

    for (int i = 0; i < b->n; i++) {
        const struct solve_input *in = &b->in[b->job[i]];

        if ((rc = plan_input(&plans[i], p, in, e)) < 0)
            return rc;
        b->matrix[i] = (struct cuda_matrix){ .h = in->h,
                                             .input = plans[i]->input,
                                             .dead = plans[i]->dead,
                                             .mean = plans[i]->mean,
                                             .damping = p->damping,
                                             .prior = (float)in->prior,
                                             .whole = in->refined };
    }
    rc = solve_functions()->factors_build(out, device_gpu(), p->cols, b->matrix,
                                          b->n, e);
    for (int i = 0; i < b->n && !rc; i++) {
        struct factor *f = plans[i];

        memcpy(f->tried, b->matrix[i].tried, sizeof(f->tried));
        f->n_tried = b->matrix[i].n_tried;
        f->lambda = b->matrix[i].lambda;
        if (b->matrix[i].failed)
            rc = err_set(e, E_DATA, "a hessian is not positive definite");
    }
    return rc;
}

/* Plain GPTQ. */
static int run_plain(struct batch *b, struct factor **plans, struct err *e)
{
    const struct solve_input *first = &b->in[b->job[0]];
    uint32_t done = 0;
    int rc = build_all(b, &first->params, plans, &b->factors, e);

    for (int j = 0; j < first->n && !rc; j++)
        if (!(done >> j & 1))
            rc = run_shape(b, j, &done, e);
    solve_functions()->factors_free(b->factors);
    return rc;
}

/* ---- a batch of the refined solver ---- */

static int refine_shape(struct batch *b, int j, uint32_t *done, struct err *e)
{
    const struct solve_input *first = &b->in[b->job[0]];
    struct refined_params p = *first->refined;
    int at[SOLVE_LINEARS] = { 0 }, sets = same_shape(b, j, at, done), rc = 0;

    p.solve = first->linear[j].params;
    for (int i = 0; i < b->n * sets && rc >= 0; i++) {
        const struct solve_input *in = &b->in[b->job[i / sets]];
        int k = at[i % sets];
        size_t metas = p.solve.rows * quant_groups(p.solve.cols, p.solve.group);

        memcpy(in->linear[k].grids, in->linear[k].meta,
               metas * sizeof(*in->linear[k].grids));
        b->refined[i] = (struct cuda_refined){ .w = in->linear[k].w,
                                               .fp8 = in->linear[k].fp8,
                                               .meta = in->linear[k].grids,
                                               .codes = in->linear[k].codes,
                                               .output = in->linear[k].output };
        if (in->fishers)
            rc = fishers_get(in->fishers, in->linear[k].module, p.solve.rows,
                             &b->refined[i].fisher, e);
    }
    if (rc >= 0)
        rc = solve_functions()->solve_refined(device_gpu(), &p, &b->orders,
                                              b->refined, b->n * sets, e);
    if (first->fishers)
        fishers_done(first->fishers);
    for (int i = 0; i < b->n * sets; i++) {
        struct solve_input *in = &b->in[b->job[i / sets]];

        in->linear[at[i % sets]].refined = b->refined[i].result;
    }
    return rc;
}

/* Order `start` of all inputs; the first input's plan has all their factors. */
static int open_order(struct batch *b, int start, struct factor **plans,
                      struct err *e)
{
    const struct solve_input *first = &b->in[b->job[0]];
    struct factor_params p = first->params;
    struct cuda_factors *factors = NULL;
    int rc;

    p.order = refined_order(start);
    rc = build_all(b, &p, plans, &factors, e);
    if (!plans[0]) /* and no factors */
        return rc;
    plans[0]->gpu = factors;
    plans[0]->gpu_free = solve_functions()->factors_free;
    b->orders.factor[start] = plans[0];
    if (!rc)
        rc = tile_plan_open(&b->orders.plan[start], plans[0], &p, first->h, e);
    for (int i = 0; i < b->n && !rc && !start; i++)
        if (b->in[b->job[i]].drift)
            rc = solve_functions()->factors_drift(factors, i,
                                                  b->in[b->job[i]].drift, e);
    return rc;
}

static int run_refined(struct batch *b, struct factor **plans, struct err *e)
{
    const struct solve_input *first = &b->in[b->job[0]];
    uint32_t done = 0;
    int rc;

    b->orders.starts = first->starts;
    b->refined =
        mem_zero((size_t)b->n * SOLVE_LINEARS, sizeof(*b->refined), "solve", e);
    b->later = mem_zero((size_t)b->n, sizeof(struct factor *), "solve", e);
    rc = b->refined && b->later ? open_order(b, 0, plans, e) : e->code;
    if (!rc && first->starts > 1)
        rc = open_order(b, 1, b->later, e);
    for (int j = 0; j < first->n && !rc; j++)
        if (!(done >> j & 1))
            rc = refine_shape(b, j, &done, e);
    for (int i = 0; i < REFINED_STARTS; i++)
        tile_plan_close(&b->orders.plan[i]);
    if (plans[0]) { /* it stays, for the report */
        solve_functions()->factors_free(plans[0]->gpu);
        plans[0]->gpu = NULL;
    }
    for (int i = 0; b->later && i < b->n; i++)
        factor_free(b->later[i]);
    free(b->later);
    free(b->refined);
    return rc;
}

/* ---- all batches ---- */

static int run_batch(void *ctx, const int *job, int n, struct err *e)
{
    struct batch b = { .in = ctx, .job = job, .n = n };
    const struct solve_input *first = &b.in[job[0]];
    double start = seconds_now();
    struct factor **plans;
    int rc;

    if (first->params.block || first->params.cols % 8)
        return err_set(e, E_CONFIG, "the GPU solves inputs in multiples of 8");
    b.matrix = mem_zero((size_t)n, sizeof(*b.matrix), "solve", e);
    b.module = b.matrix ? mem_zero((size_t)n * SOLVE_LINEARS, sizeof(*b.module),
                                   "solve", e) :
                          NULL;
    plans = b.module ?
                mem_zero((size_t)n, sizeof(struct factor *), "solve", e) :
                NULL;
    rc = !plans         ? e->code :
         first->refined ? run_refined(&b, plans, e) :
                          run_plain(&b, plans, e);
    free(b.matrix);
    free(b.module);
    for (int i = 0; i < n; i++) {
        struct solve_input *in = &b.in[job[i]];

        in->seconds = (seconds_now() - start) / n / in->n;
        if (rc >= 0)
            in->factor = plans[i];
        else if (plans)
            factor_free(plans[i]);
    }
    free(plans);
    return rc;
}

/* Whether the refined solver takes both in one call: groups of one width lie in
 * the same columns whatever their order. */
static bool refined_alike(const struct solve_input *a,
                          const struct solve_input *b)
{
    const struct refined_params *p = a->refined, *q = b->refined;

    if (!p || !q)
        return p == q;
    return a->params.cols % a->params.group == 0 && !a->drift == !b->drift &&
           !a->linear[0].output == !b->linear[0].output && p->gap == q->gap &&
           p->block.symmetric == q->block.symmetric &&
           p->fisher_sweeps == q->fisher_sweeps;
}

static bool alike(const void *ctx, int i, int k)
{
    const struct solve_input *a = (const struct solve_input *)ctx + i,
                             *b = (const struct solve_input *)ctx + k;
    bool same = a->n == b->n && a->params.cols == b->params.cols &&
                a->params.block == b->params.block &&
                a->params.group == b->params.group &&
                a->params.order == b->params.order &&
                a->params.damping == b->params.damping && refined_alike(a, b);

    for (int l = 0; same && l < a->n; l++)
        same = solve_same(&a->linear[l].params, &b->linear[l].params);
    return same && !a->alone && !b->alone;
}

int solve_gpu_batch(struct solve_input *in, int n, struct err *e)
{
    const struct jobs jobs = { alike, run_batch, in };
    bool *done = mem_zero((size_t)n, sizeof(*done), "solve", e);
    int rc = done ? jobs_run(&jobs, n, done, e) : e->code;

    for (int i = 0; i < n; i++)
        in[i].solved = done && done[i];
    free(done);
    return rc;
}

int solve_gpu_fetch(struct factor *f, struct err *e)
{
    uint64_t n = f->cols;
    float *l = mem_pages(n * n * sizeof(*l), "factor", e), *to;
    int rc = l ? solve_functions()->factors_read(f->gpu, 0, l, e) : e->code;

    to = rc < 0 ?
             NULL :
             mem_pages(factor_panel_at(f->padded, f->padded / FACTOR_PANEL) *
                           sizeof(*to),
                       "factor", e);
    if (!to) {
        free(l);
        return e->code;
    }
    f->panel = to;
    for (uint64_t c0 = 0; c0 < f->padded; c0 += FACTOR_PANEL)
        for (uint64_t r = c0; r < f->padded; r++)
            for (uint64_t c = c0; c < c0 + FACTOR_PANEL; c++)
                *to++ = r < n && c <= r ? l[r * n + c] : (float)(r == c);
    free(l);
    return 0;
}
