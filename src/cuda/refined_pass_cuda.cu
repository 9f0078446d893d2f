/* refined_pass_cuda.cu - a pass of the refined solver over a matrix.
 *
 * A pass walks the groups in the order of quantization, from the last column of
 * the factor to the first:
 *
 *     |  ...  | group, <= 128 |  groups that are done  | all others
 *             |<---------------- super-block, <= 1024 ----------->|
 *
 * 1. On entering a super-block, the contribution of all other columns is one
 *    product: the error feedback d L in a pass of GPTQ, the gradient d H in a
 *    sweep of descent.
 * 2. One launch chooses a group's grids, or moves its codes and scales.
 * 3. Its effect on the rest of the super-block is a product of depth <= 128.
 *
 * Products are in f32, not in split bf16: candidates and moves are taken by
 * comparisons, on which everything later in a row depends. */
#include "cuda/refined_internal.cuh"

#include <stdlib.h>

/* loss[c0 / 128 + y][r] = sum over 128 columns of d g, with the gradients g of
 * the columns from c0 on in s.gradient; grid (pitch / 64, columns / 128). */
static __global__ void __launch_bounds__(REFINED_TILE)
    refined_loss_kernel(const struct refined_state s, uint64_t c0)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + threadIdx.x;
    uint64_t first = (uint64_t)blockIdx.y * REFINED_WIDE;
    double sum = 0;

#pragma unroll 8
    for (uint64_t k = first; k < first + REFINED_WIDE; k++)
        sum +=
            (double)s.d[(c0 + k) * s.pitch + r] * s.gradient[k * s.pitch + r];
    s.loss[(c0 + first) / REFINED_WIDE * s.pitch + r] = sum;
}

int refined_product(struct cuda_context *c, uint64_t m,
                    struct refined_product p, struct err *e)
{
    BLAS_TRY(c->blas.gemm(
        c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)m, (int)p.n, (int)p.k,
        &p.alpha, p.a, CUDA_R_32F, (int)m, p.b, CUDA_R_32F, (int)p.ldb, &p.beta,
        p.to, CUDA_R_32F, (int)m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return 0;
}

/* Step 1: gradient[0..end-begin) = d times columns begin..end-1 of H (descent;
 * all rows) or of L (GPTQ; rows from `end` on). */
static int enter(struct cuda_context *c, const struct refined_pass *j,
                 uint64_t begin, uint64_t end, struct err *e)
{
    const struct refined_state *s = j->s;
    const float *square = j->what == REFINED_DESCENT ? j->f->h : j->f->l;
    uint64_t from = j->what == REFINED_DESCENT ? 0 : end, ld = j->f->padded;

    if (from == j->plan->group[0].c1) {
        CUDA_TRY(cudaMemsetAsync(s->gradient, 0,
                                 (end - begin) * s->pitch * sizeof(float),
                                 c->stream));
        return 0;
    }
    return refined_product(c, s->pitch,
                           { end - begin, ld - from, 1, s->d + from * s->pitch,
                             square + begin * ld + from, ld, 0, s->gradient },
                           e);
}

/* Steps 2 and 3 for one group of the super-block that begins at `begin`. */
static int visit(struct cuda_context *c, const struct refined_pass *j,
                 const struct tile_group *at, uint64_t begin, struct err *e)
{
    const struct refined_state *s = j->s;
    const float *square = j->what == REFINED_DESCENT ? j->f->h : j->f->l;
    const struct block_params *p = &j->p->block;
    uint64_t ld = j->f->padded, first = at->c0 * s->pitch;
    struct refined_group g = {};
    int rc;

    g.w = s->w + first;
    g.d = s->d + first;
    g.gradient = s->gradient + (at->c0 - begin) * s->pitch;
    g.moved = s->moved;
    g.codes = s->codes + first;
    g.meta = s->meta + at->group * s->pitch;
    g.square = square + at->c0 * (ld + 1);
    g.pitch = s->pitch;
    g.ld = ld;
    g.n = (uint32_t)(at->c1 - at->c0);
    g.mantissa = s->mantissa;
    g.factors = s->factors;
    g.n_factors = p->factors;
    g.given = j->what == REFINED_PLAIN;
    g.candidates = block_candidates(p);
    g.symmetric = p->symmetric;
    g.negative = p->negative;
    g.any = s->any;
    rc = j->what == REFINED_DESCENT ?
             refined_descend(c, p->scale_dtype, &g, e) :
             refined_choose(c, p->scale_dtype, &g, e);
    if (rc < 0 || at->c0 == begin)
        return rc;
    return refined_product(c, s->pitch,
                           { at->c0 - begin, g.n, 1,
                             j->what == REFINED_DESCENT ? s->moved : g.d,
                             square + begin * ld + at->c0, ld, 1, s->gradient },
                           e);
}

int refined_walk(struct cuda_context *c, const struct refined_pass *j,
                 struct err *e)
{
    const struct tile_plan *plan = j->plan;
    int rc;

    for (uint64_t i = 0; i < plan->groups;) {
        uint64_t end = plan->group[i].c1, next = i + 1, begin;

        while (next < plan->groups &&
               end - plan->group[next].c0 <= REFINED_SUPER)
            next++;
        begin = plan->group[next - 1].c0;
        if ((rc = enter(c, j, begin, end, e)) < 0)
            return rc;
        for (; i < next; i++)
            if ((rc = visit(c, j, &plan->group[i], begin, e)) < 0)
                return rc;
    }
    return 0;
}

int refined_sweep(struct cuda_context *c, const struct refined_pass *j,
                  struct err *e)
{
    int rc, any = 1;

    for (int i = 0; i < j->p->sweeps && any; i++) {
        CUDA_TRY(cudaMemsetAsync(j->s->any, 0, sizeof(any), c->stream));
        if ((rc = refined_walk(c, j, e)) < 0)
            return rc;
        CUDA_TRY(cudaMemcpyAsync(&any, j->s->any, sizeof(any),
                                 cudaMemcpyDeviceToHost, c->stream));
        CUDA_TRY(cudaStreamSynchronize(c->stream));
    }
    return 0;
}

int refined_measure(struct cuda_context *c, const struct cuda_factors *f,
                    const struct refined_state *s, double *loss, struct err *e)
{
    uint64_t parts = s->padded / REFINED_WIDE, ld = f->padded;
    double *all =
        (double *)mem_alloc(parts * s->pitch * sizeof(*all), "solve", e);
    int rc = all ? 0 : e->code;

    for (uint64_t c0 = 0, n; c0 < s->padded && rc >= 0; c0 += n) {
        n = s->padded - c0 < REFINED_SUPER ? s->padded - c0 : REFINED_SUPER;
        /* H is symmetric: the part below the diagonal square counts twice */
        rc = refined_product(c, s->pitch,
                             { n, n, 1, s->d + c0 * s->pitch,
                               f->h + c0 * (ld + 1), ld, 0, s->gradient },
                             e);
        if (rc >= 0 && c0 + n < s->padded)
            rc = refined_product(
                c, s->pitch,
                { n, s->padded - c0 - n, 2, s->d + (c0 + n) * s->pitch,
                  f->h + c0 * (ld + 1) + n, ld, 1, s->gradient },
                e);
        if (rc < 0)
            break;
        refined_loss_kernel<<<dim3((unsigned)(s->pitch / REFINED_TILE),
                                   (unsigned)(n / REFINED_WIDE)),
                              REFINED_TILE, 0, c->stream>>>(*s, c0);
        rc = cuda_check(cudaGetLastError(), "refined_loss_kernel", e);
    }
    if (rc >= 0)
        rc = download(c, all, s->loss, parts * s->pitch * sizeof(*all), e);
    if (rc >= 0)
        rc = cuda_check(cudaStreamSynchronize(c->stream),
                        "cudaStreamSynchronize", e);
    for (uint64_t r = 0; r < s->rows && rc >= 0; r++) {
        loss[r] = 0;
        for (uint64_t i = 0; i < parts; i++)
            loss[r] += all[i * s->pitch + r];
    }
    free(all);
    return rc;
}
