/* backward_weights_cuda.cu - gradients with respect to weights. */
#include "cuda/backward_internal.cuh"

/* to[out, in] += gᵀ x; g and x are rounded to bf16. */
static int add_rounded(struct cuda_context *c, const struct backward_weights *a,
                       struct err *e)
{
    struct backward_state *s = backward_state();
    int64_t ng = a->rows * a->out, nx = a->rows * a->in;
    const float one = 1;
    int rc;

    if ((rc = need_blas(c, e)) < 0 ||
        (rc = buffer_need(c, &s->parts, (size_t)ng * 2, e)) < 0 ||
        (rc = buffer_need(c, &s->narrow, (size_t)nx * 2, e)) < 0 ||
        (rc = backward_narrow(c, DT_BF16, a->g, ng, s->parts.data, e)) < 0 ||
        (rc = backward_narrow(c, DT_BF16, a->x, nx, s->narrow.data, e)) < 0)
        return rc;
    BLAS_TRY(c->blas.gemm(c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_T, (int)a->in,
                          (int)a->out, (int)a->rows, &one, s->narrow.data,
                          CUDA_R_16BF, (int)a->in, s->parts.data, CUDA_R_16BF,
                          (int)a->out, &one, a->to, CUDA_R_32F, (int)a->in,
                          CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return 0;
}

int backward_weights(struct cuda_context *c, const struct backward_weights *a,
                     struct err *e)
{
    struct backward_product p = {};

    if (!a->rows)
        return 0;
    if (a->rounded)
        return add_rounded(c, a, e);
    p.ta = true;
    p.m = p.lda = a->out;
    p.n = p.ldb = p.ldc = a->in;
    p.k = a->rows;
    p.alpha = p.beta = 1;
    p.a = a->g;
    p.b = a->x;
    p.c = a->to;
    return backward_multiply(c, p, e);
}
