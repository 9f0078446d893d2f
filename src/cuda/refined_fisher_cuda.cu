/* refined_fisher_cuda.cu - the rows of a module together, as
 * gptq/solve/fisher_descent.h says: coordinate descent on tr(F E H Eᵀ), on the
 * GPU.
 *
 * With d = w - q half the gradient is -F d H.  A sweep takes one group of columns
 * J after the other, and of each all rows, 64 at a time:
 *
 * 1. G = F (d H_J), two products in three parts of bf16 (refined_pass_cuda.cu).
 * 2. One block of threads moves the codes of 64 rows, one code after another,
 *    and keeps the G of those 64 up to date.
 * 3. G of the rows below += F v in f32, v = the moves times H_JJ.
 *
 * The CPU takes all columns of a row before the next row: another order of the
 * same descent.  Step 2 is serial.  It costs a move, not a code: a warp decides
 * all columns of a row at once, takes the first one that moves and decides anew
 * those behind it.  So its floor is the moves times their latency (0.1 us). */
#include "cuda/refined_internal.cuh"

#include <stdlib.h>

enum {
    WIDE = REFINED_WIDE,
    ROWS = 64,
    THREADS = 512,
    WARP = 32,
    PARTS = WIDE / WARP, /* columns of a lane: lane, lane + 32, .. */
    STRIDE = WIDE + 1    /* of rows of g: no bank conflicts */
};

/* Rows of a module and columns of a group, for the kernel: pointers to the first
 * of both, columns `pitch` apart. */
struct fisher_group {
    float *gradient;     /* [n, ld]: G */
    float *pushed;       /* out: [n, ROWS]: v */
    const float *fisher; /* [ld, ld] at the first row and column */
    const float *square; /* [n, WIDE]: H */
    const float *w;
    float *d;
    __nv_bfloat16 *split;
    uint8_t *codes;
    const uint32_t *meta;
    const float *mantissa;
    uint64_t pitch, ld;
    int n, rows; /* rows: of these that there are */
    int *any;
};

struct fisher_memory {
    float h[WIDE][WIDE];
    float g[ROWS][STRIDE];
    float f[ROWS][ROWS];
    float v[2][WIDE];
    float scale[ROWS], zero[ROWS];
    float mantissa[256];
    uint8_t code[ROWS][WIDE];
};

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

/* ---- 64 rows ---- */

template <enum dtype S>
static __device__ void fetch(struct fisher_memory *s,
                             const struct fisher_group &a)
{
    int t = (int)threadIdx.x;

    for (int i = t; i < WIDE * WIDE / 4; i += THREADS) {
        int k = i / (WIDE / 4), j = i % (WIDE / 4) * 4;

        if (k < a.n)
            refined_copy(&s->h[k][j], a.square + k * WIDE + j);
        else
            *(float4 *)&s->h[k][j] = make_float4(0, 0, 0, 0);
    }
    for (int i = t; i < 256; i += THREADS)
        s->mantissa[i] = a.mantissa[i];
    for (int i = t; i < ROWS * WIDE; i += THREADS) {
        int r = i % ROWS, k = i / ROWS;
        bool there = k < a.n && r < a.rows;

        s->g[r][k] = there ? a.gradient[k * a.ld + r] : 0;
        s->code[r][k] = there ? a.codes[k * a.pitch + r] : 0;
    }
    for (int i = t; i < ROWS * ROWS; i += THREADS)
        s->f[i / ROWS][i % ROWS] = a.fisher[i / ROWS * a.ld + i % ROWS];
    refined_arrived();
    if (t < ROWS) {
        uint32_t meta = t < a.rows ? a.meta[t] : 0;

        s->scale[t] = refined_scale<S>(s->mantissa, meta);
        s->zero[t] = (float)meta_zero(meta);
    }
    __syncthreads();
}

/* Where a code is best; its place if it cannot move. */
static __device__ __forceinline__ float best(float a, float t, float inverse,
                                             float zero)
{
    float x = zero + a + fminf(fmaxf(t * inverse, -16), 16);

    x = fminf(fmaxf(x, 0), 15);
    return (x + ROUNDER) - ROUNDER - zero;
}

/* All codes of row i, by a warp; v: what moved times H.  True when one has. */
static __device__ bool move_row(struct fisher_memory *s, int i, float *v)
{
    int lane = (int)threadIdx.x % WARP, last = -1;
    float f = s->f[i][i], scale = s->scale[i], zero = s->zero[i];
    float a[PARTS], t[PARTS], inverse[PARTS], sum[PARTS] = {};
    const float *before = s->v[(i & 1) ^ 1];
    bool any = false;

#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        int k = q * WARP + lane;
        float curve = scale * s->h[k][k];
        float g = s->g[i][k];

        if (i > 0)
            g = fmaf(s->f[i - 1][i], before[k], g);
        a[q] = (float)s->code[i][k] - zero;
        t[q] = f > 0 ? g / f : 0;
        inverse[q] = s->h[k][k] > 0 ? 1 / curve : 0;
    }
    for (;;) {
        int c = WIDE;
        float moved = 0, m;

#pragma unroll
        for (int q = PARTS - 1; q >= 0; q--) {
            float x = best(a[q], t[q], inverse[q], zero);
            unsigned ready =
                __ballot_sync(~0u, x != a[q] && q * WARP + lane > last);

            if (!ready)
                continue;
            c = q * WARP + __ffs((int)ready) - 1;
            moved = (a[q] - x) * scale;
        }
        if (c == WIDE)
            break;
        m = __shfl_sync(~0u, moved, c % WARP);
        last = c;
        any = true;
#pragma unroll
        for (int q = 0; q < PARTS; q++) {
            float h = s->h[c][q * WARP + lane];

            if (q * WARP + lane == c)
                a[q] -= m / scale;
            t[q] = fmaf(m, h, t[q]);
            sum[q] = fmaf(m, h, sum[q]);
        }
    }
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        v[q * WARP + lane] = sum[q];
        s->code[i][q * WARP + lane] = (uint8_t)rintf(a[q] + zero);
    }
    return any;
}

/* A warp moves the codes of row i + 1 while the others add row i's moves to the
 * G of the rows behind. */
static __device__ bool move_rows(struct fisher_memory *s,
                                 const struct fisher_group &a)
{
    int t = (int)threadIdx.x;
    bool any = false;

    for (int i = 0; i < a.rows; i++) {
        float *v = s->v[i & 1];

        if (t < WARP)
            any |= move_row(s, i, v);
        else if (i > 0)
            for (int e = t - WARP; e < (a.rows - i - 1) * WIDE;
                 e += THREADS - WARP) {
                int r = i + 1 + e / WIDE, k = e % WIDE;

                s->g[r][k] =
                    fmaf(s->f[i - 1][r], s->v[(i & 1) ^ 1][k], s->g[r][k]);
            }
        __syncthreads();
        if (t >= WARP && t < WARP + WIDE && t - WARP < a.n)
            a.pushed[(t - WARP) * ROWS + i] = v[t - WARP];
    }
    return any;
}

/* Move the codes of 64 rows of a group; one block of threads.  Shared memory:
 * 124 KiB. */
template <enum dtype S>
static __global__ void __launch_bounds__(THREADS)
    fisher_group_kernel(const struct fisher_group a)
{
    extern __shared__ float4 memory[];
    struct fisher_memory *s = (struct fisher_memory *)memory;

    fetch<S>(s, a);
    if (move_rows(s, a) && threadIdx.x == 0)
        *a.any = 1;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < ROWS * a.n; i += THREADS) {
        int r = i % ROWS, k = i / ROWS;
        uint64_t at = k * a.pitch + r;
        float d;

        if (r >= a.rows) {
            a.pushed[k * ROWS + r] = 0;
            continue;
        }
        d = a.w[at] - ((float)s->code[r][k] - s->zero[r]) * s->scale[r];
        a.codes[at] = s->code[r][k];
        a.d[at] = d;
        refined_split(a.split + 3 * k * a.pitch + r, a.pitch, d);
    }
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
    int rc = buffer_need(c, &c->square, ld * ld * (sizeof(float) + 3 * 2), e);

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
    float *dh = s->gradient, *to = j->all.gradient;
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

/* Rows r0.. of a group, and what they change in G of the rows below. */
static int move_block(struct cuda_context *c, const struct rows *j,
                      const struct tile_group *at, uint32_t group, uint64_t r0,
                      struct err *e)
{
    const struct refined_state *s = j->s;
    const float one = 1;
    uint64_t below = j->ld - r0 - ROWS, first = at->c0 * s->pitch + r0;
    struct fisher_group a = j->all;
    int room = sizeof(struct fisher_memory);

    a.gradient += r0;
    a.fisher = j->fisher + r0 * (j->ld + 1);
    a.square = j->f->curve + (j->matrix * s->padded + at->c0) * REFINED_WIDE;
    a.w += first;
    a.d += first;
    a.split += 3 * at->c0 * s->pitch + r0;
    a.codes += first;
    a.meta += group * s->pitch + r0;
    a.n = (int)(at->c1 - at->c0);
    a.rows = (int)(s->rows - r0 < ROWS ? s->rows - r0 : ROWS);
    if (j->scale_dtype == DT_F16)
        fisher_group_kernel<DT_F16><<<1, THREADS, room, c->stream>>>(a);
    else
        fisher_group_kernel<DT_BF16><<<1, THREADS, room, c->stream>>>(a);
    LAUNCHED();
    if (!below)
        return 0;
    BLAS_TRY(c->blas.gemm(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)below,
                          a.n, ROWS, &one, j->fisher + r0 * j->ld + r0 + ROWS,
                          CUDA_R_32F, (int)j->ld, a.pushed, CUDA_R_32F, ROWS,
                          &one, a.gradient + ROWS, CUDA_R_32F, (int)j->ld,
                          CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return 0;
}

static int sweep(struct cuda_context *c, const struct rows *j,
                 const uint32_t *groups, struct err *e)
{
    int rc;

    for (uint64_t i = 0; i < j->plan->groups; i++) {
        if ((rc = form_gradient(c, j, &j->plan->group[i], e)) < 0)
            return rc;
        for (uint64_t r0 = 0; r0 < j->s->rows; r0 += ROWS)
            if ((rc = move_block(c, j, &j->plan->group[i], groups[i], r0, e)) <
                0)
                return rc;
    }
    return 0;
}

/* groups[i]: which group comes at i, in the matrix's own order. */
static int sweep_all(struct cuda_context *c, const struct rows *j, int sweeps,
                     const uint32_t *groups, struct err *e)
{
    int any = 1, rc, room = sizeof(struct fisher_memory);

    CUDA_TRY(cudaFuncSetAttribute(fisher_group_kernel<DT_F16>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    CUDA_TRY(cudaFuncSetAttribute(fisher_group_kernel<DT_BF16>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    for (int i = 0; i < sweeps && any; i++) {
        CUDA_TRY(cudaMemsetAsync(j->s->any, 0, sizeof(any), c->stream));
        if ((rc = sweep(c, j, groups, e)) < 0)
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
    uint32_t *groups =
        (uint32_t *)mem_alloc(plan->groups * sizeof(*groups), "solve", e);
    int rc = groups ? 0 : e->code;

    j.matrix = x->i / s->share;
    j.first = x->i % s->share * s->module_rows;
    j.ld = s->module_rows;
    j.all = whole_of(&j);
    for (uint64_t k = 0; k < plan->groups && rc >= 0; k++) {
        uint32_t input;

        rc = download(c, &input,
                      f->input + j.matrix * f->cols + plan->group[k].c0,
                      sizeof(input), e);
        groups[k] = input / j.group;
    }
    if (rc >= 0 && (rc = load_fisher(c, &j, x->m->fisher, e)) >= 0 &&
        (rc = load_codes(c, &j, x->m->codes, x->meta, e)) >= 0)
        rc = sweep_all(c, &j, p->fisher_sweeps, groups, e);
    free(groups);
    return rc;
}
