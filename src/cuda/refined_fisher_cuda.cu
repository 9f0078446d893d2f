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
 * So what waits for another is the moves alone.  Modules that have the same F (the
 * experts of a layer) move in one launch, since a module's blocks wait most of their
 * time.  Of 64 rows eight, each eighth,
 * move at the same time, a warp for each, as if F had nothing between them (four,
 * two or one where it has much); then they bring the next eight rows up to date,
 * and other warps the rows behind.  A warp decides all 128 columns of its row at
 * once, takes the first one that moves and decides anew those behind it, which
 * costs a move, not a code.
 *
 * The CPU takes all columns of a row before the next row: another order of the
 * same descent. */
#include "cuda/fisher_internal.cuh"

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

/* Codes and d of a module, a, from its packed codes[rows][cols / 2]; zero in the
 * padding.  Grid (module_rows / 64, padded). */
template <enum dtype S>
static __global__ void __launch_bounds__(ROWS)
    fisher_load_kernel(struct fisher_group a, const uint8_t *packed)
{
    uint64_t r = (uint64_t)blockIdx.x * ROWS + threadIdx.x, c = blockIdx.y;
    uint64_t at = c * a.pitch + r, i, k;
    uint32_t meta, code;
    float d = 0;

    if (c < a.cols && r < (uint64_t)a.rows) {
        i = a.input[c];
        k = r * a.cols + i;
        meta = a.meta[i / a.group * a.pitch + r];
        code = packed[k / 2] >> 4 * (k & 1) & 15;
        a.codes[at] = (uint8_t)code;
        d = a.w[at] - ((float)code - (float)meta_zero(meta)) *
                          refined_scale<S>(a.mantissa, meta);
    }
    a.d[at] = d;
    refined_split(a.split + 3 * c * a.pitch + r, a.pitch, d);
}

/* ---- modules with the same F ---- */

struct rows {
    const struct cuda_factors *f;
    const struct tile_plan *plan;
    const struct refined_state *s;
    enum dtype scale_dtype;
    uint64_t ld;             /* rows of a module, padded */
    float *fisher;           /* [ld, ld] */
    __nv_bfloat16 *parts;    /* [ld, 3, ld]: as refined_split() */
    struct fisher_group all; /* all columns */
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

/* Of module number i. */
static int load_codes(struct cuda_context *c, const struct rows *j, int i,
                      const uint8_t *codes, const uint32_t *meta, struct err *e)
{
    const struct refined_state *s = j->s;
    const struct fisher_group a = fisher_of(j->all, i);
    dim3 grid((unsigned)(j->ld / ROWS), (unsigned)s->padded);
    int rc =
        upload(c, c->packed.data, meta, s->rows * s->groups * sizeof(*meta), e);

    if (rc < 0 ||
        (rc = solve_transpose_grids(c, s->rows, s->groups, s->pitch,
                                    (uint32_t *)a.meta, e)) < 0 ||
        (rc = upload(c, c->packed.data, codes, s->rows * a.cols / 2, e)) < 0)
        return rc;
    if (j->scale_dtype == DT_F16)
        fisher_load_kernel<DT_F16>
            <<<grid, ROWS, 0, c->stream>>>(a, (const uint8_t *)c->packed.data);
    else
        fisher_load_kernel<DT_BF16>
            <<<grid, ROWS, 0, c->stream>>>(a, (const uint8_t *)c->packed.data);
    LAUNCHED();
    return 0;
}

/* Where d H of a module's columns of a group is, before its G: [n, ld]. */
static float *product_of(const struct rows *j, int i)
{
    return j->s->gradient + i * REFINED_SUPER * j->ld;
}

/* G = F d H of the columns of a group, of module number i. */
static int form_gradient(struct cuda_context *c, const struct rows *j, int i,
                         const struct tile_group *at, struct err *e)
{
    const struct refined_state *s = j->s;
    const struct fisher_group a = fisher_of(j->all, i);
    const float one = 1, zero = 0;
    uint64_t padded = s->padded, n = at->c1 - at->c0;
    uint64_t matrix = (uint64_t)((a.first + i) / a.share);
    const __nv_bfloat16 *h =
        j->f->whole + 3 * padded * (matrix * padded + at->c0);
    float *dh = product_of(j, i), *to = dh + REFINED_WIDE * j->ld;
    int rc;

    BLAS_TRY(c->blas.gemm(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)j->ld,
                          (int)n, (int)(3 * padded), &one, a.split, CUDA_R_16BF,
                          (int)s->pitch, h, CUDA_R_16BF, (int)(3 * padded),
                          &zero, dh, CUDA_R_32F, (int)j->ld, CUBLAS_COMPUTE_32F,
                          CUBLAS_GEMM_DEFAULT));
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
                      const struct tile_group *at, struct err *e)
{
    uint64_t first = at->c0 * j->s->pitch;
    struct fisher_group a = j->all;

    CUDA_TRY(cudaMemsetAsync(a.published, 0,
                             (a.modules * (j->ld / ROWS) + 1) * sizeof(int),
                             c->stream));
    a.fisher = j->fisher;
    a.square += at->c0 * REFINED_WIDE;
    a.w += first;
    a.d += first;
    a.split += 3 * first;
    a.codes += first;
    a.input += at->c0;
    a.n = (int)(at->c1 - at->c0);
    return fisher_group_move(c, j->scale_dtype, &a, e);
}

static int sweep(struct cuda_context *c, const struct rows *j, struct err *e)
{
    int rc = 0;

    for (uint64_t i = 0; i < j->plan->groups && rc >= 0; i++) {
        const struct tile_group *at = &j->plan->group[i];

        for (int k = 0; k < j->all.modules && rc >= 0; k++)
            rc = form_gradient(c, j, k, at, e);
        if (rc >= 0)
            rc = move_group(c, j, at, e);
    }
    return rc;
}

/* A module whose sweep has moved nothing does not move in a later one, for the
 * others' sake, either. */
static int sweep_all(struct cuda_context *c, const struct rows *j, int sweeps,
                     struct err *e)
{
    int any = 1, rc;

    for (int i = 0; i < sweeps && any; i++) {
        CUDA_TRY(cudaMemsetAsync(j->s->any, 0, sizeof(any), c->stream));
        if ((rc = sweep(c, j, e)) < 0)
            return rc;
        CUDA_TRY(cudaMemcpyAsync(&any, j->s->any, sizeof(any),
                                 cudaMemcpyDeviceToHost, c->stream));
        CUDA_TRY(cudaStreamSynchronize(c->stream));
    }
    return 0;
}

/* The modules' rows and columns in the state. */
static struct fisher_group
whole_of(const struct rows *j, const struct refined_rows *x, uint32_t group)
{
    const struct refined_state *s = j->s;
    struct fisher_group a = {};

    a.gradient = s->gradient + REFINED_WIDE * j->ld;
    a.pushed = s->gradient + 2 * REFINED_WIDE * j->ld;
    a.published = (int *)(s->gradient + 3 * REFINED_WIDE * j->ld);
    a.square = j->f->curve;
    a.w = s->w;
    a.d = s->d;
    a.split = s->split;
    a.codes = s->codes;
    a.meta = s->meta;
    a.input = j->f->input;
    a.mantissa = s->mantissa;
    a.pitch = s->pitch;
    a.ld = j->ld;
    a.padded = s->padded;
    a.cols = j->f->cols;
    a.groups = s->groups;
    a.group = group;
    a.first = x->first;
    a.modules = x->n;
    a.share = s->share;
    a.rows = (int)s->rows;
    a.any = s->any;
    return a;
}

int refined_together(struct cuda_context *c, const struct refined_params *p,
                     const struct refined_state *s,
                     const struct refined_rows *x, struct err *e)
{
    struct rows j = { x->f, x->plan, s, p->solve.scale_dtype, s->module_rows };
    uint64_t metas = s->rows * s->groups;
    int rc = load_fisher(c, &j, x->m[x->first].fisher, e);

    j.all = whole_of(&j, x, (uint32_t)p->solve.group);
    for (int i = 0; i < x->n && rc >= 0; i++)
        rc = load_codes(c, &j, i, x->m[x->first + i].codes,
                        x->meta + (x->first + i) * metas, e);
    return rc < 0 ? rc : sweep_all(c, &j, p->fisher_sweeps, e);
}
