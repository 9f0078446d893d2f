/* ragged_cuda.cu - the Hessians of many inputs of the same width in one launch:
 * a layer's experts, each with as many tokens as were routed to it.  Hopper GPUs
 * use the kernel of ragged_wgmma_cuda.cu instead of this one.
 *
 * cuBLAS needs a call per expert (hessian_cuda.cu).  Here every tile of every
 * expert's lower triangle is a block of threads.  Experts with the most tokens
 * come first, so that the last blocks to run are short.  Deterministic: one block
 * computes a tile, adding tokens in order, without atomics. */
#include "cuda/internal.cuh"
#include "cuda/mma.cuh"

#include <stdlib.h>
#include <string.h>

enum {
    TILE_I = 256, /* rows of a block's tile of H */
    TILE_J = 128, /* its columns */
    WARP_TILE = 64,
    THREADS = TILE_I / WARP_TILE * (TILE_J / WARP_TILE) * 32,
    DEPTH = 32,  /* tokens of a step */
    STAGES = 4,  /* steps in the pipeline, one of them in use */
    RUN = 16384, /* tokens of a partial sum */
    PART_I = DEPTH * TILE_I * 2,
    STAGE = PART_I + DEPTH * TILE_J * 2, /* bytes */
    ROOM = STAGES * STAGE,
    PATCH = 72 /* row stride, in floats, of a warp's output: different banks */
};

struct ragged {
    const __nv_bfloat16 *x; /* [tokens, cols] */
    float *h;               /* packed lower triangle */
    uint64_t tokens;
};

/* Tile number t of the triangle: tile row i has the tile columns 0..2 i + 1. */
static __device__ __forceinline__ void find_tile(uint32_t t, uint32_t *i0,
                                                 uint32_t *j0)
{
    uint32_t row = (uint32_t)((sqrtf(4 * (float)t + 1) - 1) / 2);

    row -= row * (row + 1) > t;
    row += (row + 1) * (row + 2) <= t;
    *i0 = row * TILE_I;
    *j0 = (t - row * (row + 1)) * TILE_J;
}

/* Offset of eight columns (a piece of 16 bytes) of a token in a step's shared
 * memory: a row per token, pieces swizzled so that eight tokens lie in
 * different banks. */
static __device__ __forceinline__ uint32_t place(uint32_t token, uint32_t piece,
                                                 uint32_t width)
{
    return token * width * 2 + (piece ^ token % 8) * 16;
}

/* Start the copies of columns first..first+width-1 of up to DEPTH tokens. */
static __device__ __forceinline__ void fetch(uint32_t to,
                                             const __nv_bfloat16 *x,
                                             uint32_t cols, uint64_t tokens,
                                             uint32_t first, uint32_t width)
{
    uint32_t piece = threadIdx.x % (width / 8), column = first + 8 * piece;

#pragma unroll
    for (uint32_t n = 0; n < DEPTH * width / 8 / THREADS; n++) {
        uint32_t k = threadIdx.x / (width / 8) + n * (THREADS * 8 / width);
        bool there = k < tokens && column < cols;

        copy_16(to + place(k, piece, width),
                there ? x + (size_t)k * cols + column : x, there);
    }
}

/* The warp's sum[64, 64] += the products of a step. */
static __device__ __forceinline__ void
multiply_step(float sum[4][8][4], uint32_t at, uint32_t wi, uint32_t wj)
{
    uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t k = 0; k < DEPTH; k += 16) {
        uint32_t a[4][4], b[4][4];

#pragma unroll
        for (uint32_t m = 0; m < 4; m++)
            load_transposed(a[m],
                            at + place(k + lane / 16 * 8 + lane % 8,
                                       wi / 8 + 2 * m + lane / 8 % 2, TILE_I));
#pragma unroll
        for (uint32_t n = 0; n < 4; n++)
            load_transposed(b[n],
                            at + PART_I +
                                place(k + lane / 8 % 2 * 8 + lane % 8,
                                      wj / 8 + 2 * n + lane / 16, TILE_J));
#pragma unroll
        for (uint32_t m = 0; m < 4; m++)
#pragma unroll
            for (uint32_t n = 0; n < 8; n++)
                multiply(sum[m][n], a[m], b[n / 2] + n % 2 * 2);
    }
}

/* Where a block's tile of H begins, and the warp's part within it; idle: that
 * part lies above the diagonal or beyond H. */
struct place {
    uint32_t i0, j0, wi, wj;
    bool idle;
};

/* The products of up to RUN tokens.  While a step is multiplied, the next
 * STAGES - 1 are being copied. */
static __device__ void multiply_run(float sum[4][8][4], uint32_t room,
                                    const __nv_bfloat16 *x, uint32_t cols,
                                    uint32_t tokens, const struct place &at)
{
    uint32_t steps = (tokens + DEPTH - 1) / DEPTH;
    auto fetch_step = [&](uint32_t s) {
        uint32_t to = room + s % STAGES * STAGE, t = s * DEPTH;

        if (s < steps) {
            const __nv_bfloat16 *from = x + (size_t)t * cols;

            fetch(to, from, cols, tokens - t, at.i0, TILE_I);
            fetch(to + PART_I, from, cols, tokens - t, at.j0, TILE_J);
        }
        copy_commit();
    };

    for (uint32_t s = 0; s < STAGES - 1; s++)
        fetch_step(s);
    for (uint32_t s = 0; s < steps; s++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        fetch_step(s + STAGES - 1);
        if (!at.idle)
            multiply_step(sum, room + s % STAGES * STAGE, at.wi, at.wj);
    }
    copy_wait<0>();
    __syncthreads();
}

/* Write the warp's part of the triangle, by rows: h = (h + sum) * factor, h
 * read as 0 if `first`. */
static __device__ void write_sums(const float sum[4][8][4], float *patch,
                                  float *h, uint32_t cols, uint32_t i0,
                                  uint32_t j0, bool first, double factor)
{
    uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t m = 0; m < 4; m++) {
        float *to = patch + lane / 4 * PATCH + 2 * (lane % 4);

#pragma unroll
        for (uint32_t n = 0; n < 8; n++) {
            const float *s = sum[m][n];

            *(float2 *)(to + 8 * n) = make_float2(s[0], s[1]);
            *(float2 *)(to + 8 * PATCH + 8 * n) = make_float2(s[2], s[3]);
        }
        __syncwarp();
        for (uint32_t r = 0; r < 16; r++)
            for (uint32_t k = lane; k < WARP_TILE; k += 32) {
                uint64_t i = i0 + 16 * m + r, j = j0 + k;
                float *out = h + (i * (i + 1) / 2 + j);

                if (i < cols && j <= i)
                    *out = (float)__dmul_rn(
                        (double)((first ? 0 : *out) + patch[r * PATCH + k]),
                        factor);
            }
        __syncwarp();
    }
}

/* A block computes a tile of 256 x 128 of one expert's H, a warp 64 x 64 of it
 * (nothing, if that lies above the diagonal); grid: tiles of a triangle times
 * experts.  Shared memory: four steps of 32 tokens, 96 KiB; both operands are
 * read by transposing ldmatrix.  Needs sm_80.  Floor: cols² / 2 multiply-adds
 * per token; a block reads 768 bytes per token, from the L2 cache in most
 * cases. */
static __global__ void __launch_bounds__(THREADS, 1)
    hessian_ragged_kernel(const struct ragged *list, uint32_t tiles,
                          uint32_t cols)
{
    extern __shared__ float4 memory[];
    const struct ragged r = list[blockIdx.x / tiles];
    uint32_t warp = threadIdx.x / 32;
    struct place at = { 0, 0, warp / 2 * WARP_TILE, warp % 2 * WARP_TILE,
                        false };
    float *patch = (float *)memory + warp * 16 * PATCH;

    find_tile(blockIdx.x % tiles, &at.i0, &at.j0);
    if (at.j0 >= cols)
        return;
    at.idle = at.i0 + at.wi + WARP_TILE <= at.j0 + at.wj;
    for (uint64_t t = 0; t == 0 || t < r.tokens; t += RUN) {
        uint64_t left = r.tokens - t;
        bool last = left <= RUN;
        float sum[4][8][4] = {};

        multiply_run(sum, shared_address(memory), r.x + t * cols, cols,
                     last ? (uint32_t)left : RUN, at);
        if (!at.idle)
            write_sums(sum, patch, r.h, cols, at.i0 + at.wi, at.j0 + at.wj,
                       t == 0,
                       !last    ? 1 :
                       r.tokens ? 2 / (double)r.tokens :
                                  0);
        __syncthreads();
    }
}

int ragged_mma(struct cuda_context *c, uint64_t cols,
               const struct cuda_tokens *t, int n, struct err *e)
{
    uint64_t rows = (cols + TILE_I - 1) / TILE_I, tiles = rows * (rows + 1);
    struct ragged *list;
    int rc;

    if (tiles > (uint64_t)(INT32_MAX / n))
        return err_set(e, E_CONFIG, "hessians: too many inputs");
    if ((rc = buffer_need(c, &c->steps, n * sizeof(*list), e)) < 0)
        return rc;
    list = (struct ragged *)mem_alloc(n * sizeof(*list), "hessian", e);
    if (!list)
        return e->code;
    for (int i = 0; i < n; i++) {
        list[i].x = (const __nv_bfloat16 *)t[i].x;
        list[i].h = t[i].h;
        list[i].tokens = t[i].tokens;
    }
    rc = upload(c, c->steps.data, list, n * sizeof(*list), e);
    free(list);
    if (rc < 0)
        return rc;
    CUDA_TRY(cudaFuncSetAttribute(hessian_ragged_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  ROOM));
    hessian_ragged_kernel<<<(unsigned)(n * tiles), THREADS, ROOM, c->stream>>>(
        (const struct ragged *)c->steps.data, (uint32_t)tiles, (uint32_t)cols);
    LAUNCHED();
    return 0;
}

/* ---- lists ---- */

static int most_first(const void *a, const void *b)
{
    uint64_t x = ((const struct cuda_tokens *)a)->tokens,
             y = ((const struct cuda_tokens *)b)->tokens;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Which kernel is taken depends on the GPU alone: an input's bytes are the same in
 * any company. */
int ragged_device(struct cuda_context *c, uint64_t cols,
                  const struct cuda_tokens *t, int n, struct err *e)
{
    struct cuda_tokens *sorted;
    int rc;

    if (cols % 8 || cols > INT32_MAX)
        return err_set(e, E_CONFIG,
                       "hessians: the GPU takes inputs in "
                       "multiples of 8");
    sorted = (struct cuda_tokens *)mem_alloc(n * sizeof(*t), "hessian", e);
    if (!sorted)
        return e->code;
    memcpy(sorted, t, n * sizeof(*t));
    qsort(sorted, n, sizeof(*t), most_first);
    rc = ragged_wgmma_runs(c) ? ragged_wgmma(c, cols, sorted, n, e) :
                                ragged_mma(c, cols, sorted, n, e);
    free(sorted);
    return rc;
}

/* d[n]: scratch memory for the list with device pointers. */
static int run_batch(struct cuda_context *c, uint64_t cols,
                     const struct cuda_tokens *t, struct cuda_tokens *d, int n,
                     struct err *e)
{
    uint64_t x = 0, h = 0, elements = cols * (cols + 1) / 2;
    int rc;

    for (int i = 0; i < n; i++) {
        x += t[i].x_there ? 0 : t[i].tokens * cols * 2;
        h += t[i].h_there ? 0 : elements;
    }
    if ((x && (rc = buffer_need(c, &c->weight, x, e)) < 0) ||
        (h && (rc = buffer_need(c, &c->packed, h * sizeof(float), e)) < 0))
        return rc;
    x = h = 0;
    for (int i = 0; i < n; i++) {
        uint64_t size = t[i].x_there ? 0 : t[i].tokens * cols * 2;

        d[i] = t[i];
        if (!t[i].x_there)
            d[i].x = (char *)c->weight.data + x;
        if (!t[i].h_there)
            d[i].h = (float *)c->packed.data + h;
        x += size;
        h += t[i].h_there ? 0 : elements;
        if (size && (rc = upload(c, (void *)d[i].x, t[i].x, size, e)) < 0)
            return rc;
    }
    if ((rc = ragged_device(c, cols, d, n, e)) < 0)
        return rc;
    for (int i = 0; i < n; i++)
        if (!t[i].h_there &&
            (rc = download(c, t[i].h, d[i].h, elements * sizeof(float), e)) < 0)
            return rc;
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}

int cuda_hessians(struct cuda_context *c, uint64_t cols,
                  const struct cuda_tokens *t, int n, struct err *e)
{
    struct cuda_tokens *d =
        (struct cuda_tokens *)mem_alloc(n * sizeof(*d), "hessian", e);
    int rc;

    if (!d)
        return e->code;
    rc = in_batches(c, n, n, [&](uint64_t i, uint64_t take) {
        return run_batch(c, cols, t + i, d, (int)take, e);
    });
    free(d);
    return rc;
}
