/* refined_fisher_cuda.cu - the rows of a module together, as
 * gptq/solve/fisher_descent.h says: coordinate descent on tr(F E H Eᵀ), on the
 * GPU.
 *
 * With d = w - q half the gradient is -F d H.  A sweep takes one group of columns
 * J after the other:
 *
 * 1. G = F (d H_J), two products in three parts of bf16 (refined_pass_cuda.cu).
 * 2. One launch for all rows, a block of threads for each 64.  A block keeps its
 *    G in registers and adds F v of the blocks before, v = the moves times H_JJ,
 *    as these publish it, 8 rows at a time.  Then it moves its own codes.
 *
 * So what waits for another is the moves alone.  Of 64 rows eight, each eighth,
 * move at the same time, a warp for each, as if F had nothing between them (four,
 * two or one where it has much); then they bring the next eight rows up to date,
 * and other warps the rows behind.  A warp decides all 128 columns of its row at
 * once, takes the first one that moves and decides anew those behind it, which
 * costs a move, not a code.
 *
 * The CPU takes all columns of a row before the next row: another order of the
 * same descent. */
#include "cuda/fisher_internal.cuh"

#include <stdlib.h>

enum { WIDE = REFINED_WIDE, ROWS = FISHER_ROWS };

/* fisher[r][c] of the packed lower triangle, zero in the padding; grid (ld / 64,
 * ld). */
static __global__ void __launch_bounds__(ROWS)
    fisher_fill_kernel(float *to, const float *from, uint64_t rows, uint64_t ld)
{
    uint64_t r = (uint64_t)blockIdx.x * ROWS + threadIdx.x, c = blockIdx.y;
    uint64_t i = r > c ? r : c, j = r > c ? c : r;

    to[c * ld + r] = i < rows ? from[i * (i + 1) / 2 + j] : 0;
}

/* Codes and d of a module from its packed codes[rows][cols / 2]; zero in the
 * padding.  Grid (module_rows / 64, padded). */
template <enum dtype S>
static __global__ void __launch_bounds__(ROWS)
    fisher_load_kernel(struct fisher_group a, const uint8_t *packed,
                       const uint32_t *input, uint64_t cols, uint32_t group)
{
    uint64_t r = (uint64_t)blockIdx.x * ROWS + threadIdx.x, c = blockIdx.y;
    uint64_t at = c * a.pitch + r, i, k;
    uint32_t meta, code;
    float d = 0;

    if (c < cols && r < (uint64_t)a.rows) {
        i = input[c];
        k = r * cols + i;
        meta = a.meta[i / group * a.pitch + r];
        code = packed[k / 2] >> 4 * (k & 1) & 15;
        a.codes[at] = (uint8_t)code;
        d = a.w[at] - ((float)code - (float)meta_zero(meta)) *
                          refined_scale<S>(a.mantissa, meta);
    }
    a.d[at] = d;
    refined_split(a.split + 3 * c * a.pitch + r, a.pitch, d);
}

/* ---- a module ---- */

struct rows {
    const struct cuda_factors *f;
    const struct tile_plan *plan;
    const struct refined_state *s;
    enum dtype scale_dtype;
    uint32_t group;
    int matrix;
    uint64_t first, ld;      /* of the module's rows; how many, padded */
    float *fisher;           /* [ld, ld] */
    __nv_bfloat16 *parts;    /* [ld, 3, ld]: as refined_split() */
    struct fisher_group all; /* its rows, all columns */
};

/* c->square has the room. */
static int load_fisher(struct cuda_context *c, struct rows *j,
                       const float *fisher, struct err *e)
{
    uint64_t n = j->s->rows, ld = j->ld;
    const float *from;
    int rc = buffer_need(c, &c->square, fisher_room(n), e);

    if (rc < 0 || (rc = on_device(c, fisher, n * (n + 1) / 2 * sizeof(float),
                                  &c->fill, &from, e)) < 0)
        return rc;
    j->fisher = (float *)c->square.data;
    j->parts = (__nv_bfloat16 *)(j->fisher + ld * ld);
    fisher_fill_kernel<<<dim3((unsigned)(ld / ROWS), (unsigned)ld), ROWS, 0,
                         c->stream>>>(j->fisher, from, n, ld);
    LAUNCHED();
    return refined_split_columns(c, j->parts, j->fisher, ld, ld, 0, 1, e);
}

static int load_codes(struct cuda_context *c, const struct rows *j,
                      const uint8_t *codes, const uint32_t *meta, struct err *e)
{
    const struct refined_state *s = j->s;
    const struct cuda_factors *f = j->f;
    const uint32_t *input = f->input + j->matrix * f->cols;
    dim3 grid((unsigned)(j->ld / ROWS), (unsigned)s->padded);
    int rc =
        upload(c, c->packed.data, meta, s->rows * s->groups * sizeof(*meta), e);

    if (rc < 0 ||
        (rc = solve_transpose_grids(c, s->rows, s->groups, s->pitch,
                                    (uint32_t *)j->all.meta, e)) < 0 ||
        (rc = upload(c, c->packed.data, codes, s->rows * f->cols / 2, e)) < 0)
        return rc;
    if (j->scale_dtype == DT_F16)
        fisher_load_kernel<DT_F16><<<grid, ROWS, 0, c->stream>>>(
            j->all, (const uint8_t *)c->packed.data, input, f->cols, j->group);
    else
        fisher_load_kernel<DT_BF16><<<grid, ROWS, 0, c->stream>>>(
            j->all, (const uint8_t *)c->packed.data, input, f->cols, j->group);
    LAUNCHED();
    return 0;
}

/* G = F d H of the columns of a group, to s->gradient's second 128 columns. */
static int form_gradient(struct cuda_context *c, const struct rows *j,
                         const struct tile_group *at, struct err *e)
{
    const struct refined_state *s = j->s;
    const float one = 1, zero = 0;
    uint64_t padded = s->padded, n = at->c1 - at->c0;
    const __nv_bfloat16 *h =
        j->f->whole + 3 * padded * (j->matrix * padded + at->c0);
    float *dh = s->gradient, *to = dh + REFINED_WIDE * s->pitch;
    int rc;

    BLAS_TRY(c->blas.gemm(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)j->ld,
                          (int)n, (int)(3 * padded), &one, j->all.split,
                          CUDA_R_16BF, (int)s->pitch, h, CUDA_R_16BF,
                          (int)(3 * padded), &zero, dh, CUDA_R_32F, (int)j->ld,
                          CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    if ((rc = factor_parts(c, s->moved, dh, n * j->ld, e)) < 0)
        return rc;
    BLAS_TRY(c->blas.gemm(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)j->ld,
                          (int)n, (int)(3 * j->ld), &one, j->parts, CUDA_R_16BF,
                          (int)j->ld, s->moved, CUDA_R_16BF, (int)(3 * j->ld),
                          &zero, to, CUDA_R_32F, (int)j->ld, CUBLAS_COMPUTE_32F,
                          CUBLAS_GEMM_DEFAULT));
    return 0;
}

/* Move the codes of a group of columns, all rows. */
static int move_group(struct cuda_context *c, const struct rows *j,
                      const struct tile_group *at, uint32_t group,
                      struct err *e)
{
    const struct refined_state *s = j->s;
    uint64_t first = at->c0 * s->pitch, blocks = j->ld / ROWS;
    struct fisher_group a = j->all;

    CUDA_TRY(
        cudaMemsetAsync(a.published, 0, (blocks + 1) * sizeof(int), c->stream));
    a.fisher = j->fisher;
    a.square = j->f->curve + (j->matrix * s->padded + at->c0) * REFINED_WIDE;
    a.w += first;
    a.d += first;
    a.split += 3 * first;
    a.codes += first;
    a.meta += group * s->pitch;
    a.n = (int)(at->c1 - at->c0);
    return fisher_group_move(c, j->scale_dtype, &a, blocks, e);
}

static int sweep(struct cuda_context *c, const struct rows *j,
                 const uint32_t *input, struct err *e)
{
    int rc = 0;

    for (uint64_t i = 0; i < j->plan->groups && rc >= 0; i++) {
        const struct tile_group *at = &j->plan->group[i];

        rc = form_gradient(c, j, at, e);
        if (rc >= 0)
            rc = move_group(c, j, at, input[at->c0] / j->group, e);
    }
    return rc;
}

/* input[k]: which input column k is, in the matrix's own order. */
static int sweep_all(struct cuda_context *c, const struct rows *j, int sweeps,
                     const uint32_t *input, struct err *e)
{
    int any = 1, rc;

    for (int i = 0; i < sweeps && any; i++) {
        CUDA_TRY(cudaMemsetAsync(j->s->any, 0, sizeof(any), c->stream));
        if ((rc = sweep(c, j, input, e)) < 0)
            return rc;
        CUDA_TRY(cudaMemcpyAsync(&any, j->s->any, sizeof(any),
                                 cudaMemcpyDeviceToHost, c->stream));
        CUDA_TRY(cudaStreamSynchronize(c->stream));
    }
    return 0;
}

/* The module's rows and columns in the state. */
static struct fisher_group whole_of(const struct rows *j)
{
    const struct refined_state *s = j->s;
    uint64_t at = j->matrix * s->padded * s->pitch + j->first;
    struct fisher_group a = {};

    a.gradient = s->gradient + REFINED_WIDE * s->pitch;
    a.pushed = s->gradient + 2 * REFINED_WIDE * s->pitch;
    a.published = (int *)(s->gradient + 3 * REFINED_WIDE * s->pitch);
    a.w = s->w + at;
    a.d = s->d + at;
    a.split = s->split + 3 * j->matrix * s->padded * s->pitch + j->first;
    a.codes = s->codes + at;
    a.meta = s->meta + j->matrix * s->groups * s->pitch + j->first;
    a.mantissa = s->mantissa;
    a.pitch = s->pitch;
    a.ld = j->ld;
    a.rows = (int)s->rows;
    a.any = s->any;
    return a;
}

int refined_together(struct cuda_context *c, const struct refined_params *p,
                     const struct refined_state *s,
                     const struct refined_rows *x, struct err *e)
{
    const struct cuda_factors *f = x->f;
    const struct tile_plan *plan = x->plan;
    struct rows j = { f, plan, s, p->solve.scale_dtype,
                      (uint32_t)p->solve.group };
    uint32_t *input =
        (uint32_t *)mem_alloc(f->cols * sizeof(*input), "solve", e);
    int rc = input ? 0 : e->code;

    j.matrix = x->i / s->share;
    j.first = x->i % s->share * s->module_rows;
    j.ld = s->module_rows;
    j.all = whole_of(&j);
    if (rc >= 0)
        rc = download(c, input, f->input + j.matrix * f->cols,
                      f->cols * sizeof(*input), e);
    if (rc >= 0 && (rc = load_fisher(c, &j, x->m->fisher, e)) >= 0 &&
        (rc = load_codes(c, &j, x->m->codes, x->meta, e)) >= 0)
        rc = sweep_all(c, &j, p->fisher_sweeps, input, e);
    free(input);
    return rc;
}
