/* refined_target_cuda.cu - moves the targets as gptq/solve/target.h describes:
 * W* = W + M (H + lambda I)⁻¹, by cuBLAS. */
#include "cuda/refined_internal.cuh"

/* w += d, except at dead inputs; grid (pitch / 64, cols). */
static __global__ void __launch_bounds__(REFINED_TILE)
    refined_shift_kernel(float *w, const float *d, const bool *dead,
                         uint64_t pitch)
{
    uint64_t at = blockIdx.y * pitch + blockIdx.x * REFINED_TILE + threadIdx.x;

    if (!dead[blockIdx.y])
        w[at] += d[at];
}

/* d = alpha d L⁻¹, or alpha d L⁻ᵀ with `transposed`. */
static int divide(struct cuda_context *c, const struct cuda_factors *f,
                  const struct refined_state *s, bool transposed, float alpha,
                  struct err *e)
{
    BLAS_TRY(c->blas.trsm(c->blas.handle, CUBLAS_SIDE_RIGHT,
                          CUBLAS_FILL_MODE_LOWER,
                          transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                          CUBLAS_DIAG_NON_UNIT, (int)s->pitch, (int)s->padded,
                          &alpha, f->l, (int)f->padded, s->d, (int)s->pitch));
    return 0;
}

/* d = beta (G - W H), or F without its factor beta, which the caller
 * applies. */
static int mend_output(struct cuda_context *c, const struct refined_params *p,
                       const struct cuda_factors *f,
                       const struct refined_state *s, const float *output,
                       struct err *e)
{
    float beta = (float)p->beta;
    int rc =
        upload(c, c->weight.data, output, s->rows * f->cols * sizeof(float), e);

    if (rc < 0 ||
        (rc = solve_transpose_weights(
             c, f, 0, DT_F32, { s->rows, s->pitch, s->d, c->bad }, e)) < 0)
        return rc;
    if (p->gap)
        return 0;
    return refined_product(
        c, s->pitch,
        { s->padded, s->padded, -beta, s->w, f->h, f->padded, beta, s->d }, e);
}

int refined_move_target(struct cuda_context *c, const struct refined_params *p,
                        const struct cuda_factors *f,
                        const struct refined_state *s, const float *output,
                        struct err *e)
{
    dim3 grid((unsigned)(s->pitch / REFINED_TILE), (unsigned)f->cols);
    const float *drift = (const float *)f->drift.data;
    int rc;

    if (!drift && !output)
        return 0;
    rc = output ? mend_output(c, p, f, s, output, e) :
                  refined_product(c, s->pitch,
                                  { s->padded, s->padded, (float)p->alpha, s->w,
                                    drift, f->padded, 0, s->d },
                                  e);
    if (rc < 0 ||
        (rc = divide(c, f, s, true, output && p->gap ? (float)p->beta : 1, e)) <
            0 ||
        (rc = divide(c, f, s, false, 1, e)) < 0)
        return rc;
    refined_shift_kernel<<<grid, REFINED_TILE, 0, c->stream>>>(
        s->w, s->d, f->dead, s->pitch);
    LAUNCHED();
    return 0;
}
