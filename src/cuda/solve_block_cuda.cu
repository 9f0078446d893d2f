/* solve_block_cuda.cu - the solver's kernel: GPTQ on 128 columns of all rows of
 * all matrices, step 2 of solve_cuda.cu. */
#include "cuda/solve_internal.cuh"

#include <cuda_pipeline.h>

enum { SUB = 32 }; /* columns that a thread holds in registers */

/* The shared memory of a block of threads with R rows. */
template <int R> struct block_memory {
    float l[SOLVE_BLOCK][SOLVE_BLOCK]; /* L of the block, row-major */
    float pushed[SOLVE_BLOCK][R]; /* error feedback; column-major from here */
    float w[2][SUB][R];           /* of this sub-block and the next */
    uint32_t grid[2][SUB][R];     /* scale | zero, see keep_sub() */
    float d[2][SUB][R];           /* displacements: this, the previous */
    float mantissa[256];
    float inverse[SOLVE_BLOCK]; /* 1 / diagonal */
    uint32_t group[SOLVE_BLOCK];
};

/* A thread's row of a matrix: pointers to its beginning. */
struct block_rows {
    const float *w;
    const uint32_t *meta;
    __nv_bfloat16 *split;
    uint8_t *codes;
    uint64_t pitch;
    int row;     /* in the block of threads */
    int quarter; /* 0 quantizes; 1..3 meanwhile fetch, add feedback, store */
};

/* Load L and pushed by asynchronous copies, all in flight at once. */
template <int R>
static __device__ __forceinline__ void fetch_block(struct block_memory<R> *s,
                                                   const struct block_args &a)
{
    uint64_t m = blockIdx.y;
    const float *l = a.diagonal + (m * a.padded + a.c0) * SOLVE_BLOCK;
    const float *p = a.pushed + (m * a.padded + a.c0) * a.padded_rows +
                     (uint64_t)blockIdx.x * R;

    for (int i = threadIdx.x; i < SOLVE_BLOCK * SOLVE_BLOCK / 4; i += 4 * R)
        __pipeline_memcpy_async(&s->l[0][0] + 4 * i, l + 4 * i, 16);
    for (int i = threadIdx.x; i < SOLVE_BLOCK * R / 4; i += 4 * R) {
        int c = i / (R / 4), r = i % (R / 4) * 4;

        __pipeline_memcpy_async(&s->pushed[c][r], p + c * a.padded_rows + r,
                                16);
    }
    __pipeline_commit();
    for (int i = threadIdx.x; i < 256; i += 4 * R)
        s->mantissa[i] = a.mantissa[i];
    for (int c = threadIdx.x; c < SOLVE_BLOCK; c += 4 * R) {
        uint64_t at = a.c0 + c;

        s->inverse[c] = 1 / l[c * SOLVE_BLOCK + c];
        s->group[c] = at < a.cols ? a.input[m * a.cols + at] / a.group : 0;
    }
    __syncthreads();
}

/* Weights and grids of 32 columns, loaded by PARTS threads per row: first all
 * loads into registers, then, in keep_sub(), the stores to shared memory. */
template <int PARTS> struct block_fetch {
    enum { COUNT = (SUB + PARTS - 1) / PARTS };
    float w[COUNT];
    uint32_t meta[COUNT];
};

template <int PARTS, int R>
static __device__ __forceinline__ void
fetch_sub(struct block_fetch<PARTS> *f, const struct block_memory<R> *s,
          const struct block_rows &b, int first, int part)
{
#pragma unroll
    for (int i = 0; i < f->COUNT; i++) {
        int k = part + i * PARTS;

        if (k < SUB) {
            f->w[i] = b.w[(first + k) * b.pitch];
            f->meta[i] = b.meta[s->group[first + k] * b.pitch];
        }
    }
}

/* Store what was loaded.  A grid is one word: the f32 scale with the zero in
 * its low bits, which are 0 for a scale of f16 or bf16. */
template <enum dtype S, int PARTS, int R>
static __device__ __forceinline__ void
keep_sub(const struct block_fetch<PARTS> *f, struct block_memory<R> *s,
         const struct block_rows &b, int first, int part)
{
    int buffer = first / SUB % 2;

#pragma unroll
    for (int i = 0; i < f->COUNT; i++) {
        int k = part + i * PARTS;

        if (k < SUB) {
            s->w[buffer][k][b.row] = f->w[i];
            s->grid[buffer][k][b.row] =
                __float_as_uint(meta_scale<S>(s->mantissa, f->meta[i])) |
                (uint32_t)meta_zero(f->meta[i]);
        }
    }
}

/* Quantize 32 columns from the last to the first. */
template <int R>
static __device__ __forceinline__ void
solve_sub(struct block_memory<R> *s, const struct block_rows &b, int first,
          float *loss, float *dist)
{
    int buffer = first / SUB % 2;
    float acc[SUB];

#pragma unroll
    for (int k = 0; k < SUB; k++)
        acc[k] = s->pushed[first + k][b.row];
#pragma unroll
    for (int k = SUB - 1; k >= 0; k--) {
        uint32_t grid = s->grid[buffer][k][b.row];
        float w = s->w[buffer][k][b.row];
        float scale = __uint_as_float(grid & ~15u), zero = (float)(grid & 15);
        float star = fmaf(acc[k], s->inverse[first + k], w);
        float x = divide(star, scale, reciprocal(scale)), q, miss;

        x = fminf(fmaxf(x, -zero), 15 - zero);
        x = (x + ROUNDER) - ROUNDER;
        q = x * scale;
        w -= q;
#pragma unroll
        for (int j = SUB - 4; j >= 0; j -= 4) {
            float4 l;

            if (j >= k)
                continue;
            l = *(const float4 *)&s->l[first + k][first + j];
            if (j + 3 < k)
                acc[j + 3] = fmaf(w, l.w, acc[j + 3]);
            if (j + 2 < k)
                acc[j + 2] = fmaf(w, l.z, acc[j + 2]);
            if (j + 1 < k)
                acc[j + 1] = fmaf(w, l.y, acc[j + 1]);
            acc[j] = fmaf(w, l.x, acc[j]);
        }
        s->d[buffer][k][b.row] = w;
        miss = (star - q) * s->l[first + k][first + k];
        *loss = fmaf(miss, miss, *loss);
        *dist = fmaf(w, w, *dist);
        b.codes[(first + k) * b.pitch] = (uint8_t)(x + zero);
    }
}

/* Write the displacements of 32 columns as split bf16, for the products. */
template <int R>
static __device__ __forceinline__ void
store_sub(const struct block_memory<R> *s, const struct block_rows &b,
          int first, int part, int parts)
{
#pragma unroll 4
    for (int k = part; k < SUB; k += parts) {
        __nv_bfloat16 *to = b.split + (first + k) * 3 * b.pitch;
        float d = s->d[first / SUB % 2][k][b.row];
        __nv_bfloat16 high = __float2bfloat16_rn(d);

        to[0] = high;
        to[b.pitch] = high;
        to[2 * b.pitch] = __float2bfloat16_rn(d - __bfloat162float(high));
    }
}

/* Add the error feedback from the 32 columns from `first` on onto the eight
 * columns from j on. */
template <int R>
static __device__ __forceinline__ void push_sub(struct block_memory<R> *s,
                                                const struct block_rows &b,
                                                int first, int j)
{
    const float(*from)[R] = s->d[first / SUB % 2];
    float acc[SOLVE_PUSH];

#pragma unroll
    for (int i = 0; i < SOLVE_PUSH; i++)
        acc[i] = s->pushed[j + i][b.row];
#pragma unroll
    for (int k = 0; k < SUB; k++)
        solve_push(acc, from[k][b.row], &s->l[first + k][j]);
#pragma unroll
    for (int i = 0; i < SOLVE_PUSH; i++)
        s->pushed[j + i][b.row] = acc[i];
}

/* The work of quarters 1..3 while quarter 0 quantizes the sub-block at `first`:
 * finish the previous sub-block (feedback further left, stores), and fetch the
 * next one. */
template <enum dtype S, int R>
static __device__ __forceinline__ void
help_sub(struct block_memory<R> *s, const struct block_rows &b, int first)
{
    int last = first + SUB, part = b.quarter - 1;
    struct block_fetch<3> next;

    if (first > 0)
        fetch_sub(&next, s, b, first - SUB, part);
    if (last < SOLVE_BLOCK) {
        for (int j = first - SOLVE_PUSH * (part + 1); j >= 0;
             j -= 3 * SOLVE_PUSH)
            push_sub(s, b, last, j);
        store_sub(s, b, last, part, 3);
    }
    if (first > 0)
        keep_sub<S>(&next, s, b, first - SUB, part);
}

/* Quantize 128 columns of R rows of one matrix; grid (padded_rows / R,
 * matrices), 4 R threads: four quarters that own the same rows.  In sub-blocks
 * of 32 columns, from the last to the first: quarter 0 quantizes, one thread
 * per row, with the sums of 32 columns in registers; then all quarters add the
 * error feedback onto the next sub-block, eight columns each; feedback further
 * left is added by quarters 1..3 while quarter 0 goes on.
 *
 * Shared memory: 226 KiB for 128 rows, 146 KiB for 64 (which fits sm_80).
 * Deterministic: every sum has a fixed order.  Floor: 128 columns are a chain
 * of dependent steps of about 45 cycles each, 3.3 us at 1.75 GHz. */
template <enum dtype S, int R>
static __global__ void __launch_bounds__(4 * R, 1)
    solve_block_kernel(const struct block_args a)
{
    extern __shared__ float4 memory[];
    struct block_memory<R> *s = (struct block_memory<R> *)memory;
    uint64_t m = blockIdx.y;
    uint64_t row = (uint64_t)blockIdx.x * R + threadIdx.x % R;
    uint64_t at = (m * a.padded + a.c0) * a.padded_rows + row;
    struct block_rows b = { a.w + at,
                            a.meta + m * a.groups * a.padded_rows + row,
                            a.split + 3 * (at - row) + row,
                            a.codes + at,
                            a.padded_rows,
                            (int)(threadIdx.x % R),
                            (int)(threadIdx.x / R) };
    struct block_fetch<4> begin;
    float loss = 0, dist = 0;

    fetch_block(s, a);
    fetch_sub(&begin, s, b, SOLVE_BLOCK - SUB, b.quarter);
    keep_sub<S>(&begin, s, b, SOLVE_BLOCK - SUB, b.quarter);
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int first = SOLVE_BLOCK - SUB; first >= 0; first -= SUB) {
        if (b.quarter == 0)
            solve_sub(s, b, first, &loss, &dist);
        else
            help_sub<S>(s, b, first);
        __syncthreads();
        if (first > 0)
            push_sub(s, b, first, first - SOLVE_PUSH * (b.quarter + 1));
        __syncthreads();
    }
    store_sub(s, b, 0, b.quarter, 4);
    if (b.quarter == 0)
        a.loss[m * a.padded_rows + row] +=
            (double)loss - a.lambda[m] * (double)dist;
}

bool solve_large_blocks(const struct cuda_context *c,
                        const struct solve_state *s, int n)
{
    return s->padded_rows % 128 == 0 &&
           s->padded_rows / 64 * n > (uint64_t)c->processors &&
           sizeof(struct block_memory<128>) <= (size_t)c->shared_memory;
}

template <enum dtype S, int R>
static int launch_block(struct cuda_context *c, const struct block_args *a,
                        int n, struct err *e)
{
    dim3 grid((unsigned)(a->padded_rows / R), (unsigned)n);
    int room = sizeof(struct block_memory<R>);

    CUDA_TRY(cudaFuncSetAttribute(solve_block_kernel<S, R>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  room));
    solve_block_kernel<S, R><<<grid, 4 * R, room, c->stream>>>(*a);
    LAUNCHED();
    return 0;
}

int solve_block(struct cuda_context *c, enum dtype scale_dtype,
                const struct block_args *a, int n, bool large, struct err *e)
{
    if (scale_dtype == DT_F16)
        return large ? launch_block<DT_F16, 128>(c, a, n, e) :
                       launch_block<DT_F16, 64>(c, a, n, e);
    return large ? launch_block<DT_BF16, 128>(c, a, n, e) :
                   launch_block<DT_BF16, 64>(c, a, n, e);
}
