/* backward_weights_cuda.cu - gradients with respect to weights. */
#include "cuda/backward_internal.cuh"

static int multiply(struct cuda_context *c, const struct backward_weights *a,
                    const void *g16, const void *x16, struct err *e)
{
    struct backward_product p = {};

    p.ta = true;
    p.m = p.lda = a->out;
    p.n = p.ldb = p.ldc = a->in;
    p.k = a->rows;
    p.alpha = p.beta = 1;
    p.a = a->g;
    p.b = a->x;
    p.a16 = g16;
    p.b16 = x16;
    p.c = a->to;
    return backward_multiply(c, p, e);
}

int backward_weights_bf16(struct cuda_context *c,
                          const struct backward_weights *a, struct err *e)
{
    return multiply(c, a, a->g, a->x, e);
}

int backward_weights(struct cuda_context *c, const struct backward_weights *a,
                     struct err *e)
{
    struct backward_state *s = backward_state();
    int64_t ng = a->rows * a->out, nx = a->rows * a->in;
    int rc;

    if (!a->rows)
        return 0;
    if (!a->rounded)
        return multiply(c, a, NULL, NULL, e);
    if ((rc = buffer_need(c, &s->parts, (size_t)ng * 2, e)) < 0 ||
        (rc = buffer_need(c, &s->narrow, (size_t)nx * 2, e)) < 0 ||
        (rc = backward_narrow(c, DT_BF16, a->g, ng, s->parts.data, e)) < 0 ||
        (rc = backward_narrow(c, DT_BF16, a->x, nx, s->narrow.data, e)) < 0)
        return rc;
    return multiply(c, a, s->parts.data, s->narrow.data, e);
}
