/* refined_compare_cuda.cu - the methods that the refined solver is compared with:
 * losses of round to nearest and of plain GPTQ on the grids that came with the
 * weights, for a sample of rows (gptq/solve/solve.h, solve_compare_step()). */
#include "cuda/refined_internal.cuh"

#include <stdlib.h>

/* d = w - q, q rounded to nearest on the grids that are set; grid (pitch / 64,
 * cols, matrices). */
template <enum dtype S>
static __global__ void __launch_bounds__(REFINED_TILE)
    refined_round_kernel(const struct refined_state s, const uint32_t *input,
                         uint64_t cols, uint32_t group)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + threadIdx.x;
    uint64_t m = blockIdx.z, c = m * s.padded + blockIdx.y;
    uint64_t g = m * s.groups + input[m * cols + blockIdx.y] / group;
    uint32_t meta = s.meta[g * s.pitch + r];
    float scale = refined_scale<S>(s.mantissa, meta), w = s.w[c * s.pitch + r];
    float zero = (float)meta_zero(meta), x = __fdiv_rn(w, scale);

    x = fminf(fmaxf(x, -zero), 15 - zero);
    x = (x + ROUNDER) - ROUNDER;
    s.d[c * s.pitch + r] = w - x * scale;
    refined_split(s.split + 3 * c * s.pitch + r, s.pitch, w - x * scale);
}

/* to[m][c][r] of some rows of each module, those of list[n]; zero in the padding.
 * Grid (to_pitch / 64, columns, matrices). */
struct sample {
    const uint32_t *list;
    uint64_t n, pitch, module_rows, to_pitch, to_module_rows;
};
template <class T>
static __global__ void __launch_bounds__(REFINED_TILE)
    refined_sample_kernel(T *to, const T *from, struct sample s)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + threadIdx.x;
    uint64_t module = r / s.to_module_rows, k = r % s.to_module_rows;
    uint64_t c = (uint64_t)blockIdx.z * gridDim.y + blockIdx.y;

    to[c * s.to_pitch + r] =
        k < s.n ? from[c * s.pitch + module * s.module_rows + s.list[k]] : 0;
}

/* Before a pass: d of the padding is zero. */
int refined_restart(struct cuda_context *c, const struct cuda_factors *f,
                    const struct refined_state *s, struct err *e)
{
    uint64_t rest = (f->padded - f->cols) * s->pitch;
    size_t all = s->padded * s->pitch, n = (size_t)s->n;

    if (!rest)
        return 0;
    CUDA_TRY(cudaMemset2DAsync(s->d + f->cols * s->pitch, all * sizeof(*s->d),
                               0, rest * sizeof(*s->d), n, c->stream));
    CUDA_TRY(cudaMemset2DAsync(s->split + 3 * f->cols * s->pitch,
                               3 * all * sizeof(*s->split), 0,
                               3 * rest * sizeof(*s->split), n, c->stream));
    return 0;
}

/* Rows that others are measured on, of those at work; returns how many. */
static uint64_t compared(const struct refined_job *j,
                         const struct refined_state *s, uint32_t *list)
{
    uint64_t step = solve_compare_step(j->p->solve.rows), n = 0;

    for (uint64_t r = 0; r < s->rows; r++)
        if ((j->first + r) / SOLVE_ROWS % step == 0)
            list[n++] = (uint32_t)r;
    return n;
}

/* A state of these rows alone, in the room of s, whose grids are loaded. */
static int open_compared(struct cuda_context *c, const struct refined_job *j,
                         const struct refined_state *s, const uint32_t *list,
                         uint64_t n, struct refined_state *y, struct err *e)
{
    int rc = upload(c, c->importance.data, list, n * sizeof(*list), e);
    struct sample x;
    unsigned tiles;

    *y = *s;
    y->rows = n;
    y->module_rows = round_up(n, REFINED_TILE);
    y->pitch = s->share * y->module_rows;
    y->w = (float *)c->second.data;
    y->meta = s->meta + s->n * s->groups * s->pitch;
    x = { (const uint32_t *)c->importance.data,
          n,
          s->pitch,
          s->module_rows,
          y->pitch,
          y->module_rows };
    if (rc < 0)
        return rc;
    tiles = (unsigned)(y->pitch / REFINED_TILE);
    refined_sample_kernel<<<dim3(tiles, (unsigned)s->padded, (unsigned)s->n),
                            REFINED_TILE, 0, c->stream>>>(
        y->w, (const float *)s->w, x);
    LAUNCHED();
    refined_sample_kernel<<<dim3(tiles, (unsigned)s->groups, (unsigned)s->n),
                            REFINED_TILE, 0, c->stream>>>(
        y->meta, (const uint32_t *)s->meta, x);
    LAUNCHED();
    return refined_restart(c, refined_factors(j, 0), y, e);
}

static int load_grids(struct cuda_context *c, const struct refined_job *j,
                      const struct refined_state *s, struct err *e)
{
    int rc;

    for (int i = 0; i < j->modules; i++)
        if ((rc = upload(c, c->packed.data, j->m[i].meta + j->first * s->groups,
                         s->rows * s->groups * sizeof(*s->meta), e)) < 0 ||
            (rc = solve_transpose_grids(
                 c, s->rows, s->groups, s->pitch,
                 s->meta + refined_first(s, i, s->groups), e)) < 0)
            return rc;
    return 0;
}

/* The losses of rows that are compared, to[modules, rows]. */
static int measure(struct cuda_context *c, const struct refined_job *j,
                   const struct refined_state *y, const uint32_t *list,
                   double *to, struct err *e)
{
    size_t n = (size_t)y->n * y->pitch;
    double *loss = (double *)mem_alloc(n * sizeof(*loss), "solve", e);
    int rc =
        loss ? refined_measure(c, refined_factors(j, 0), y, loss, e) : e->code;

    for (int i = 0; i < j->modules && rc >= 0; i++)
        for (uint64_t k = 0; k < y->rows; k++)
            to[i * j->p->solve.rows + j->first + list[k]] =
                loss[refined_first(y, i, 1) + k];
    free(loss);
    return rc;
}

static int measure_compared(struct cuda_context *c, const struct refined_job *j,
                            const struct refined_state *s, const uint32_t *list,
                            uint64_t n, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    const struct cuda_factors *f = refined_factors(j, 0);
    struct refined_state y;
    struct refined_pass pass = { j->p, f, &j->b->plan[0], &y, REFINED_PLAIN };
    dim3 grid;
    int rc;

    if ((rc = load_grids(c, j, s, e)) < 0 ||
        (rc = open_compared(c, j, s, list, n, &y, e)) < 0)
        return rc;
    grid = dim3((unsigned)(y.pitch / REFINED_TILE), (unsigned)p->cols,
                (unsigned)y.n);
    if (p->scale_dtype == DT_F16)
        refined_round_kernel<DT_F16><<<grid, REFINED_TILE, 0, c->stream>>>(
            y, f->input, p->cols, (uint32_t)p->group);
    else
        refined_round_kernel<DT_BF16><<<grid, REFINED_TILE, 0, c->stream>>>(
            y, f->input, p->cols, (uint32_t)p->group);
    LAUNCHED();
    if ((rc = measure(c, j, &y, list, j->nearest, e)) < 0 ||
        (rc = refined_walk(c, &pass, e)) < 0)
        return rc;
    return measure(c, j, &y, list, j->plain, e);
}

/* Losses of round to nearest and of plain GPTQ on the grids that came with the
 * weights, for a sample of rows (gptq/solve/solve.h, solve_compare_step()). */
int refined_compare(struct cuda_context *c, const struct refined_job *j,
                    const struct refined_state *s, struct err *e)
{
    uint32_t *list = (uint32_t *)mem_alloc(s->rows * sizeof(*list), "solve", e);
    uint64_t n = list ? compared(j, s, list) : 0;
    int rc = !list ? e->code : n ? measure_compared(c, j, s, list, n, e) : 0;

    free(list);
    return rc;
}
