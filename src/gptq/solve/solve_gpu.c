/* solve_gpu.c - see solve.h: the factor and the solver on the GPU.
 *
 * The host reads H's diagonal (order, dead inputs, mean), and searches for the
 * place when the GPU has reported an element that is not finite.  The factor
 * stays on the device for all modules that share it. */
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "device/jobs.h"
#include "gptq/solve/solve_table.h"

struct plugin_table solve_plugin = { SOLVE_TABLE, SOLVE_TABLE_VERSION, NULL };

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
};

/* Solve linear j, and all later linears of the same shape, of all inputs in one
 * call.  Sets their bits of *done. */
static int run_shape(struct batch *b, int j, uint32_t *done, struct err *e)
{
    const struct solve_input *first = &b->in[b->job[0]];
    const struct solve_params *p = &first->linear[j].params;
    int at[SOLVE_LINEARS] = { 0 }, sets = 0, rc;

    for (int k = j; k < first->n; k++)
        if (solve_same(&first->linear[k].params, p)) {
            *done |= 1u << k;
            at[sets++] = k;
        }
    for (int i = 0; i < b->n * sets; i++) {
        const struct solve_input *in = &b->in[b->job[i / sets]];

        b->module[i] =
            (struct cuda_module){ .w = in->linear[at[i % sets]].w,
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

static int build_all(struct batch *b, struct err *e)
{
    const struct factor_params *p = &b->in[b->job[0]].params;
    int rc;

    for (int i = 0; i < b->n; i++) {
        struct solve_input *in = &b->in[b->job[i]];

        if ((rc = factor_plan(&in->factor, p, in->h, e)) < 0)
            return rc;
        b->matrix[i] = (struct cuda_matrix){ .h = in->h,
                                             .input = in->factor->input,
                                             .dead = in->factor->dead,
                                             .mean = in->factor->mean,
                                             .damping = p->damping };
    }
    rc = solve_functions()->factors_build(&b->factors, device_gpu(), p->cols,
                                          b->matrix, b->n, e);
    for (int i = 0; i < b->n && !rc; i++) {
        struct factor *f = b->in[b->job[i]].factor;

        memcpy(f->tried, b->matrix[i].tried, sizeof(f->tried));
        f->n_tried = b->matrix[i].n_tried;
        if (b->matrix[i].failed)
            rc = err_set(e, E_DATA, "a hessian is not positive definite");
    }
    return rc;
}

static int run_batch(void *ctx, const int *job, int n, struct err *e)
{
    struct batch b = { .in = ctx, .job = job, .n = n };
    const struct solve_input *first = &b.in[job[0]];
    double start = seconds_now();
    uint32_t done = 0;
    int rc;

    if (first->params.block || first->params.cols % 8)
        return err_set(e, E_CONFIG, "the GPU solves inputs in multiples of 8");
    b.matrix = mem_zero((size_t)n, sizeof(*b.matrix), "solve", e);
    b.module = b.matrix ? mem_zero((size_t)n * SOLVE_LINEARS, sizeof(*b.module),
                                   "solve", e) :
                          NULL;
    rc = b.module ? build_all(&b, e) : e->code;
    for (int j = 0; j < first->n && !rc; j++)
        if (!(done >> j & 1))
            rc = run_shape(&b, j, &done, e);
    solve_functions()->factors_free(b.factors);
    free(b.matrix);
    free(b.module);
    for (int i = 0; i < n; i++) {
        struct solve_input *in = &b.in[job[i]];

        in->seconds = (seconds_now() - start) / n / in->n;
        if (rc < 0) {
            factor_free(in->factor);
            in->factor = NULL;
        }
    }
    return rc;
}

static bool alike(const void *ctx, int i, int k)
{
    const struct solve_input *a = (const struct solve_input *)ctx + i,
                             *b = (const struct solve_input *)ctx + k;
    bool same = a->n == b->n && a->params.cols == b->params.cols &&
                a->params.block == b->params.block &&
                a->params.group == b->params.group &&
                a->params.order == b->params.order &&
                a->params.damping == b->params.damping;

    for (int l = 0; same && l < a->n; l++)
        same = solve_same(&a->linear[l].params, &b->linear[l].params);
    return same;
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
