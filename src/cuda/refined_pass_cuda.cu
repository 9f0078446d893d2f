/* refined_pass_cuda.cu - passes of the solver that refines over the matrices of a
 * batch.
 *
 * One pass walks the groups in the order of quantization, which is from the last
 * column of the factor to the first:
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
 * Products run on the tensor cores, three parts of bf16 with f32 sums as in
 * solve_cuda.cu.  What that loses moves a code's decision by
 * 2^-17 sqrt(H_ii / H_jj) of a step or so, i the largest input. */
#include "cuda/refined_internal.cuh"

#include <stdlib.h>

/* loss[m][c0 / 128 + y][r] = sum of d g over 128 columns, g the gradients of the
 * columns from c0 on; block 64 x 8, grid (pitch / 64, columns / 128, matrices). */
enum { LOSS_PARTS = 8 };
static __global__ void __launch_bounds__(REFINED_TILE *LOSS_PARTS)
    refined_loss_kernel(const struct refined_state s, uint64_t c0)
{
    enum { N = REFINED_WIDE / LOSS_PARTS };
    __shared__ double sums[LOSS_PARTS][REFINED_TILE];
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + threadIdx.x;
    uint64_t block = blockIdx.y, m = blockIdx.z;
    uint64_t k = block * REFINED_WIDE + threadIdx.y * N;
    const float *d = s.d + (m * s.padded + c0 + k) * s.pitch + r;
    const float *g = s.gradient + (m * REFINED_SUPER + k) * s.pitch + r;
    double sum = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        sum += (double)d[i * s.pitch] * g[i * s.pitch];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y)
        return;
    for (int i = 1; i < LOSS_PARTS; i++)
        sum += sums[i][threadIdx.x];
    block += m * (s.padded / REFINED_WIDE) + c0 / REFINED_WIDE;
    s.loss[block * s.pitch + r] = sum;
}

/* split of columns; a thread has four rows of four columns.  Floor: 4 bytes read,
 * 6 written.  Block 16 x 16, grid (pitch / 64, columns / 64, matrices). */
enum { SPLIT_THREADS = 16, SPLIT_COLUMNS = 64 };
static __global__ void __launch_bounds__(SPLIT_THREADS *SPLIT_THREADS)
    refined_split_kernel(__nv_bfloat16 *to, const float *from, uint64_t n,
                         uint64_t pitch, uint64_t step)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + 4 * threadIdx.x;
    uint64_t first = (uint64_t)blockIdx.y * SPLIT_COLUMNS + threadIdx.y;

#pragma unroll
    for (int i = 0; i < SPLIT_COLUMNS; i += SPLIT_THREADS) {
        uint64_t c = blockIdx.z * step + first + i;
        __nv_bfloat16 high[4], low[4];
        float x[4];

        if (first + i >= n)
            break;
        *(float4 *)x = *(const float4 *)(from + c * pitch + r);
        for (int k = 0; k < 4; k++) {
            high[k] = __float2bfloat16_rn(x[k]);
            low[k] = __float2bfloat16_rn(x[k] - __bfloat162float(high[k]));
        }
        for (int part = 0; part < 3; part++)
            *(uint2 *)(to + (3 * c + part) * pitch + r) =
                *(const uint2 *)(part < 2 ? high : low);
    }
}

int refined_split_columns(struct cuda_context *c, __nv_bfloat16 *to,
                          const float *from, uint64_t n, uint64_t pitch,
                          uint64_t step, int count, struct err *e)
{
    dim3 grid((unsigned)(pitch / REFINED_TILE),
              (unsigned)((n + SPLIT_COLUMNS - 1) / SPLIT_COLUMNS),
              (unsigned)count);

    refined_split_kernel<<<grid, dim3(SPLIT_THREADS, SPLIT_THREADS), 0,
                           c->stream>>>(to, from, n, pitch, step);
    LAUNCHED();
    return 0;
}

/* One call for each module: cuBLAS chooses a kernel, and with it the order of sums,
 * by the number of rows and of matrices, and codes must not depend on what shares a
 * call (0.13 % of them did at [1000, 1664]). */
int refined_product(struct cuda_context *c, uint64_t m, uint64_t rows,
                    const struct refined_product *p, struct err *e)
{
    for (uint64_t k = 0; k < p->count * (m / rows); k++) {
        uint64_t i = k / (m / rows), at = k % (m / rows) * rows;

        BLAS_TRY(c->blas.gemm(
            c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)rows, (int)p->n,
            (int)(3 * p->k), &p->alpha, p->a + i * p->step_a + at, CUDA_R_16BF,
            (int)m, p->b + i * p->step_b, CUDA_R_16BF, (int)(3 * p->ldb),
            &p->beta, p->to + i * p->step_to + at, CUDA_R_32F, (int)m,
            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    }
    return 0;
}

/* to = from times columns c0.., rows r0.. of a square of f, all matrices: n
 * columns, depth k. */
struct push {
    const __nv_bfloat16 *square, *from;
    uint64_t step_from, c0, r0, n, k;
    float alpha, beta;
    float *to;
};
static int push(struct cuda_context *c, const struct refined_state *s,
                const struct push *p, struct err *e)
{
    uint64_t ld = s->padded;
    const struct refined_product x = { p->n,
                                       p->k,
                                       p->alpha,
                                       p->from,
                                       p->step_from,
                                       p->square + 3 * (p->c0 * ld + p->r0),
                                       ld,
                                       3 * ld * ld,
                                       p->beta,
                                       p->to,
                                       REFINED_SUPER * s->pitch,
                                       s->n };

    return refined_product(c, s->pitch, s->module_rows, &x, e);
}

static const __nv_bfloat16 *square_of(const struct refined_pass *j)
{
    return j->what == REFINED_DESCENT ? j->f->whole : j->f->split;
}

/* gradient[0..end - begin) = d times the square's columns begin..end: of all
 * columns, or of those from `end` on. */
static int enter(struct cuda_context *c, const struct refined_pass *j,
                 uint64_t begin, uint64_t end, struct err *e)
{
    const struct refined_state *s = j->s;
    uint64_t from = j->what == REFINED_DESCENT ? 0 : end;
    uint64_t step = 3 * s->padded * s->pitch;
    const struct push p = { square_of(j),
                            s->split + 3 * from * s->pitch,
                            step,
                            begin,
                            from,
                            end - begin,
                            s->padded - from,
                            1,
                            0,
                            s->gradient };

    if (from == j->plan->group[0].c1) {
        CUDA_TRY(cudaMemset2DAsync(
            s->gradient, REFINED_SUPER * s->pitch * sizeof(float), 0,
            (end - begin) * s->pitch * sizeof(float), (size_t)s->n, c->stream));
        return 0;
    }
    return push(c, s, &p, e);
}

static struct refined_group group_of(const struct refined_pass *j,
                                     const struct tile_group *at,
                                     uint64_t begin)
{
    const struct refined_state *s = j->s;
    const struct block_params *p = &j->p->block;
    const struct cuda_factors *f = j->f;
    uint64_t first = at->c0 * s->pitch;
    struct refined_group g = {};

    g.w = s->w + first;
    g.d = s->d + first;
    g.split = s->split + 3 * first;
    g.gradient = s->gradient + (at->c0 - begin) * s->pitch;
    g.moved = s->moved;
    g.codes = s->codes + first;
    g.meta = s->meta;
    g.input = f->input + at->c0;
    g.square = (j->what == REFINED_DESCENT ? f->curve : f->diagonal) +
               at->c0 * REFINED_WIDE;
    g.pitch = s->pitch;
    g.padded = s->padded;
    g.cols = f->cols;
    g.groups = s->groups;
    g.group = (uint32_t)j->p->solve.group;
    g.n = (uint32_t)(at->c1 - at->c0);
    g.mantissa = s->mantissa;
    g.factors = s->factors;
    g.n_factors = p->factors;
    g.given = j->what == REFINED_PLAIN;
    g.candidates = block_candidates(p);
    g.symmetric = p->symmetric;
    g.negative = p->negative;
    g.any = s->any;
    return g;
}

/* One group of the super-block that begins at `begin`, and what it changes in
 * the rest of it. */
static int visit(struct cuda_context *c, const struct refined_pass *j,
                 const struct tile_group *at, uint64_t begin, struct err *e)
{
    const struct refined_state *s = j->s;
    const struct refined_group g = group_of(j, at, begin);
    bool moves = j->what == REFINED_DESCENT;
    const struct push p = { square_of(j),
                            moves ? s->moved : g.split,
                            3 * (moves ? REFINED_WIDE : s->padded) * s->pitch,
                            begin,
                            at->c0,
                            at->c0 - begin,
                            g.n,
                            1,
                            1,
                            s->gradient };
    int rc = moves ? refined_descend(c, j->p->block.scale_dtype, &g, s->n, e) :
                     refined_choose(c, j->p->block.scale_dtype, &g, s->n, e);

    return rc < 0 || at->c0 == begin ? rc : push(c, s, &p, e);
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

/* gradient = d H of n columns from c0 on, what lies beyond them counted twice:
 * H is symmetric. */
static int curve(struct cuda_context *c, const struct cuda_factors *f,
                 const struct refined_state *s, uint64_t c0, uint64_t n,
                 struct err *e)
{
    uint64_t step = 3 * s->padded * s->pitch, rest = s->padded - c0 - n;
    struct push p = {
        f->whole,   s->split + 3 * c0 * s->pitch, step, c0, c0, n, n, 1, 0,
        s->gradient
    };
    int rc = push(c, s, &p, e);

    if (rc < 0 || !rest)
        return rc;
    p.from += 3 * n * s->pitch;
    p.r0 += n;
    p.k = rest;
    p.alpha = 2;
    p.beta = 1;
    return push(c, s, &p, e);
}

int refined_measure(struct cuda_context *c, const struct cuda_factors *f,
                    const struct refined_state *s, double *loss, struct err *e)
{
    uint64_t parts = s->padded / REFINED_WIDE, all = parts * s->pitch;
    double *sums =
        (double *)mem_alloc((size_t)s->n * all * sizeof(*sums), "solve", e);
    int rc = sums ? 0 : e->code;

    for (uint64_t c0 = 0, n; c0 < s->padded && rc >= 0; c0 += n) {
        n = s->padded - c0 < REFINED_SUPER ? s->padded - c0 : REFINED_SUPER;
        if ((rc = curve(c, f, s, c0, n, e)) < 0)
            break;
        refined_loss_kernel<<<dim3((unsigned)(s->pitch / REFINED_TILE),
                                   (unsigned)(n / REFINED_WIDE),
                                   (unsigned)s->n),
                              dim3(REFINED_TILE, LOSS_PARTS), 0, c->stream>>>(
            *s, c0);
        rc = cuda_check(cudaGetLastError(), "refined_loss_kernel", e);
    }
    if (rc >= 0)
        rc = download(c, sums, s->loss, (size_t)s->n * all * sizeof(*sums), e);
    for (uint64_t i = 0; i < s->n * s->pitch && rc >= 0; i++) {
        const double *from = sums + i / s->pitch * all + i % s->pitch;

        loss[i] = 0;
        for (uint64_t k = 0; k < parts; k++)
            loss[i] += from[k * s->pitch];
    }
    free(sums);
    return rc;
}
