/* cross_cuda.cu - cross moments on the GPU: sums of y xᵀ by cuBLAS, bf16
 * inputs, f32 sums.  One call per chunk of CHUNK tokens, so that the same
 * tokens give the same bytes however they are cut into frames. */
#include "cuda/internal.cuh"

#include "hessian/hessian_room.h"

#include <stdlib.h>

enum { CHUNK = CROSS_CHUNK, BLOCK = 256 };

struct cuda_cross {
    struct cuda_context *c;
    struct cross_shape shape;
    uint64_t pending; /* tokens in the chunk */
    struct device_buffer y, x, sum;
    bool started;
};

int cuda_cross_open(struct cuda_cross **out, struct cuda_context *c,
                    const struct cross_shape *s, struct err *e)
{
    const struct cross_room room = cross_room(s);
    struct cuda_cross *x;
    int rc;

    *out = NULL;
    if (s->dtype != DT_BF16 || s->rows > INT32_MAX || s->cols > INT32_MAX)
        return err_set(e, E_CONFIG, "cross moments: the GPU takes bf16");
    if ((rc = need_blas(c, e)) < 0)
        return rc;
    x = (struct cuda_cross *)mem_zero(1, sizeof(*x), "cross", e);
    if (!x)
        return e->code;
    x->c = c;
    x->shape = *s;
    if ((rc = buffer_open(c, &x->y, room.y, e)) < 0 ||
        (rc = buffer_open(c, &x->x, room.x, e)) < 0 ||
        (rc = buffer_open(c, &x->sum, room.sum, e)) < 0) {
        cuda_cross_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

static int flush(struct cuda_cross *x, struct err *e)
{
    const float one = 1, beta = x->started ? 1 : 0;
    const struct cuda_blas *b = &x->c->blas;
    int rows = (int)x->shape.rows, cols = (int)x->shape.cols;

    if (!x->pending)
        return 0;
    BLAS_TRY(b->gemm(b->handle, CUBLAS_OP_N, CUBLAS_OP_T, cols, rows,
                     (int)x->pending, &one, x->x.data, CUDA_R_16BF, cols,
                     x->y.data, CUDA_R_16BF, rows, &beta, x->sum.data,
                     CUDA_R_32F, cols, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT));
    x->started = true;
    x->pending = 0;
    return 0;
}

int cuda_cross_add(struct cuda_cross *x, const void *y, const void *from,
                   uint64_t tokens, bool there, const float *root,
                   struct err *e)
{
    uint64_t rows = x->shape.rows, cols = x->shape.cols, n;
    const float *roots;
    int rc;

    if ((rc = bring_roots(x->c, root, tokens, &roots, e)) < 0)
        return rc;
    for (uint64_t done = 0; done < tokens; done += n) {
        n = CHUNK - x->pending;
        n = tokens - done < n ? tokens - done : n;
        if ((rc = bring_rows(x->c, (uint16_t *)x->y.data + x->pending * rows,
                             (const uint16_t *)y + done * rows, n, rows, there,
                             roots ? roots + done : NULL, e)) < 0 ||
            (rc = bring_rows(x->c, (uint16_t *)x->x.data + x->pending * cols,
                             (const uint16_t *)from + done * cols, n, cols,
                             there, roots ? roots + done : NULL, e)) < 0)
            return rc;
        x->pending += n;
        if (x->pending == CHUNK && (rc = flush(x, e)) < 0)
            return rc;
    }
    return 0;
}

static __global__ void __launch_bounds__(BLOCK)
    cross_scale_kernel(float *to, const float *sum, uint64_t n, double factor)
{
    for (uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * BLOCK)
        to[i] = (float)__dmul_rn((double)sum[i], factor);
}

int cuda_cross_finish(struct cuda_cross *x, double factor, float *out,
                      bool there, struct err *e)
{
    uint64_t n = x->shape.rows * x->shape.cols;
    float *sum = (float *)x->sum.data, *to = there ? out : sum;
    int rc = flush(x, e);

    if (rc < 0)
        return rc;
    if (!x->started)
        CUDA_TRY(cudaMemsetAsync(sum, 0, n * sizeof(float), x->c->stream));
    cross_scale_kernel<<<1024, BLOCK, 0, x->c->stream>>>(to, sum, n, factor);
    LAUNCHED();
    if (!there && (rc = download(x->c, out, sum, n * sizeof(float), e)) < 0)
        return rc;
    CUDA_TRY(cudaStreamSynchronize(x->c->stream));
    return 0;
}

void cuda_cross_close(struct cuda_cross *x)
{
    if (!x)
        return;
    buffer_close(x->c, &x->y);
    buffer_close(x->c, &x->x);
    buffer_close(x->c, &x->sum);
    free(x);
}
