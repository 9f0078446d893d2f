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
 * move at the same time, a warp for each, as if F had nothing between them; then
 * they bring the next eight rows up to date, and other warps the rows behind.  A
 * warp decides all 128 columns of its row at once, takes the first one that moves
 * and decides anew those behind it, which costs a move, not a code.
 *
 * The CPU takes all columns of a row before the next row: another order of the
 * same descent. */
#include "cuda/refined_internal.cuh"

#include <stdlib.h>

enum {
    WIDE = REFINED_WIDE,
    ROWS = 64,
    THREADS = 512,
    WARP = 32,
    PARTS = WIDE / WARP,   /* columns of a lane: PARTS * lane and on */
    STRIDE = WIDE + PARTS, /* of rows of g */
    STEP = 8,              /* rows that move at a time, a warp for each */
    STEPS = ROWS / STEP,   /* and that are published at a time */
    PUBLISHER = THREADS / WARP - 1, /* the warp that does */
    BRINGERS = PUBLISHER - STEP,    /* warps that bring rows up to date */
    SIDES = THREADS / WIDE,         /* threads of a column of G */
    OWN = ROWS / SIDES              /* rows of one of them */
};

/* Rows of a module and columns of a group, for the kernel: pointers to the first
 * of both, columns `pitch` apart. */
struct fisher_group {
    const float *gradient; /* [n, ld]: G */
    float *pushed;         /* [ld, WIDE]: v */
    int *published;      /* [ld / ROWS + 1], zero at first: steps of v that are
                     * there; last, the number of blocks that have begun */
    const float *fisher; /* [ld, ld] */
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

/* Of the rows in the order in which they move, see place(). */
struct fisher_memory {
    float h[WIDE][WIDE];
    float g[ROWS][STRIDE];
    float f[ROWS][ROWS];
    float before[2][ROWS][ROWS]; /* F, rows before and these, in their order */
    float v[2][STEP][WIDE];
    float scale[ROWS], zero[ROWS];
    float mantissa[256];
    uint8_t code[ROWS][WIDE];
    int number;
};

/* Row r of 64 moves in step r % STEPS; and row place(r) is the one that comes at
 * r. */
static __device__ __forceinline__ int place(int r)
{
    return r % STEPS * STEP + r / STEPS;
}

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

/* Where the block begins: the next 64 rows that none has begun, so that a block
 * waits for blocks alone that run or have ended. */
static __device__ void take_rows(struct fisher_memory *s,
                                 struct fisher_group *a, int *number)
{
    int r0;

    if (threadIdx.x == 0)
        s->number = atomicAdd(a->published + a->ld / ROWS, 1);
    __syncthreads();
    *number = s->number;
    r0 = *number * ROWS;
    a->gradient += r0;
    a->w += r0;
    a->d += r0;
    a->split += r0;
    a->codes += r0;
    a->meta += r0;
    a->rows = min(a->rows - r0, (int)ROWS);
}

template <enum dtype S>
static __device__ void fetch(struct fisher_memory *s,
                             const struct fisher_group &a, int number)
{
    const float *f = a.fisher + (uint64_t)number * ROWS * (a.ld + 1);
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

        s->code[place(r)][k] =
            k < a.n && r < a.rows ? a.codes[k * a.pitch + r] : 0;
    }
    for (int i = t; i < ROWS * ROWS; i += THREADS)
        s->f[place(i / ROWS)][place(i % ROWS)] = f[i / ROWS * a.ld + i % ROWS];
    refined_arrived();
    if (t < ROWS) {
        uint32_t meta = t < a.rows ? a.meta[t] : 0;

        s->scale[place(t)] = refined_scale<S>(s->mantissa, meta);
        s->zero[place(t)] = (float)meta_zero(meta);
    }
}

static __device__ __forceinline__ int acquire(const int *p)
{
    int x;

    asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

/* F of the 64 rows of block b and of these, on its way to s->before. */
static __device__ void fetch_before(struct fisher_memory *s,
                                    const struct fisher_group &a, int number,
                                    int b)
{
    const float *f = a.fisher + (uint64_t)b * ROWS * a.ld + number * ROWS;

    for (int i = (int)threadIdx.x; i < ROWS * ROWS / 4; i += THREADS) {
        int j = i / (ROWS / 4), r = i % (ROWS / 4) * 4;

        refined_copy(&s->before[b & 1][j][r], f + j * a.ld + r);
    }
}

/* g += F v of the rows of a step; f, v: of the first of them. */
static __device__ __forceinline__ void push_step(float *g, const float *f,
                                                 const float *v)
{
    float moved[STEP];

#pragma unroll
    for (int j = 0; j < STEP; j++)
        moved[j] = __ldcg(v + j * STEPS * WIDE);
#pragma unroll
    for (int j = 0; j < STEP; j++)
#pragma unroll
        for (int i = 0; i < OWN; i += 4) {
            float4 x = *(const float4 *)(f + j * STEPS * ROWS + i);

            g[i] = fmaf(x.x, moved[j], g[i]);
            g[i + 1] = fmaf(x.y, moved[j], g[i + 1]);
            g[i + 2] = fmaf(x.z, moved[j], g[i + 2]);
            g[i + 3] = fmaf(x.w, moved[j], g[i + 3]);
        }
}

/* s->g = G and the F v of all rows before.  A thread has OWN rows of a column. */
static __device__ void gather(struct fisher_memory *s,
                              const struct fisher_group &a, int number)
{
    int k = (int)threadIdx.x % WIDE, r = (int)threadIdx.x / WIDE * OWN;
    const float *v = a.pushed + k;
    float g[OWN];

    if (number)
        fetch_before(s, a, number, 0);
#pragma unroll
    for (int i = 0; i < OWN; i++)
        g[i] = k < a.n ? a.gradient[k * a.ld + r + i] : 0;
    for (int b = 0; b < number; b++, v += ROWS * WIDE) {
        const float *f = s->before[b & 1][0] + r;
        int there = acquire(a.published + b);

        refined_arrived();
        if (b + 1 < number)
            fetch_before(s, a, number, b + 1);
        if (there == STEPS) {
#pragma unroll 2
            for (int i = 0; i < STEPS; i++)
                push_step(g, f + i * ROWS, v + i * WIDE);
            continue;
        }
        for (int i = 0; i < STEPS; i++) {
            while (there <= i)
                there = acquire(a.published + b);
            push_step(g, f + i * ROWS, v + i * WIDE);
        }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++)
        s->g[place(r + i)][k] = g[i];
    __syncthreads();
}

/* All codes of the row at p, by a warp.  g: its G; curve: 1 / H's diagonal; sum:
 * what moved times H.  True when one has. */
static __device__ __forceinline__ bool move_row(struct fisher_memory *s, int p,
                                                const float *g,
                                                const float *curve, float *sum)
{
    int lane = (int)threadIdx.x % WARP;
    float f = s->f[p][p], scale = s->scale[p];
    float inverse_f = f > 0 ? 1 / f : 0, inverse_scale = 1 / scale;
    uint8_t *codes = &s->code[p][PARTS * lane];
    float code[PARTS], t[PARTS], inverse[PARTS];
    unsigned open = (1 << PARTS) - 1, ready;
    bool any = false;

#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        code[q] = (float)codes[q];
        t[q] = g[q] * inverse_f;
        inverse[q] = curve[q] * inverse_scale;
        sum[q] = 0;
    }
    for (;;) {
        int first = PARTS, from, c;
        float moved = 0, best = 0, m;

#pragma unroll
        for (int q = PARTS - 1; q >= 0; q--) {
            float x = fminf(fmaxf(fmaf(t[q], inverse[q], code[q]), 0), 15);

            x = (x + ROUNDER) - ROUNDER;
            if (x != code[q] && open >> q & 1) {
                first = q;
                best = x;
                moved = (code[q] - x) * scale;
            }
        }
        ready = __ballot_sync(~0u, first < PARTS);
        if (!ready)
            break;
        any = true;
        from = __ffs((int)ready) - 1;
        m = __shfl_sync(~0u, moved, from);
        c = PARTS * from + __shfl_sync(~0u, first, from);
        if (lane <= from)
            open = lane == from ? open & ~0u << (first + 1) : 0;
        const float4 h = *(const float4 *)&s->h[c][PARTS * lane];
        const float to[PARTS] = { h.x, h.y, h.z, h.w };

#pragma unroll
        for (int q = 0; q < PARTS; q++) {
            if (lane == from && q == first)
                code[q] = best;
            t[q] = fmaf(m, to[q], t[q]);
            sum[q] = fmaf(m, to[q], sum[q]);
        }
    }
#pragma unroll
    for (int q = 0; q < PARTS; q++)
        codes[q] = (uint8_t)code[q];
    return any;
}

/* to[0..PARTS) += sum over the rows j of a step of f[j] v[j]. */
static __device__ __forceinline__ void add_step(float *to, const float *f,
                                                const float4 *v)
{
#pragma unroll
    for (int j = 0; j < STEP; j++) {
        to[0] = fmaf(f[j], v[j].x, to[0]);
        to[1] = fmaf(f[j], v[j].y, to[1]);
        to[2] = fmaf(f[j], v[j].z, to[2]);
        to[3] = fmaf(f[j], v[j].w, to[3]);
    }
}

/* v[j] = what the rows of the step before `step` have moved, in the lane's
 * columns. */
static __device__ __forceinline__ void fetch_moves(struct fisher_memory *s,
                                                   int step, float4 *v)
{
    int k = (int)threadIdx.x % WARP * PARTS;

#pragma unroll
    for (int j = 0; j < STEP; j++)
        v[j] = *(const float4 *)&s->v[(step & 1) ^ 1][j][k];
}

/* The row of step `step` that is the warp's: its moves, to s->v and a.pushed. */
static __device__ __forceinline__ bool decide(struct fisher_memory *s,
                                              const struct fisher_group &a,
                                              int number, int step,
                                              const float *curve)
{
    int i = (int)threadIdx.x / WARP, k = (int)threadIdx.x % WARP * PARTS;
    int p = step * STEP + i, r = number * ROWS + place(p);
    float4 at = *(const float4 *)&s->g[p][k], v[STEP];
    float g[PARTS] = { at.x, at.y, at.z, at.w }, sum[PARTS];
    bool any;

    if (step) {
        fetch_moves(s, step, v);
        add_step(g, &s->f[p][(step - 1) * STEP], v);
    }
    any = move_row(s, p, g, curve, sum);
    at = make_float4(sum[0], sum[1], sum[2], sum[3]);
    *(float4 *)&s->v[step & 1][i][k] = at;
    *(float4 *)&a.pushed[(uint64_t)r * WIDE + k] = at;
    return any;
}

/* The moves of the step before `step` to G of the rows that come after `step`, by
 * warps STEP and on. */
static __device__ __forceinline__ void bring(struct fisher_memory *s, int step)
{
    int k = (int)threadIdx.x % WARP * PARTS;
    int p = (step + 1) * STEP + (int)threadIdx.x / WARP - STEP;
    float4 v[STEP];

    if (!step)
        return;
    fetch_moves(s, step, v);
    for (; p < ROWS; p += BRINGERS) {
        float4 *at = (float4 *)&s->g[p][k];
        float g[PARTS] = { at->x, at->y, at->z, at->w };

        add_step(g, &s->f[p][(step - 1) * STEP], v);
        *at = make_float4(g[0], g[1], g[2], g[3]);
    }
}

/* a.pushed has the first n steps: of all threads before the last barrier. */
static __device__ __forceinline__ void publish(const struct fisher_group &a,
                                               int number, int n)
{
    if (!n || threadIdx.x % WARP)
        return;
    __threadfence();
    atomicExch(a.published + number, n);
}

/* Move the codes of 64 rows of a group.  Shared memory: 165 KiB. */
template <enum dtype S>
static __global__ void __launch_bounds__(THREADS)
    fisher_group_kernel(struct fisher_group a)
{
    extern __shared__ float4 memory[];
    struct fisher_memory *s = (struct fisher_memory *)memory;
    int warp = (int)threadIdx.x / WARP, number;
    float curve[PARTS];
    bool any = false;

    take_rows(s, &a, &number);
    fetch<S>(s, a, number);
    gather(s, a, number);
    for (int q = 0; q < PARTS; q++) {
        int k = (int)threadIdx.x % WARP * PARTS + q;

        curve[q] = s->h[k][k] > 0 ? 1 / s->h[k][k] : 0;
    }
    for (int step = 0; step < STEPS; step++) {
        if (warp < STEP)
            any |= decide(s, a, number, step, curve);
        else if (warp == PUBLISHER)
            publish(a, number, step);
        else
            bring(s, step);
        __syncthreads();
    }
    if (warp == PUBLISHER)
        publish(a, number, STEPS);
    if (any && threadIdx.x % WARP == 0)
        *a.any = 1;
    for (int i = (int)threadIdx.x; i < ROWS * a.n; i += THREADS) {
        int r = i % ROWS, k = i / ROWS, p = place(r);
        uint64_t at = k * a.pitch + r;
        float d;

        if (r >= a.rows)
            continue;
        d = a.w[at] - ((float)s->code[p][k] - s->zero[p]) * s->scale[p];
        a.codes[at] = s->code[p][k];
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

template <enum dtype S>
static int launch(struct cuda_context *c, const struct fisher_group *a,
                  uint64_t blocks, struct err *e)
{
    int room = sizeof(struct fisher_memory);

    CUDA_TRY(cudaFuncSetAttribute(fisher_group_kernel<S>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    fisher_group_kernel<S><<<(unsigned)blocks, THREADS, room, c->stream>>>(*a);
    LAUNCHED();
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
    return j->scale_dtype == DT_F16 ? launch<DT_F16>(c, &a, blocks, e) :
                                      launch<DT_BF16>(c, &a, blocks, e);
}

static int sweep(struct cuda_context *c, const struct rows *j,
                 const uint32_t *groups, struct err *e)
{
    int rc = 0;

    for (uint64_t i = 0; i < j->plan->groups && rc >= 0; i++) {
        rc = form_gradient(c, j, &j->plan->group[i], e);
        if (rc >= 0)
            rc = move_group(c, j, &j->plan->group[i], groups[i], e);
    }
    return rc;
}

/* groups[i]: which group comes at i, in the matrix's own order. */
static int sweep_all(struct cuda_context *c, const struct rows *j, int sweeps,
                     const uint32_t *groups, struct err *e)
{
    int any = 1, rc;

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
