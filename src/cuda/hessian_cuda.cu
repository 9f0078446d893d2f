/* hessian_cuda.cu - H on the GPU: bf16 products with f32 sums by cuBLAS.
 *
 * Row-major X[tokens, cols] is column-major Xᵀ, so H = Xᵀ X is one gemm.  Only
 * the lower triangle is computed, in panels of columns from the diagonal down:
 * with panels of 1024, cols = 7168 takes 57 % of the operations of the whole
 * square.  The product of each chunk of tokens is added to the f32 total by the
 * gemm itself.  The same tokens give the same bytes: every product is one
 * cuBLAS call of a fixed shape on one stream.
 *
 * Measured on an H200, cols = 7168, 65,536 tokens: 5.0 ms in chunks of 16,384
 * and panels of 1024, where the whole square takes 8.4 and f32 124.  Chunks of
 * 4,096 take 5.9, one of 65,536 4.8; panels of 256, 512, 896 and 1792 take
 * 6.2, 5.3, 5.4 and 5.3. */
#include "cuda/internal.cuh"
#include "hessian/hessian_room.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = HESSIAN_GPU_CHUNK,
    PANEL = 1024, /* columns of a product */
    LINE = 256,   /* what the allocator aligns to */
    TRANSPOSE = 32
};

struct cuda_hessian {
    struct cuda_context *c;
    struct hessian_shape shape;
    uint64_t tokens, pending;
    uint64_t elements; /* of the result H */
    struct device_buffer room[2];
    char *x;    /* [CHUNK, cols] */
    float *sum; /* [cols, cols], or [blocks, G, G] */
    bool started;
};

int hessian_panels(struct cuda_context *c, const void *x, uint64_t tokens,
                   uint64_t cols, uint64_t panel, bool first, float *h,
                   struct err *e)
{
    const float one = 1, beta = first ? 0 : 1;

    for (uint64_t j = 0; j < cols; j += panel) {
        uint64_t n = cols - j < panel ? cols - j : panel;
        const __nv_bfloat16 *a = (const __nv_bfloat16 *)x + j;

        BLAS_TRY(c->blas.gemm(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_T,
                              (int)(cols - j), (int)n, (int)tokens, &one, a,
                              CUDA_R_16BF, (int)cols, a, CUDA_R_16BF, (int)cols,
                              &beta, h + j * cols + j, CUDA_R_32F, (int)cols,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    }
    return 0;
}

/* Add to the diagonal blocks: all whole blocks in one batched call, a short
 * last block in a call of its own. */
static int add_blocks(struct cuda_hessian *h, const __nv_bfloat16 *x, int k,
                      struct err *e)
{
    const struct cuda_blas *blas = &h->c->blas;
    const float one = 1, beta = h->started ? 1 : 0;
    uint64_t g = h->shape.block, cols = h->shape.cols, whole = cols / g;

    if (whole)
        BLAS_TRY(blas->gemm_batched(
            blas->handle, CUBLAS_OP_N, CUBLAS_OP_T, (int)g, (int)g, k, &one, x,
            CUDA_R_16BF, (int)cols, (long long)g, x, CUDA_R_16BF, (int)cols,
            (long long)g, &beta, h->sum, CUDA_R_32F, (int)g, (long long)(g * g),
            (int)whole, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    if (whole * g < cols) {
        int n = (int)(cols - whole * g);

        x += whole * g;
        BLAS_TRY(blas->gemm(blas->handle, CUBLAS_OP_N, CUBLAS_OP_T, n, n, k,
                            &one, x, CUDA_R_16BF, (int)cols, x, CUDA_R_16BF,
                            (int)cols, &beta, h->sum + whole * g * g,
                            CUDA_R_32F, (int)g, CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT));
    }
    return 0;
}

/* Pack the triangle: out[i(i+1)/2 + j] = factor * h[j * cols + i].
 * A block moves one tile of 32 x 32 through shared memory (4 KiB), so that
 * both sides are read and written along rows; block 32 x 8, grid (tiles,
 * tiles), tiles above the diagonal return.  Floor: 4 bytes read and 4 written
 * per element of the triangle. */
static __global__ void hessian_triangle_kernel(float *out, const float *h,
                                               uint64_t cols, double factor)
{
    __shared__ float tile[TRANSPOSE][TRANSPOSE + 1];
    uint64_t i0 = (uint64_t)blockIdx.y * TRANSPOSE;
    uint64_t j0 = (uint64_t)blockIdx.x * TRANSPOSE;

    if (j0 > i0)
        return;
    for (int y = threadIdx.y; y < TRANSPOSE; y += blockDim.y) {
        uint64_t i = i0 + threadIdx.x, j = j0 + y;

        if (i < cols && j <= i)
            tile[y][threadIdx.x] = h[j * cols + i];
    }
    __syncthreads();
    for (int y = threadIdx.y; y < TRANSPOSE; y += blockDim.y) {
        uint64_t i = i0 + y, j = j0 + threadIdx.x;

        if (i < cols && j <= i)
            out[i * (i + 1) / 2 + j] =
                (float)__dmul_rn((double)tile[threadIdx.x][y], factor);
    }
}

/* out[n] = factor * h[n] for diagonal blocks [g, g], the lower triangle of each
 * copied to its upper one, for exact symmetry (one gemm computes both
 * triangles, but not necessarily in the same order of sums). */
static __global__ void hessian_scale_kernel(float *out, const float *h,
                                            uint64_t n, uint64_t g,
                                            double factor)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t k = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; k < n;
         k += step) {
        uint64_t b = k / (g * g) * g * g, i = k % (g * g) / g, j = k % g;
        uint64_t from = i < j ? b + i * g + j : b + j * g + i;

        out[k] = (float)__dmul_rn((double)h[from], factor);
    }
}

static int open_buffers(struct cuda_hessian *h, struct err *e)
{
    const struct hessian_gpu_room room = hessian_gpu_room(&h->shape);
    uint64_t cols = h->shape.cols, g = h->shape.block;
    int rc;

    if (cols > UINT16_MAX * 16 || g > cols) /* 2^20 inputs are 4 TiB */
        return err_set(e, E_CONFIG, "too many inputs for the GPU");
    h->elements = room.result / sizeof(float);
    if ((rc = buffer_open(h->c, &h->room[0], room.tokens, e)) < 0 ||
        (rc = buffer_open(h->c, &h->room[1], room.sum, e)) < 0)
        return rc;
    h->x = (char *)h->room[0].data;
    h->sum = (float *)h->room[1].data;
    CUDA_TRY(cudaMemsetAsync(h->sum, 0, room.sum, h->c->stream));
    return 0;
}

int cuda_hessian_open(struct cuda_hessian **out, struct cuda_context *c,
                      const struct hessian_shape *s, struct err *e)
{
    struct cuda_hessian *h;
    int rc;

    *out = NULL;
    if (s->dtype != DT_BF16)
        return err_set(e, E_CONFIG, "hessian: the GPU takes bf16 products");
    if ((rc = need_blas(c, e)) < 0)
        return rc;
    h = (struct cuda_hessian *)mem_zero(1, sizeof(*h), "hessian", e);
    if (!h)
        return e->code;
    h->c = c;
    h->shape = *s;
    rc = open_buffers(h, e);
    if (rc < 0) {
        cuda_hessian_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

/* Add the product of n tokens. */
static int multiply(struct cuda_hessian *h, const void *x, uint64_t n,
                    struct err *e)
{
    int rc = h->shape.block ?
                 add_blocks(h, (const __nv_bfloat16 *)x, (int)n, e) :
                 hessian_panels(h->c, x, n, h->shape.cols, PANEL, !h->started,
                                h->sum, e);

    h->started |= rc >= 0;
    return rc;
}

static int flush(struct cuda_hessian *h, struct err *e)
{
    uint64_t n = h->pending;

    h->pending = 0;
    return n ? multiply(h, h->x, n, e) : 0;
}

/* The product of a chunk runs while the next chunk is copied into pinned
 * memory.  Whole chunks on the device are multiplied in their place where they are
 * aligned as h->x, by which cuBLAS may choose its kernel; but those of weighted tokens. */
int cuda_hessian_add(struct cuda_hessian *h, const void *x, uint64_t tokens,
                     bool there, const float *root, struct err *e)
{
    uint64_t cols = h->shape.cols, row = cols * 2;
    const float *roots;

    if (bring_roots(h->c, root, tokens, &roots, e) < 0)
        return e->code;
    for (uint64_t done = 0; done < tokens;) {
        const char *from = (const char *)x + done * row;
        uint64_t room = CHUNK - h->pending;
        uint64_t n = tokens - done < room ? tokens - done : room;
        bool whole =
            there && !root && n == CHUNK && (uintptr_t)from % LINE == 0;
        int rc = whole ?
                     multiply(h, from, n, e) :
                     bring_rows(h->c, h->x + h->pending * row, from, n, cols,
                                there, roots ? roots + done : NULL, e);

        if (rc < 0)
            return rc;
        h->pending += whole ? 0 : n;
        h->tokens += n;
        done += n;
        if (h->pending == CHUNK && (rc = flush(h, e)) < 0)
            return rc;
    }
    return 0;
}

int cuda_hessian_finish(struct cuda_hessian *h, float *out, bool there,
                        struct err *e)
{
    struct cuda_context *c = h->c;
    uint64_t cols = h->shape.cols, bytes = h->elements * sizeof(float);
    unsigned tiles = (unsigned)((cols + TRANSPOSE - 1) / TRANSPOSE);
    float *to = out;
    double factor;
    int rc = flush(h, e);

    if (rc < 0)
        return rc;
    if (!h->tokens)
        return err_set(e, E_DATA, "there are no tokens");
    factor = 2 / (double)h->tokens;
    if (!there) {
        if ((rc = buffer_need(c, &c->packed, bytes, e)) < 0)
            return rc;
        to = (float *)c->packed.data;
    }
    if (h->shape.block)
        hessian_scale_kernel<<<1024, 256, 0, c->stream>>>(
            to, h->sum, h->elements, h->shape.block, factor);
    else
        hessian_triangle_kernel<<<dim3(tiles, tiles), dim3(TRANSPOSE, 8), 0,
                                  c->stream>>>(to, h->sum, cols, factor);
    LAUNCHED();
    if (!there && (rc = download(c, out, to, bytes, e)) < 0)
        return rc;
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}

void cuda_hessian_close(struct cuda_hessian *h)
{
    if (!h)
        return;
    buffer_close(h->c, &h->room[0]);
    buffer_close(h->c, &h->room[1]);
    free(h);
}

/* ---- weights of tokens ---- */

static __device__ __forceinline__ uint16_t weigh(uint16_t x, float root)
{
    float y = __fmul_rn(__bfloat162float(__ushort_as_bfloat16(x)), root);

    return __bfloat16_as_ushort(__float2bfloat16_rn(y));
}

/* to[n, cols] = roots[row] * from[n, cols], a block for each row.  Floor:
 * 2 bytes read and 2 written of each element. */
static __global__ void weigh_kernel(uint16_t *to, const uint16_t *from,
                                    const float *roots, uint64_t n,
                                    uint64_t cols)
{
    for (uint64_t t = blockIdx.x; t < n; t += gridDim.x)
        for (uint64_t i = threadIdx.x; i < cols; i += blockDim.x)
            to[t * cols + i] = weigh(from[t * cols + i], roots[t]);
}

/* The same of rows of `wide` aligned pieces of 16 bytes. */
static __global__ void weigh_wide_kernel(uint4 *to, const uint4 *from,
                                         const float *roots, uint64_t n,
                                         uint64_t wide)
{
    for (uint64_t t = blockIdx.x; t < n; t += gridDim.x)
        for (uint64_t i = threadIdx.x; i < wide; i += blockDim.x) {
            uint4 v = from[t * wide + i];
            uint32_t *w = (uint32_t *)&v;

            for (int k = 0; k < 4; k++)
                w[k] = weigh((uint16_t)w[k], roots[t]) |
                       (uint32_t)weigh((uint16_t)(w[k] >> 16), roots[t]) << 16;
            to[t * wide + i] = v;
        }
}

int bring_roots(struct cuda_context *c, const float *roots, uint64_t n,
                const float **there, struct err *e)
{
    *there = NULL;
    if (!roots || !n)
        return 0;
    if (buffer_need(c, &c->roots, n * sizeof(*roots), e) < 0 ||
        upload(c, c->roots.data, roots, n * sizeof(*roots), e) < 0)
        return e->code;
    *there = (const float *)c->roots.data;
    return 0;
}

int bring_rows(struct cuda_context *c, void *to, const void *from, uint64_t n,
               uint64_t cols, bool there, const float *roots, struct err *e)
{
    const unsigned blocks = (unsigned)(n < 1 << 16 ? n : 1 << 16);
    bool wide = cols % 8 == 0 && (uintptr_t)from % sizeof(uint4) == 0 &&
                (uintptr_t)to % sizeof(uint4) == 0;

    if (!roots || !n)
        return bring(c, to, from, n * cols * 2, there, e);
    if (!there)
        return err_set(e, E_BUG, "weights of rows that are the host's");
    if (wide)
        weigh_wide_kernel<<<blocks, 256, 0, c->stream>>>(
            (uint4 *)to, (const uint4 *)from, roots, n, cols / 8);
    else
        weigh_kernel<<<blocks, 256, 0, c->stream>>>(
            (uint16_t *)to, (const uint16_t *)from, roots, n, cols);
    LAUNCHED();
    return 0;
}

/* ---- looks at what is there ---- */

/* *first: the smallest number of an element that is not finite, of x[from..n-1]. */
template <enum dtype T>
static __global__ void finite_kernel(const void *x, uint64_t from, uint64_t n,
                                     unsigned long long *first)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = from + (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < n; i += step)
        if (!isfinite(load_weight<T>(x, i)))
            atomicMin(first, (unsigned long long)i);
}

/* Whether a word has an element whose exponent is all ones. */
template <enum dtype T> static __device__ bool is_bad(uint32_t w)
{
    return (w & 0x7f800000) == 0x7f800000 ||
           (T == DT_BF16 && (w & 0x7f80) == 0x7f80);
}

/* The same of n aligned pieces of 16 bytes.  Floor: 2 or 4 bytes read of each
 * element. */
template <enum dtype T>
static __global__ void finite_wide_kernel(const uint4 *x, uint64_t n,
                                          unsigned long long *first)
{
    const int each = T == DT_BF16 ? 8 : 4;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += step) {
        uint4 v = x[i];

        if (is_bad<T>(v.x) || is_bad<T>(v.y) || is_bad<T>(v.z) ||
            is_bad<T>(v.w))
            for (int k = 0; k < each; k++)
                if (!isfinite(load_weight<T>(x, i * each + k)))
                    atomicMin(first, (unsigned long long)(i * each + k));
    }
}

template <enum dtype T>
static int look(struct cuda_context *c, const void *x, uint64_t n,
                struct err *e)
{
    const uint64_t each = T == DT_BF16 ? 8 : 4;
    uint64_t wide = (uintptr_t)x % sizeof(uint4) ? 0 : n / each;

    if (wide)
        finite_wide_kernel<T>
            <<<2048, 256, 0, c->stream>>>((const uint4 *)x, wide, c->bad);
    if (wide * each < n)
        finite_kernel<T>
            <<<1024, 256, 0, c->stream>>>(x, wide * each, n, c->bad);
    LAUNCHED();
    return 0;
}

int cuda_finite(struct cuda_context *c, enum dtype t, const void *x, uint64_t n,
                uint64_t *first, struct err *e)
{
    unsigned long long bad;
    int rc;

    CUDA_TRY(cudaMemsetAsync(c->bad, 0xff, sizeof(bad), c->stream));
    rc = t == DT_BF16 ? look<DT_BF16>(c, x, n, e) : look<DT_F32>(c, x, n, e);
    if (rc < 0)
        return rc;
    CUDA_TRY(cudaMemcpyAsync(&bad, c->bad, sizeof(bad), cudaMemcpyDeviceToHost,
                             c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    *first = bad < n ? bad : n;
    return 0;
}

static __global__ void diagonal_kernel(float *d, const float *h, uint64_t cols)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < cols)
        d[i] = h[i * (i + 3) / 2];
}

int cuda_diagonal(struct cuda_context *c, const float *h, uint64_t cols,
                  float *d, struct err *e)
{
    int rc = buffer_need(c, &c->packed, cols * sizeof(*d), e);

    if (rc < 0)
        return rc;
    diagonal_kernel<<<(unsigned)((cols + 255) / 256), 256, 0, c->stream>>>(
        (float *)c->packed.data, h, cols);
    LAUNCHED();
    return download(c, d, c->packed.data, cols * sizeof(*d), e);
}

/* ---- blending ---- */

/* h = own h + (1 - own) prior, or own h; in double, as the CPU does it.  Floor: 4
 * bytes read of each, 4 written. */
static __global__ void blend_kernel(float *h, const float *prior, uint64_t n,
                                    double own)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += step) {
        double x = __dmul_rn(own, (double)h[i]);

        if (prior)
            x = __dadd_rn(x, __dmul_rn(1 - own, (double)prior[i]));
        h[i] = (float)x;
    }
}

static __global__ void add_diagonal_kernel(float *h, uint64_t cols, float add)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < cols)
        h[i * (i + 3) / 2] = __fadd_rn(h[i * (i + 3) / 2], add);
}

int cuda_blend(struct cuda_context *c, float *h, const float *prior,
               uint64_t cols, double own, float add, struct err *e)
{
    blend_kernel<<<2048, 256, 0, c->stream>>>(h, prior, cols * (cols + 1) / 2,
                                              own);
    LAUNCHED();
    if (!prior)
        add_diagonal_kernel<<<(unsigned)((cols + 255) / 256), 256, 0,
                              c->stream>>>(h, cols, add);
    LAUNCHED();
    return 0;
}
