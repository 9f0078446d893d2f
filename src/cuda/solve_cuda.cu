/* solve_cuda.cu - the look-back solver on the GPU, in two levels.
 *
 *     columns of L, walked from the last to the first:
 *
 *     |<------------- super-block, 1024 ------------>|  already solved
 *     |  ...  | block, 128 |  solved in this super   |  ...
 *
 * 1. When a super-block is entered, what all solved columns push onto it is one
 *    product, with depth up to the number of columns.
 * 2. A launch of solve_block_kernel quantizes 128 columns of all rows of all
 *    matrices.
 * 3. What these push onto the rest of the super-block is a product of depth
 *    128.
 *
 * Products run on the tensor cores in bf16 with f32 sums, each factor split
 * into a high and a low part: (high, high, low) of the displacements times
 * (high, low, high) of L, as one product of three times the depth.  The part
 * that is lost (low times low) is 2^-16 of the result; measured on the CPU it
 * changes no code at damping 0.01.
 *
 * Tried on paper alone: right-looking updates of all columns after each block
 * move 2 n^2 O / 128 floats (3.3 GB at n = 7168, O = 2048) where these move
 * an eighth. */
#include "cuda/solve_inside.cuh"

#include <stdlib.h>
#include <string.h>

enum {
    SUB = 32, /* columns of a sum in f32 */
    TILE = 32 /* of transpositions */
};

/* ---- in ---- */

/* w[m][c][r] = W[r][input[c]], 0 for dead inputs and in the padding.  A block
 * moves 32 rows x 32 columns through shared memory (4 KiB); block 32 x 8, grid
 * (padded / 32, padded_rows / 32).  The smallest index of a weight that is not
 * finite is left in *bad. */
template <enum dtype T>
static __global__ void
solve_load_kernel(float *w, const void *from, const uint32_t *input,
                  const bool *dead, uint64_t rows, uint64_t cols,
                  uint64_t padded_rows, unsigned long long *bad)
{
    __shared__ float tile[TILE][TILE + 1];
    uint64_t c0 = (uint64_t)blockIdx.x * TILE, r0 = (uint64_t)blockIdx.y * TILE;
    uint64_t c = c0 + threadIdx.x;

    for (int y = threadIdx.y; y < TILE; y += blockDim.y) {
        uint64_t r = r0 + y;
        float x = 0;

        if (r < rows && c < cols) {
            uint64_t i = r * cols + input[c];

            x = load_weight<T>(from, i);
            if (!isfinite(x))
                atomicMin(bad, (unsigned long long)i);
            x = dead[c] ? 0 : x;
        }
        tile[y][threadIdx.x] = x;
    }
    __syncthreads();
    for (int y = threadIdx.y; y < TILE; y += blockDim.y)
        w[(c0 + y) * padded_rows + r0 + threadIdx.x] = tile[threadIdx.x][y];
}

/* to[g][r] = from[r][g], 0 in the padding.  As above; grid (groups / 32,
 * padded_rows / 32). */
static __global__ void solve_meta_kernel(uint32_t *to, const uint32_t *from,
                                         uint64_t rows, uint64_t groups,
                                         uint64_t padded_rows)
{
    __shared__ uint32_t tile[TILE][TILE + 1];
    uint64_t g0 = (uint64_t)blockIdx.x * TILE, r0 = (uint64_t)blockIdx.y * TILE;

    for (int y = threadIdx.y; y < TILE; y += blockDim.y) {
        uint64_t r = r0 + y, g = g0 + threadIdx.x;

        tile[y][threadIdx.x] =
            r < rows && g < groups ? from[r * groups + g] : 0;
    }
    __syncthreads();
    for (int y = threadIdx.y; y < TILE; y += blockDim.y)
        if (g0 + y < groups)
            to[(g0 + y) * padded_rows + r0 + threadIdx.x] =
                tile[threadIdx.x][y];
}

/* ---- round to nearest ---- */

/* Codes and displacements of 128 columns at the nearest values; a thread owns
 * a row.  Grid (padded_rows / 64, padded / 128, matrices). */
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

/* loss += |pushed|^2 - lambda |displacement|^2 over columns c0..c0+n of a row;
 * a thread owns a row.  Grid (padded_rows / 64, matrices). */
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

/* ---- out ---- */

/* out[r][word] = the codes of inputs 8 word.. of row r, found at
 * codes[where][r].  A block makes 32 rows x 32 words through shared memory (4
 * KiB); block 32 x 8, grid (words / 32, padded_rows / 32). */
static __global__ void solve_pack_kernel(uint32_t *out, const uint8_t *codes,
                                         const uint32_t *where, uint64_t rows,
                                         uint64_t words, uint64_t padded_rows)
{
    __shared__ uint32_t tile[TILE][TILE + 1];
    uint64_t w0 = (uint64_t)blockIdx.x * TILE, r0 = (uint64_t)blockIdx.y * TILE;

    for (int y = threadIdx.y; y < TILE; y += blockDim.y) {
        uint32_t x = 0;

        for (int i = 0; i < 8 && w0 + y < words; i++)
            x |= (uint32_t)codes[where[8 * (w0 + y) + i] * padded_rows + r0 +
                                 threadIdx.x]
                 << 4 * i;
        tile[y][threadIdx.x] = x;
    }
    __syncthreads();
    for (int y = threadIdx.y; y < TILE; y += blockDim.y)
        if (r0 + y < rows && w0 + threadIdx.x < words)
            out[(r0 + y) * words + w0 + threadIdx.x] = tile[threadIdx.x][y];
}

/* where[input[c]] = c. */
static __global__ void solve_where_kernel(uint32_t *where,
                                          const uint32_t *input, uint64_t cols)
{
    uint64_t c = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (c < cols)
        where[input[c]] = (uint32_t)c;
}

/* ---- all blocks ---- */

/* pushed[c0..c1) (+)= what columns k0..k1 push onto them, all matrices. */
static int push(struct cuda_context *c, const struct cuda_factors *f,
                const struct solve_state *s, uint64_t c0, uint64_t c1,
                uint64_t k0, uint64_t k1, bool add, struct err *e)
{
    const float one = 1, beta = add ? 1 : 0;
    uint64_t p = f->padded, o = s->padded_rows;

    if (c0 == c1 || k0 == k1)
        return 0;
    BLAS_TRY(c->blas.gemm_batched(
        c->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, (int)o, (int)(c1 - c0),
        (int)(3 * (k1 - k0)), &one, s->split + 3 * k0 * o, CUDA_R_16BF, (int)o,
        (long long)(3 * p * o), f->split + 3 * (c0 * p + k0), CUDA_R_16BF,
        (int)(3 * p), (long long)(3 * p * p), &beta, s->pushed + c0 * o,
        CUDA_R_32F, (int)o, (long long)(p * o), f->n, CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT));
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
        else if ((rc = push(c, f, s, begin, end, end, padded, false, e)) < 0)
            return rc;
        for (uint64_t at = end; at > begin;) {
            at -= SOLVE_BLOCK;
            a.c0 = (uint32_t)at;
            if ((rc = solve_block(c, p->scale_dtype, &a, f->n, large, e)) < 0 ||
                (rc = push(c, f, s, begin, at, at, at + SOLVE_BLOCK, true, e)) <
                    0)
                return rc;
        }
        end = begin;
    }
    return 0;
}

/* Codes, displacements and their loss at the nearest values. */
static int solve_nearest(struct cuda_context *c, const struct solve_params *p,
                         const struct cuda_factors *f,
                         const struct solve_state *s, const float *mantissa,
                         struct err *e)
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

        rc = push(c, f, s, at, end, at, f->padded, false, e);
        if (rc < 0)
            return rc;
        a.c0 = (uint32_t)at;
        solve_measure_kernel<<<dim3(tiles, (unsigned)f->n), SOLVE_TILE, 0,
                               c->stream>>>(a, (uint32_t)(end - at));
        LAUNCHED();
    }
    return 0;
}

/* ---- host to device and back ---- */

static int open_state(struct cuda_context *c, const struct solve_params *p,
                      const struct cuda_factors *f, struct solve_state *s,
                      struct err *e)
{
    uint64_t all, n = f->n;
    int rc;

    s->rows = p->rows;
    s->padded_rows = round_up(p->rows, SOLVE_TILE);
    s->groups = quant_groups(p->cols, p->group);
    if (p->rows > INT32_MAX / 64 ||
        size_mul(n * f->padded, s->padded_rows, &all))
        return err_set(e, E_DATA, "too many outputs for the GPU");
    if ((rc = buffer_need(c, &c->shifted, all * sizeof(float), e)) < 0 ||
        (rc = buffer_need(c, &c->pushed, all * sizeof(float), e)) < 0 ||
        (rc = buffer_need(c, &c->split, 3 * all * 2, e)) < 0 ||
        (rc = buffer_need(c, &c->codes, all, e)) < 0 ||
        (rc = buffer_need(c, &c->meta, n * s->groups * s->padded_rows * 4, e)) <
            0 ||
        (rc = buffer_need(c, &c->loss, n * s->padded_rows * 8 + n * 8, e)) <
            0 ||
        (rc = buffer_need(c, &c->order, n * f->cols * 4, e)) < 0 ||
        (rc = buffer_need(c, &c->weight, p->rows * p->cols * 4, e)) < 0 ||
        (rc = buffer_need(c, &c->packed,
                          p->rows * (p->cols / 2 + 4 * s->groups), e)) < 0)
        return rc;
    s->w = (float *)c->shifted.data;
    s->pushed = (float *)c->pushed.data;
    s->split = (__nv_bfloat16 *)c->split.data;
    s->codes = (uint8_t *)c->codes.data;
    s->meta = (uint32_t *)c->meta.data;
    s->loss = (double *)c->loss.data;
    s->bad = (unsigned long long *)(s->loss + n * s->padded_rows);
    return 0;
}

/* c->weight and c->packed (the grids) into the solver's form. */
static int turn_module(struct cuda_context *c, const struct solve_params *p,
                       const struct cuda_factors *f,
                       const struct solve_state *s, int i, struct err *e)
{
    const uint32_t *input = f->input + i * f->cols;
    const bool *dead = f->dead + i * f->cols;
    float *w = s->w + i * f->padded * s->padded_rows;
    dim3 block(TILE, 8),
        grid((unsigned)(f->padded / TILE), (unsigned)(s->padded_rows / TILE));
    dim3 groups((unsigned)((s->groups + TILE - 1) / TILE), grid.y);

    if (p->dtype == DT_BF16)
        solve_load_kernel<DT_BF16><<<grid, block, 0, c->stream>>>(
            w, c->weight.data, input, dead, p->rows, p->cols, s->padded_rows,
            s->bad + i);
    else if (p->dtype == DT_F16)
        solve_load_kernel<DT_F16><<<grid, block, 0, c->stream>>>(
            w, c->weight.data, input, dead, p->rows, p->cols, s->padded_rows,
            s->bad + i);
    else
        solve_load_kernel<DT_F32><<<grid, block, 0, c->stream>>>(
            w, c->weight.data, input, dead, p->rows, p->cols, s->padded_rows,
            s->bad + i);
    LAUNCHED();
    solve_meta_kernel<<<groups, block, 0, c->stream>>>(
        s->meta + i * s->groups * s->padded_rows,
        (const uint32_t *)c->packed.data, p->rows, s->groups, s->padded_rows);
    LAUNCHED();
    return 0;
}

/* Weights come from the host; grids too, or they are searched. */
static int load_module(struct cuda_context *c, const struct solve_params *p,
                       const struct grid_params *grid,
                       const struct cuda_factors *f,
                       const struct solve_state *s, int i,
                       struct cuda_module *m, struct err *e)
{
    size_t bytes = p->rows * p->cols * dtype_bits(p->dtype) / 8;
    size_t metas = p->rows * s->groups * sizeof(*m->meta);
    int rc;

    mark(c, CUDA_TRANSFER);
    rc = upload(c, c->weight.data, m->w, bytes, e);

    if (rc < 0)
        return rc;
    if (grid)
        mark(c, CUDA_GRID);
    if (!grid)
        rc = upload(c, c->packed.data, m->meta, metas, e);
    else if ((rc = grid_device(c, grid, c->weight.data, NULL, 0,
                               (uint32_t *)c->packed.data, e)) >= 0)
        rc = download(c, m->searched, c->packed.data, metas, e);
    mark(c, CUDA_SOLVE);
    return rc < 0 ? rc : turn_module(c, p, f, s, i, e);
}

/* The place of a weight that is not finite, in the first matrix that has one:
 * looked at when all are on the device. */
static int load_modules(struct cuda_context *c, const struct solve_params *p,
                        const struct grid_params *grid,
                        const struct cuda_factors *f,
                        const struct solve_state *s, struct cuda_module *m,
                        struct err *e)
{
    int rc;

    CUDA_TRY(cudaMemsetAsync(s->bad, 0xff, f->n * sizeof(*s->bad), c->stream));
    for (int i = 0; i < f->n; i++)
        if ((rc = load_module(c, p, grid, f, s, i, m + i, e)) < 0)
            return rc;
    return 0;
}

static int find_bad(struct cuda_context *c, const struct solve_params *p,
                    const struct solve_state *s, int n, struct err *e)
{
    unsigned long long bad;

    for (int i = 0; i < n; i++) {
        CUDA_TRY(cudaMemcpyAsync(&bad, s->bad + i, sizeof(bad),
                                 cudaMemcpyDeviceToHost, c->stream));
        CUDA_TRY(cudaStreamSynchronize(c->stream));
        if (bad != ~0ull)
            return err_set(e, E_DATA, "row %llu: input %llu is not finite",
                           (unsigned long long)(bad / p->cols),
                           (unsigned long long)(bad % p->cols));
    }
    return 0;
}

/* The sums of the rows, in their order. */
static int read_losses(struct cuda_context *c, const struct solve_state *s,
                       struct cuda_module *m, int n, bool nearest,
                       struct err *e)
{
    uint64_t all = n * s->padded_rows;
    double *rows = (double *)mem_alloc(all * sizeof(*rows), "solve", e);
    int rc;

    if (!rows)
        return e->code;
    rc = cuda_check(cudaMemcpyAsync(rows, s->loss, all * sizeof(*rows),
                                    cudaMemcpyDeviceToHost, c->stream),
                    "cudaMemcpyAsync", e);
    if (!rc)
        rc = cuda_check(cudaStreamSynchronize(c->stream),
                        "cudaStreamSynchronize", e);
    for (int i = 0; i < n && !rc; i++) {
        double *to = nearest ? &m[i].result.loss_nearest : &m[i].result.loss;

        for (uint64_t r = 0; r < s->rows; r++)
            *to += rows[i * s->padded_rows + r];
    }
    free(rows);
    return rc;
}

/* Codes by rows, or in words of a layout. */
static int store_codes(struct cuda_context *c, const struct solve_params *p,
                       const struct cuda_factors *f,
                       const struct solve_state *s, enum layout layout,
                       struct cuda_module *m, struct err *e)
{
    uint64_t words = p->cols / 8;
    struct cuda_pack pack = {};
    int rc;
    uint32_t *where = (uint32_t *)c->order.data;
    dim3 grid((unsigned)((words + TILE - 1) / TILE),
              (unsigned)(s->padded_rows / TILE));

    for (int i = 0; i < f->n; i++) {
        mark(c, CUDA_PACK);
        solve_where_kernel<<<(unsigned)((f->cols + 255) / 256), 256, 0,
                             c->stream>>>(where, f->input + i * f->cols,
                                          f->cols);
        LAUNCHED();
        solve_pack_kernel<<<grid, dim3(TILE, 8), 0, c->stream>>>(
            (uint32_t *)c->packed.data,
            s->codes + i * f->padded * s->padded_rows, where, p->rows, words,
            s->padded_rows);
        LAUNCHED();
        pack.layout = layout;
        pack.rows = p->rows;
        pack.cols = p->cols;
        pack.codes = (const uint32_t *)c->packed.data;
        pack.out = (uint32_t *)c->weight.data;
        if (layout != LAYOUT_CT && (rc = pack_device(c, &pack, e)) < 0)
            return rc;
        mark(c, CUDA_TRANSFER);
        rc = download(c, m[i].codes,
                      layout == LAYOUT_CT ? c->packed.data : c->weight.data,
                      p->rows * words * 4, e);
        if (rc < 0)
            return rc;
    }
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}

static int check(const struct solve_params *p, const struct cuda_factors *f,
                 int n, struct err *e)
{
    if (f->cols != p->cols || f->n != n)
        return err_set(e, E_DATA, "the factors do not fit the weights");
    for (int i = 0; i < n; i++)
        if (f->failed[i])
            return err_set(e, E_DATA, "matrix %d has no factor", i);
    if (p->cols % 8 || !p->rows || !p->group)
        return err_set(e, E_CONFIG, "the GPU solves inputs in multiples of 8");
    if (p->dtype != DT_BF16 && p->dtype != DT_F16 && p->dtype != DT_F32)
        return err_set(e, E_CONFIG, "the GPU takes no %s weights",
                       dtype_name(p->dtype));
    if (p->scale_dtype != DT_F16 && p->scale_dtype != DT_BF16)
        return err_set(e, E_CONFIG, "the GPU takes no %s scales",
                       dtype_name(p->scale_dtype));
    return 0;
}

/* The kernel's division wants scales from 2^-90 to 2^90: all of f16's, and
 * what bf16's can be in a model that computes anything. */
static int check_scales(const struct solve_params *p, const uint32_t *meta,
                        struct err *e)
{
    uint64_t n = p->rows * quant_groups(p->cols, p->group);

    if (p->scale_dtype == DT_F16)
        return 0;
    for (uint64_t i = 0; i < n; i++) {
        int q = (int16_t)(meta[i] & 0xffff);

        if (q < -90 * 256 || q > 89 * 256)
            return err_set(e, E_CONFIG, "the GPU takes no scale of 2^%d",
                           q >> 8);
    }
    return 0;
}

/* Both passes over loaded modules, and their losses. */
static int run_passes(struct cuda_context *c, const struct solve_params *p,
                      const struct cuda_factors *f, const struct solve_state *s,
                      struct cuda_module *m, struct err *e)
{
    const float *mantissa;
    int n = f->n, rc = context_scales(c, DT_F32, &mantissa, e);

    if (rc < 0)
        return rc;
    for (int pass = !(p->nearest || p->compare); pass < 2; pass++) {
        CUDA_TRY(cudaMemsetAsync(
            s->loss, 0, n * s->padded_rows * sizeof(double), c->stream));
        if (pass == 0)
            rc = solve_nearest(c, p, f, s, mantissa, e);
        else if (!p->nearest)
            rc = solve_blocks(c, p, f, s, mantissa, e);
        if (rc < 0 || (rc = read_losses(c, s, m, n, pass == 0, e)) < 0)
            return rc;
    }
    for (int i = 0; i < n && p->nearest; i++)
        m[i].result.loss = m[i].result.loss_nearest;
    return 0;
}

int solve_modules(struct cuda_context *c, const struct solve_params *p,
                  const struct grid_params *grid, enum layout layout,
                  const struct cuda_factors *f, struct cuda_module *m, int n,
                  struct err *e)
{
    struct solve_state s = {};
    int rc;

    for (int i = 0; i < n; i++)
        m[i].result = (struct solve_result){ 0, 0 };
    if ((rc = check(p, f, n, e)) < 0)
        return rc;
    for (int i = 0; i < n && !grid; i++)
        if ((rc = check_scales(p, m[i].meta, e)) < 0)
            return rc;
    if ((rc = need_blas(c, e)) < 0 || (rc = open_state(c, p, f, &s, e)) < 0 ||
        (rc = load_modules(c, p, grid, f, &s, m, e)) < 0 ||
        (rc = run_passes(c, p, f, &s, m, e)) < 0 ||
        (rc = store_codes(c, p, f, &s, layout, m, e)) < 0 ||
        (rc = find_bad(c, p, &s, n, e)) < 0)
        return rc;
    for (int i = 0; i < n && grid; i++)
        if ((rc = check_scales(p, m[i].searched, e)) < 0)
            return rc;
    return 0;
}

int cuda_solve(struct cuda_context *c, const struct solve_params *p,
               const struct cuda_factors *f, struct cuda_module *m, int n,
               struct err *e)
{
    return solve_modules(c, p, NULL, LAYOUT_CT, f, m, n, e);
}
