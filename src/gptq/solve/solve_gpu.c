/* solve_gpu.c - see solve.h: the factor and the solver on the GPU.
 *
 * The host looks at H's diagonal (order, dead inputs, mean) and finds the place
 * when the GPU met an element that is not finite; the factor stays on the
 * device, for all modules that share it. */
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
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

/* ---- several ---- */

/* Linear number j of all inputs, and what there is of its shape behind it. */
static int run_shape(struct solve_input **in, int n, int j, uint32_t *done,
                     const struct cuda_factors *f, struct cuda_module *m,
                     struct err *e)
{
    const struct solve_params *p = &in[0]->linear[j].params;
    int at[SOLVE_LINEARS] = { 0 }, sets = 0, rc;

    for (int k = j; k < in[0]->n; k++)
        if (solve_same(&in[0]->linear[k].params, p)) {
            *done |= 1u << k;
            at[sets++] = k;
        }
    for (int i = 0; i < n * sets; i++)
        m[i] = (struct cuda_module){
            .w = in[i / sets]->linear[at[i % sets]].w,
            .meta = in[i / sets]->linear[at[i % sets]].meta,
            .codes = in[i / sets]->linear[at[i % sets]].codes
        };
    rc = solve_functions()->solve(device_gpu(), p, f, m, n * sets, e);
    for (int i = 0; i < n * sets; i++)
        in[i / sets]->linear[at[i % sets]].result = m[i].result;
    return rc;
}

/* 1: one of them could not be factored. */
static int build_all(struct solve_input **in, int n,
                     const struct factor_params *p, struct cuda_matrix *m,
                     struct cuda_factors **f, struct err *e)
{
    int rc, failed = 0;

    for (int i = 0; i < n; i++) {
        if ((rc = factor_plan(&in[i]->factor, p, in[i]->h, e)) < 0)
            return rc;
        m[i] = (struct cuda_matrix){ .h = in[i]->h,
                                     .input = in[i]->factor->input,
                                     .dead = in[i]->factor->dead,
                                     .mean = in[i]->factor->mean,
                                     .damping = p->damping };
    }
    rc = solve_functions()->factors_build(f, device_gpu(), p->cols, m, n, e);
    for (int i = 0; i < n && !rc; i++) {
        memcpy(in[i]->factor->tried, m[i].tried, sizeof(m[i].tried));
        in[i]->factor->n_tried = m[i].n_tried;
        failed |= m[i].failed;
    }
    return rc < 0 ? rc : failed;
}

static int together(struct solve_input **in, int n,
                    const struct factor_params *p, struct err *e)
{
    struct cuda_matrix *m = mem_zero((size_t)n, sizeof(*m), "solve", e);
    struct cuda_module *l =
        m ? mem_zero((size_t)n * SOLVE_LINEARS, sizeof(*l), "solve", e) : NULL;
    struct cuda_factors *f = NULL;
    uint32_t done = 0;
    int rc = l ? build_all(in, n, p, m, &f, e) : e->code;

    for (int j = 0; j < in[0]->n && !rc; j++)
        if (!(done >> j & 1))
            rc = run_shape(in, n, j, &done, f, l, e);
    solve_functions()->factors_free(f);
    free(m);
    free(l);
    for (int i = 0; i < n; i++) {
        in[i]->solved = !rc;
        if (rc) {
            factor_free(in[i]->factor);
            in[i]->factor = NULL;
        }
    }
    return rc;
}

int solve_gpu_together(struct solve_input **in, int n,
                       const struct factor_params *p, struct err *e)
{
    int rc = p->cols % 8 ? 1 : together(in, n, p, e), half = n / 2;

    if (!rc || rc == E_DEVICE)
        return rc;
    if (n == 1 || rc == E_CONFIG || p->cols % 8)
        return 0;
    rc = solve_gpu_together(in, half, p, e);
    return rc < 0 ? rc : solve_gpu_together(in + half, n - half, p, e);
}

/* ---- by the device of this process ---- */

int solve_build(struct factor **f, const struct factor_params *p,
                const float *h, struct err *e)
{
    int rc;

    if (device_gpu()) {
        rc = solve_gpu.build(f, p, h, e);
        if (!device_declined(&rc, e))
            return rc;
    }
    return solve_cpu.build(f, p, h, e);
}

/* The GPU's factor in the CPU's form, for a module that the GPU declined. */
static int fetch(struct factor *f, struct err *e)
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

int solve_run(const struct solve_params *p, const void *w, const uint32_t *meta,
              struct factor *f, uint8_t *codes, struct solve_result *r,
              struct err *e)
{
    int rc;

    if (device_gpu() && (!f || f->gpu)) {
        rc = solve_gpu.run(p, w, meta, f, codes, r, e);
        if (!device_declined(&rc, e))
            return rc;
    }
    if (f && !f->panel && (rc = fetch(f, e)) < 0)
        return rc;
    return solve_cpu.run(p, w, meta, f, codes, r, e);
}
