/* backward_weights.c - see backward_parts.h: gradients with respect to weights. */
#include "common/math/blas.h"
#include "common/math/rounded.h"
#include "common/math/threads.h"
#include "model/backward_parts.h"

enum { OUTPUTS = 64 }; /* rows of a weight that a thread sums at a time */

int backward_tuned(const struct model *m, const struct linear *l, float **g,
                   struct err *e)
{
    *g = NULL;
    return m->tuning ? m->tuning->gradient(m->tuning->ctx, l->module, l->rows,
                                           l->cols, g, e) :
                       0;
}

/* Every sum over the rows is one product's, whatever the number of threads. */
static void sum_outputs(void *ctx, size_t begin, size_t end)
{
    const struct backward_weights *j = ctx;

    for (int64_t i = (int64_t)begin; i < (int64_t)end; i++) {
        int64_t at = i * OUTPUTS, left = j->out - at;

        blas_sgemm(&(struct sgemm){ .ta = true,
                                    .m = left < OUTPUTS ? left : OUTPUTS,
                                    .n = j->in,
                                    .k = j->rows,
                                    .a = j->g + at,
                                    .lda = j->out,
                                    .b = j->x,
                                    .beta = 1,
                                    .c = j->to + at * j->in });
    }
}

int weights_back_cpu(struct cuda_context *c, const struct backward_weights *a,
                     struct err *e)
{
    struct backward_weights j = *a;

    (void)c;
    if (a->rounded)
        return rounded_gemm(&(struct sgemm){ .ta = true,
                                             .m = a->out,
                                             .n = a->in,
                                             .k = a->rows,
                                             .a = a->g,
                                             .b = a->x,
                                             .beta = 1,
                                             .c = a->to },
                            e);
    if (blas_open(e) < 0)
        return e->code;
    threads_for((size_t)((a->out + OUTPUTS - 1) / OUTPUTS), 1, sum_outputs, &j);
    return 0;
}
