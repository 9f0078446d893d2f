/* solve_cuda.cu - the look-back GPTQ of gptq/solve/solve.h on the GPU, in two
 * levels.
 *
 *     columns of L, walked from the last to the first:
 *
 *     |<------------- super-block, 1024 ------------>|  already solved
 *     |  ...  | block, 128 |  solved in this super   |  ...
 *
 * 1. On entering a super-block, the error feedback from all solved columns onto
 *    it is one product, of a depth up to the number of columns.
 * 2. A launch of solve_block_kernel quantizes 128 columns of all rows of all
 *    matrices.
 * 3. Their feedback onto the rest of the super-block is a product of depth 128.
 *
 * Products run on tensor cores in bf16 with f32 sums, in split precision: each
 * operand is split into a high and a low bf16, and (high, high, low) of the
 * displacements times (high, low, high) of L is one product of three times the
 * depth.  The part left out, low times low, is 2^-16 of the result; measured on
 * the CPU it changes no code at damping 0.01.
 *
 * Not implemented, only estimated: right-looking updates of all columns after
 * each block would move 2 n² O / 128 floats (3.3 GB at n = 7168, O = 2048
 * outputs), eight times as much. */
#include "cuda/solve_internal.cuh"

enum { SUB = 32 }; /* columns of a partial sum in f32 */

/* ---- round to nearest ---- */

/* Round 128 columns to nearest: codes and displacements; one thread per row.
 * Grid (padded_rows / 64, padded / 128, matrices). */
template <enum dtype S>
static __global__ void __launch_bounds__(SOLVE_TILE)
    solve_nearest_kernel(struct block_args a)
{
    uint64_t m = blockIdx.z, c0 = (uint64_t)blockIdx.y * SOLVE_BLOCK;
    uint64_t row = (uint64_t)blockIdx.x * SOLVE_TILE + threadIdx.x;

    for (uint64_t c = c0; c < c0 + SOLVE_BLOCK; c++) {
        uint64_t at = (m * a.padded + c) * a.padded_rows + row;
        uint64_t g = c < a.cols ? a.input[m * a.cols + c] / a.group : 0;
        uint32_t meta = a.meta[(m * a.groups + g) * a.padded_rows + row];
        float scale = meta_scale<S>(a.mantissa, meta), w = a.w[at];
        float zero = (float)meta_zero(meta), x = __fdiv_rn(w, scale);
        __nv_bfloat16 *to = a.split + 3 * (at - row) + row, high;

        x = fminf(fmaxf(x, -zero), 15 - zero);
        x = (x + ROUNDER) - ROUNDER;
        w -= x * scale;
        high = __float2bfloat16_rn(w);
        a.codes[at] = (uint8_t)(x + zero);
        to[0] = high;
        to[a.padded_rows] = high;
        to[2 * a.padded_rows] = __float2bfloat16_rn(w - __bfloat162float(high));
    }
}

/* loss += |d L|² - lambda |d|² over columns c0..c0+n-1 (d L in `pushed`); one
 * thread per row.  Grid (padded_rows / 64, matrices). */
static __global__ void __launch_bounds__(SOLVE_TILE)
    solve_measure_kernel(struct block_args a, uint32_t n)
{
    uint64_t m = blockIdx.y;
    uint64_t row = (uint64_t)blockIdx.x * SOLVE_TILE + threadIdx.x;
    double sum = 0;

    for (uint32_t c = a.c0; c < a.c0 + n; c += SUB) {
        float loss = 0, dist = 0;

        for (uint32_t k = c; k < c + SUB; k++) {
            uint64_t at = (m * a.padded + k) * a.padded_rows;
            float p = a.pushed[at + row];
            float d =
                __bfloat162float(a.split[3 * at + row]) +
                __bfloat162float(a.split[3 * at + 2 * a.padded_rows + row]);

            loss = fmaf(p, p, loss);
            dist = fmaf(d, d, dist);
        }
        sum += (double)loss - a.lambda[m] * (double)dist;
    }
    a.loss[m * a.padded_rows + row] += sum;
}

/* ---- GPTQ over all columns ---- */

/* Columns begin..end-1. */
struct columns {
    uint64_t begin, end;
};

/* The product of push() for one matrix after the other: where matrices are too far
 * apart for a stride of 31 bits. */
static int push_each(struct cuda_context *c, const struct cuda_factors *f,
                     const struct solve_state *s, struct columns to,
                     struct columns by, bool add, struct err *e)
{
    const float one = 1, beta = add ? 1 : 0;
    uint64_t p = f->padded, o = s->padded_rows;

    for (uint64_t i = 0; i < (uint64_t)f->n; i++)
        BLAS_TRY(c->blas.gemm(
            c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)o,
            (int)(to.end - to.begin), (int)(3 * (by.end - by.begin)), &one,
            s->split + 3 * (i * p + by.begin) * o, CUDA_R_16BF, (int)o,
            f->split + 3 * (i * p * p + to.begin * p + by.begin), CUDA_R_16BF,
            (int)(3 * p), &beta, s->pushed + (i * p + to.begin) * o, CUDA_R_32F,
            (int)o, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return 0;
}

/* pushed[to] = (add: +=) the error feedback from columns `by`, for all
 * matrices. */
static int push(struct cuda_context *c, const struct cuda_factors *f,
                const struct solve_state *s, struct columns to,
                struct columns by, bool add, struct err *e)
{
    const float one = 1, beta = add ? 1 : 0;
    uint64_t p = f->padded, o = s->padded_rows;

    if (to.begin == to.end || by.begin == by.end)
        return 0;
    if (3 * p * p > INT32_MAX)
        return push_each(c, f, s, to, by, add, e);
    BLAS_TRY(c->blas.gemm_batched(
        c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)o,
        (int)(to.end - to.begin), (int)(3 * (by.end - by.begin)), &one,
        s->split + 3 * by.begin * o, CUDA_R_16BF, (int)o,
        (long long)(3 * p * o), f->split + 3 * (to.begin * p + by.begin),
        CUDA_R_16BF, (int)(3 * p), (long long)(3 * p * p), &beta,
        s->pushed + to.begin * o, CUDA_R_32F, (int)o, (long long)(p * o), f->n,
        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return 0;
}

static struct block_args block_args(const struct solve_params *p,
                                    const struct cuda_factors *f,
                                    const struct solve_state *s,
                                    const float *mantissa)
{
    struct block_args a = {};

    a.diagonal = f->diagonal;
    a.w = s->w;
    a.pushed = s->pushed;
    a.mantissa = mantissa;
    a.meta = s->meta;
    a.input = f->input;
    a.lambda = f->lambdas;
    a.split = s->split;
    a.codes = s->codes;
    a.loss = s->loss;
    a.padded = f->padded;
    a.padded_rows = s->padded_rows;
    a.groups = s->groups;
    a.cols = f->cols;
    a.group = (uint32_t)p->group;
    return a;
}

int solve_blocks(struct cuda_context *c, const struct solve_params *p,
                 const struct cuda_factors *f, const struct solve_state *s,
                 const float *mantissa, struct err *e)
{
    struct block_args a = block_args(p, f, s, mantissa);
    uint64_t padded = f->padded;
    bool large = solve_large_blocks(c, s, f->n);
    int rc;

    for (uint64_t end = padded; end > 0;) {
        uint64_t begin = (end - 1) / SOLVE_SUPER * SOLVE_SUPER;

        if (end == padded)
            for (int i = 0; i < f->n; i++)
                CUDA_TRY(cudaMemsetAsync(
                    s->pushed + (i * padded + begin) * s->padded_rows, 0,
                    (end - begin) * s->padded_rows * sizeof(float), c->stream));
        else if ((rc = push(c, f, s, { begin, end }, { end, padded }, false,
                            e)) < 0)
            return rc;
        for (uint64_t at = end; at > begin;) {
            at -= SOLVE_BLOCK;
            a.c0 = (uint32_t)at;
            if ((rc = solve_block(c, p->scale_dtype, &a, f->n, large, e)) < 0 ||
                (rc = push(c, f, s, { begin, at }, { at, at + SOLVE_BLOCK },
                           true, e)) < 0)
                return rc;
        }
        end = begin;
    }
    return 0;
}

int solve_nearest(struct cuda_context *c, const struct solve_params *p,
                  const struct cuda_factors *f, const struct solve_state *s,
                  const float *mantissa, struct err *e)
{
    struct block_args a = block_args(p, f, s, mantissa);
    unsigned tiles = (unsigned)(s->padded_rows / SOLVE_TILE);
    dim3 grid(tiles, (unsigned)(f->padded / SOLVE_BLOCK), (unsigned)f->n);
    int rc;

    if (p->scale_dtype == DT_F16)
        solve_nearest_kernel<DT_F16><<<grid, SOLVE_TILE, 0, c->stream>>>(a);
    else
        solve_nearest_kernel<DT_BF16><<<grid, SOLVE_TILE, 0, c->stream>>>(a);
    LAUNCHED();
    for (uint64_t at = 0; at < f->padded; at += SOLVE_SUPER) {
        uint64_t end =
            f->padded - at < SOLVE_SUPER ? f->padded : at + SOLVE_SUPER;

        rc = push(c, f, s, { at, end }, { at, f->padded }, false, e);
        if (rc < 0)
            return rc;
        a.c0 = (uint32_t)at;
        solve_measure_kernel<<<dim3(tiles, (unsigned)f->n), SOLVE_TILE, 0,
                               c->stream>>>(a, (uint32_t)(end - at));
        LAUNCHED();
    }
    return 0;
}
