/* fp8_cuda.cu - e4m3 weights with a scale per block of 128 x 128, as
 * DeepSeek's checkpoints have them, to bf16. */
#include "cuda/internal.cuh"

#include <cuda_fp8.h>

enum { ROWS = 8, THREADS = 128 };

struct fp8_args {
    const uint2 *w;
    const float *scale;
    uint4 *out;
    uint64_t rows, words, scales; /* words: of eight weights, of a row */
    uint32_t block, block_words;
};

/* Two weights times their scale, rounded to bf16. */
static __device__ __forceinline__ uint32_t fp8_pair(uint32_t two, float scale)
{
    __half2_raw h =
        __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, __NV_E4M3);
    float2 f = __half22float2(*(const __half2 *)&h);
    __nv_bfloat162 b =
        __floats2bfloat162_rn(__fmul_rn(f.x, scale), __fmul_rn(f.y, scale));

    return *(const uint32_t *)&b;
}

/* A thread makes eight weights of each of ROWS rows: it reads 8 bytes and
 * writes 16, a warp 256 and 512 that lie together, all loads first.  A row
 * block lies within a block of scales or is taken row by row.  Block 128, grid
 * (words / 128, rows / 8).  e4m3 is exact in f16 and f32.  Floor: 3 bytes a
 * weight. */
static __global__ void __launch_bounds__(THREADS)
    fp8_dequantize_kernel(const struct fp8_args a)
{
    uint64_t word = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    uint64_t r0 = (uint64_t)blockIdx.y * ROWS;
    const uint2 *from = a.w + r0 * a.words + word;
    uint4 *to = a.out + r0 * a.words + word;
    const float *scale = a.scale + r0 / a.block * a.scales;
    uint2 x[ROWS];
    float s;

    if (word >= a.words)
        return;
    s = scale[word / a.block_words];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (r0 + i < a.rows)
            x[i] = __ldcs(from + i * a.words);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (r0 + i < a.rows)
            __stcs(to + i * a.words, make_uint4(fp8_pair(x[i].x & 0xffff, s),
                                                fp8_pair(x[i].x >> 16, s),
                                                fp8_pair(x[i].y & 0xffff, s),
                                                fp8_pair(x[i].y >> 16, s)));
}

int fp8_device(struct cuda_context *c, const struct cuda_fp8 *p, struct err *e)
{
    struct fp8_args a = {};
    dim3 grid((unsigned)((p->cols / 8 + THREADS - 1) / THREADS),
              (unsigned)((p->rows + ROWS - 1) / ROWS));

    a.w = (const uint2 *)p->w;
    a.scale = p->scale;
    a.out = (uint4 *)p->out;
    a.rows = p->rows;
    a.words = p->cols / 8;
    a.block = (uint32_t)p->block;
    a.block_words = (uint32_t)p->block / 8;
    a.scales = (p->cols + p->block - 1) / p->block;
    fp8_dequantize_kernel<<<grid, THREADS, 0, c->stream>>>(a);
    LAUNCHED();
    return 0;
}

int cuda_dequantize(struct cuda_context *c, const struct cuda_fp8 *p,
                    struct err *e)
{
    uint64_t scales, most;
    struct cuda_fp8 part = *p;
    int rc;

    if (!p->rows || !p->cols || p->cols % 8 || !p->block || p->block % 8 ||
        p->block > 32768 || p->cols > UINT32_MAX)
        return err_set(e, E_CONFIG,
                       "the GPU takes fp8 weights and blocks in multiples of "
                       "8");
    scales = (p->cols + p->block - 1) / p->block;
    /* whole blocks of rows, no more than a launch can have */
    most = slice_of(c) / p->cols;
    most = most < p->rows ? most : p->rows;
    most = most < 65535 * ROWS - p->block ? most : 65535 * ROWS - p->block;
    most = round_up(most, p->block);
    if ((rc = buffer_need(c, &c->weight, most * p->cols, e)) < 0 ||
        (rc = buffer_need(c, &c->shifted, most * p->cols * 2, e)) < 0 ||
        (rc = buffer_need(c, &c->meta, (most / p->block) * scales * 4, e)) < 0)
        return rc;
    part.w = (const uint8_t *)c->weight.data;
    part.scale = (const float *)c->meta.data;
    part.out = (uint16_t *)c->shifted.data;
    for (uint64_t r = 0; r < p->rows; r += most) {
        part.rows = p->rows - r < most ? p->rows - r : most;
        if ((rc = upload(c, c->weight.data, p->w + r * p->cols,
                         part.rows * p->cols, e)) < 0 ||
            (rc = upload(c, c->meta.data, p->scale + r / p->block * scales,
                         (part.rows + p->block - 1) / p->block * scales * 4,
                         e)) < 0 ||
            (rc = fp8_device(c, &part, e)) < 0 ||
            (rc = download(c, p->out + r * p->cols, c->shifted.data,
                           part.rows * p->cols * 2, e)) < 0)
            return rc;
    }
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}
