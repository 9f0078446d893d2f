/* backward_product_cuda.cu - products of the backward pass in f32, by cuBLAS.
 *
 * A product with weights that are bf16's is three on the tensor cores: each f32 number
 * of the other operand is the sum of three of bf16 (8 + 8 + 8 bits), and a product of
 * two bf16 is exact in f32.  They are added from the smallest part on.  Where it may be
 * rounded, it is one.  Other products are on the CUDA cores, or in TF32. */
#include "cuda/backward_internal.cuh"

struct backward_state *backward_state(void)
{
    static struct backward_state state;

    return &state;
}

/* x = to[i] + to[i + apart] + to[i + 2 apart], the largest first, or the first of so many
 * parts. */
static __global__ void __launch_bounds__(ROW)
    split_kernel(const float *x, int64_t n, int64_t apart, int parts,
                 __nv_bfloat16 *to)
{
    EACH(i, n)
    {
        float left = x[i];

        for (int k = 0; k < parts; k++) {
            __nv_bfloat16 part = __float2bfloat16_rn(left);

            to[i + k * apart] = part;
            left = __fsub_rn(left, __bfloat162float(part));
        }
    }
}

static int multiply_bf16(struct cuda_context *c,
                         const struct backward_product &p, const void *a,
                         float beta, struct err *e)
{
    BLAS_TRY(c->blas.gemm(c->blas.handle, p.tb ? CUBLAS_OP_T : CUBLAS_OP_N,
                          p.ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)p.n, (int)p.m,
                          (int)p.k, &p.alpha, p.b16, CUDA_R_16BF, (int)p.ldb, a,
                          CUDA_R_16BF, (int)p.lda, &beta, p.c, CUDA_R_32F,
                          (int)p.ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return 0;
}

/* p.b16 is B, and A f32. */
static int multiply_parts(struct cuda_context *c,
                          const struct backward_product &p, struct err *e)
{
    struct device_buffer *parts = &backward_state()->parts;
    int64_t n = p.m * p.k, apart = (n + LINE - 1) / LINE * LINE;
    int count = p.rounded ? 1 : 3;
    __nv_bfloat16 *a;
    float beta = p.beta;
    int rc = buffer_need(c, parts, (size_t)(count * apart) * sizeof(*a), e);

    if (rc < 0)
        return rc;
    a = (__nv_bfloat16 *)parts->data;
    split_kernel<<<blocks_for(n), ROW, 0, c->stream>>>(p.a, n, apart, count, a);
    LAUNCHED();
    for (int k = count - 1; k >= 0 && rc >= 0; k--, beta = 1)
        rc = multiply_bf16(c, p, a + k * apart, beta, e);
    return rc;
}

static cublasComputeType_t precision(const struct backward_product &p)
{
    return p.rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

int backward_multiply(struct cuda_context *c, const struct backward_product &p,
                      struct err *e)
{
    cublasOperation_t a = p.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = p.tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    int rc = need_blas(c, e);

    if (rc < 0)
        return rc;
    if (p.m > INT32_MAX || p.n > INT32_MAX || p.k > INT32_MAX)
        return err_set(e, E_CONFIG, "cuda: a product too large");
    if (p.a16)
        return multiply_bf16(c, p, p.a16, p.beta, e);
    if (p.b16)
        return multiply_parts(c, p, e);
    if (p.count > 1)
        BLAS_TRY(c->blas.gemm_batched(
            c->blas.handle, b, a, (int)p.n, (int)p.m, (int)p.k, &p.alpha, p.b,
            CUDA_R_32F, (int)p.ldb, p.stride_b, p.a, CUDA_R_32F, (int)p.lda,
            p.stride_a, &p.beta, p.c, CUDA_R_32F, (int)p.ldc, p.stride_c,
            p.count, precision(p), CUBLAS_GEMM_DEFAULT));
    else
        BLAS_TRY(c->blas.gemm(
            c->blas.handle, b, a, (int)p.n, (int)p.m, (int)p.k, &p.alpha, p.b,
            CUDA_R_32F, (int)p.ldb, p.a, CUDA_R_32F, (int)p.lda, &p.beta, p.c,
            CUDA_R_32F, (int)p.ldc, precision(p), CUBLAS_GEMM_DEFAULT));
    return 0;
}
