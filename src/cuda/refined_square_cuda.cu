/* refined_square_cuda.cu - parts of L and H in other forms, for the solver that
 * refines: the squares of groups, L turned, inverses of its diagonal blocks. */
#include "cuda/refined_internal.cuh"

#include <stdlib.h>

enum { TILE = 32, BLOCK = SOLVE_BLOCK, DIVIDE = REFINED_DIVIDE };

/* ---- groups ---- */

/* diagonal[m][c0 + k][j] = L[c0 + k][c0 + j] of the group at c0, curve the same
 * of H; zero beyond the group and above L's diagonal.  extent[c0 + k]: c0 and
 * the group's columns.  A block of 128 threads a row; grid (padded, matrices). */
static __global__ void __launch_bounds__(BLOCK)
    refined_square_kernel(float *diagonal, float *curve, const float *l,
                          const __nv_bfloat16 *whole, const uint2 *extent,
                          uint64_t padded)
{
    uint64_t row = blockIdx.x, m = blockIdx.y, j = threadIdx.x;
    uint64_t c0 = extent[row].x, n = extent[row].y, k = row - c0;
    uint64_t to = (m * padded + row) * BLOCK + j;
    uint64_t at = (m * padded + row) * padded + c0 + j;

    diagonal[to] =
        k < n && j <= k ? l[(m * padded + c0 + j) * padded + row] : 0;
    curve[to] = k < n && j < n ? __bfloat162float(whole[3 * at]) +
                                     __bfloat162float(whole[3 * at + 1]) :
                                 0;
}

int refined_squares(struct cuda_context *c, struct cuda_factors *f,
                    const struct tile_plan *plan, struct err *e)
{
    uint2 *extent;
    int rc;

    if (f->laid)
        return 0;
    extent = (uint2 *)mem_zero(f->padded, sizeof(*extent), "solve", e);
    if (!extent)
        return e->code;
    for (uint64_t i = 0; i < plan->groups; i++)
        for (uint64_t k = plan->group[i].c0; k < plan->group[i].c1; k++)
            extent[k] = { (unsigned)plan->group[i].c0,
                          (unsigned)(plan->group[i].c1 - plan->group[i].c0) };
    rc = buffer_need(c, &c->order, f->padded * sizeof(*extent), e);
    if (rc >= 0)
        rc = upload(c, c->order.data, extent, f->padded * sizeof(*extent), e);
    free(extent);
    if (rc < 0)
        return rc;
    refined_square_kernel<<<dim3((unsigned)f->padded, (unsigned)f->n), BLOCK, 0,
                            c->stream>>>(f->diagonal, f->curve, f->l, f->whole,
                                         (const uint2 *)c->order.data,
                                         f->padded);
    LAUNCHED();
    f->laid = true;
    return 0;
}

/* ---- L turned ---- */

/* to[3 (r * n + c) + part] = L[r][c] as high, low, high for r >= c, else 0; a
 * block moves 32 x 32 through shared memory (4 KiB); block 32 x 8, grid (n / 32,
 * n / 32). */
static __global__ void refined_turn_kernel(__nv_bfloat16 *to, const float *l,
                                           uint64_t n)
{
    __shared__ float tile[TILE][TILE + 1];
    uint64_t r0 = (uint64_t)blockIdx.x * TILE, c0 = (uint64_t)blockIdx.y * TILE;

    for (uint32_t y = threadIdx.y; y < TILE; y += blockDim.y)
        tile[y][threadIdx.x] = l[(c0 + y) * n + r0 + threadIdx.x];
    __syncthreads();
    for (uint32_t y = threadIdx.y; y < TILE; y += blockDim.y) {
        uint64_t r = r0 + y, c = c0 + threadIdx.x;
        float x = r >= c ? tile[threadIdx.x][y] : 0;
        __nv_bfloat16 *at = to + 3 * (r * n + c);

        at[0] = at[2] = __float2bfloat16_rn(x);
        at[1] = __float2bfloat16_rn(x - __bfloat162float(at[0]));
    }
}

int refined_turn(struct cuda_context *c, __nv_bfloat16 *to, const float *l,
                 uint64_t n, struct err *e)
{
    refined_turn_kernel<<<dim3((unsigned)(n / TILE), (unsigned)(n / TILE)),
                          dim3(TILE, 8), 0, c->stream>>>(to, l, n);
    LAUNCHED();
    return 0;
}

/* ---- inverses ---- */

struct inverse_memory {
    float l[BLOCK][BLOCK]; /* [column][row] */
    float x[BLOCK][BLOCK]; /* [row][column] of the inverse */
};

/* Block b of 128 of L's diagonal, inverted, to its place in the inverse of the
 * 512 that it lies in, by columns; an identity beyond L.  A thread makes a column
 * by substitution; grid (blocks of 128 in whole blocks of 512).  Shared memory:
 * 128 KiB. */
static __global__ void __launch_bounds__(BLOCK)
    refined_inverse_kernel(float *to, const float *l, uint64_t n)
{
    extern __shared__ float4 memory[];
    struct inverse_memory *s = (struct inverse_memory *)memory;
    uint64_t c0 = (uint64_t)blockIdx.x * BLOCK, at = c0 % DIVIDE;
    int t = (int)threadIdx.x;

    for (int k = 0; k < BLOCK; k++)
        s->l[k][t] = c0 < n ? l[(c0 + k) * n + c0 + t] : (float)(k == t);
    for (int k = 0; k < BLOCK; k++)
        s->x[k][t] = 0;
    __syncthreads();
    for (int i = 0; i < BLOCK; i++) {
        float sum[4] = { i == t ? 1.0f : 0.0f };

#pragma unroll 4
        for (int k = 0; k < i; k += 4) /* x is zero from row i on */
            for (int u = 0; u < 4; u++)
                sum[u] = fmaf(-s->l[k + u][i], s->x[k + u][t], sum[u]);
        s->x[i][t] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) / s->l[i][i];
    }
    to += c0 / DIVIDE * DIVIDE * DIVIDE + at * DIVIDE + at;
    for (int k = 0; k < BLOCK; k++) /* each thread its column */
        to[(uint64_t)t * DIVIDE + k] = s->x[k][t];
}

/* The lower left of inverses whose halves are known, `half` wide, the first of
 * `count` at l and v, step_l and step_v apart; r of its rows are there:
 * -V22 L21 V11. */
struct join {
    const float *l;
    float *v;
    uint64_t n, half, rows, step_l, step_v;
    int count;
};
static int join(struct cuda_context *c, const struct join *j, float *scratch,
                struct err *e)
{
    const float one = 1, minus = -1, zero = 0;
    int h = (int)j->half, r = (int)j->rows;

    if (!j->count || !r)
        return 0;
    BLAS_TRY(c->blas.gemm_batched(
        c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, r, h, h, &one, j->l + j->half,
        CUDA_R_32F, (int)j->n, (long long)j->step_l, j->v, CUDA_R_32F, DIVIDE,
        (long long)j->step_v, &zero, scratch, CUDA_R_32F, h,
        (long long)(j->half * j->half), j->count, CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT));
    BLAS_TRY(c->blas.gemm_batched(
        c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, r, h, r, &minus,
        j->v + j->half * (DIVIDE + 1), CUDA_R_32F, DIVIDE, (long long)j->step_v,
        scratch, CUDA_R_32F, h, (long long)(j->half * j->half), &zero,
        j->v + j->half, CUDA_R_32F, DIVIDE, (long long)j->step_v, j->count,
        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return 0;
}

/* From 128 to 256 to 512: whole pairs by one call, then what is left of L. */
static int join_all(struct cuda_context *c, const float *l, float *v,
                    uint64_t n, struct err *e)
{
    float *scratch = v + round_up(n, DIVIDE) * DIVIDE;
    int rc;

    for (uint64_t half = BLOCK; half < DIVIDE; half *= 2) {
        uint64_t wide = 2 * half, whole = n / wide;
        struct join j = { l, v, n, half, half, wide * (n + 1), 0, 1 };

        for (uint64_t k = 0; k < DIVIDE / wide; k++) {
            /* pairs at the same place of every 512 */
            uint64_t at = k * wide;

            j.l = l + at * (n + 1);
            j.v = v + at * (DIVIDE + 1);
            j.step_l = DIVIDE * (n + 1);
            j.step_v = DIVIDE * DIVIDE;
            j.count = (int)((whole + DIVIDE / wide - 1 - k) / (DIVIDE / wide));
            if ((rc = join(c, &j, scratch, e)) < 0)
                return rc;
        }
        if (n % wide <= half)
            continue;
        j.l = l + whole * wide * (n + 1);
        j.v = v + whole * wide / DIVIDE * DIVIDE * DIVIDE +
              whole * wide % DIVIDE * (DIVIDE + 1);
        j.rows = n % wide - half;
        j.count = 1;
        if ((rc = join(c, &j, scratch, e)) < 0)
            return rc;
    }
    return 0;
}

int refined_inverses(struct cuda_context *c, const float *l, uint64_t n,
                     const float **v, struct err *e)
{
    uint64_t wide = round_up(n, DIVIDE);
    size_t bytes = inverse_room(n);
    int room = sizeof(struct inverse_memory), rc;

    if ((rc = buffer_need(c, &c->inverse, bytes, e)) < 0)
        return rc;
    *v = (float *)c->inverse.data;
    CUDA_TRY(cudaMemsetAsync(c->inverse.data, 0, bytes, c->stream));
    CUDA_TRY(cudaFuncSetAttribute(refined_inverse_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    refined_inverse_kernel<<<(unsigned)(wide / BLOCK), BLOCK, room,
                             c->stream>>>((float *)c->inverse.data, l, n);
    LAUNCHED();
    return join_all(c, l, (float *)c->inverse.data, n, e);
}
