/* product_sums.c - see internal.h: product_sums(). */
#include "common/math/bf16_gemm.h"
#include "common/math/blas.h"
#include "common/math/threads.h"
#include "model/internal.h"

static void run_sums(void *ctx, size_t begin, size_t end)
{
    const struct bf16_gemm *g = ctx;

    for (size_t t = begin; t < end; t++) {
        struct bf16_gemm part = *g;
        int64_t cols = bf16_kernel()->tile_cols, o = (int64_t)t * cols;

        part.first += o;
        part.n = g->n - o < cols ? g->n - o : cols;
        part.y += o;
        bf16_gemm(&part);
    }
}

int product_sums(const struct model *m, const struct forward_sums *s,
                 struct err *e)
{
    int64_t k = s->depth, cols = bf16_kernel()->tile_cols;
    struct bf16_gemm g = { .x = s->x,
                           .ldx = k,
                           .m = s->rows,
                           .k = k,
                           .packed = s->w,
                           .all = s->all,
                           .first = s->first,
                           .n = s->n,
                           .y = s->y,
                           .ldy = s->ld };

    if (m->on)
        return device_sums(m, s, e);
    if (!m->bf16)
        return blas_f32_nt(
            &(struct sgemm){ .m = s->rows,
                             .n = s->n,
                             .k = k,
                             .a = s->x,
                             .b = (const float *)s->w + s->first * k,
                             .c = s->y,
                             .ldc = s->ld },
            e);
    threads_for((size_t)((s->n + cols - 1) / cols), 1, run_sums, &g);
    return 0;
}
