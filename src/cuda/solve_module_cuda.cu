/* solve_module_cuda.cu - brings modules into the solver's form (struct
 * solve_state), and their codes out of it.
 *
 * Modules that share a factor (gate and up of an expert) are stacked in the
 * rows of one matrix, so that a launch has more rows to fill the device
 * with. */
#include "cuda/solve_internal.cuh"

#include <stdlib.h>
#include <string.h>

enum { TILE = 32 }; /* rows and columns of a transposed tile */

/* ---- in ---- */

/* w[m][c][r] = W[r][input[c]], 0 for dead inputs and in the padding.  A block
 * moves 32 rows x 32 columns through shared memory (4 KiB); block 32 x 8, grid
 * (padded / 32, padded_rows / 32).  *bad = the smallest index of a weight that
 * is not finite. */
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

/* to[g][r] = from[r][g], 0 in the padding.  As solve_load_kernel; grid (groups
 * / 32, padded_rows / 32). */
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

/* ---- out ---- */

/* out[r][word] = the codes of inputs 8 word..8 word + 7 of row r; input i's are
 * at codes[where[i]][r].  A block packs 32 rows x 32 words through shared
 * memory (4 KiB); block 32 x 8, grid (words / 32, padded_rows / 32). */
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

/* ---- host to device and back ---- */

/* Index of module i's first row in an array [n, each, padded_rows] of struct
 * solve_state; each: padded for w and codes, groups for meta, 1 for loss. */
static uint64_t first_row(const struct solve_state *s, int i, uint64_t each)
{
    return i / s->share * each * s->padded_rows + i % s->share * s->module_rows;
}

static int open_state(struct cuda_context *c, const struct solve_params *p,
                      const struct cuda_factors *f, int share,
                      struct solve_state *s, struct err *e)
{
    uint64_t all, n = f->n, bytes[SOLVE_ROOMS];
    struct device_buffer *const to[SOLVE_ROOMS] = {
        &c->shifted, &c->pushed, &c->split,  &c->codes, &c->meta,
        &c->loss,    &c->order,  &c->weight, &c->packed
    };
    const struct solve_size size =
        solve_size(n, share, p->rows, p->cols, p->group);
    int rc;

    s->rows = p->rows;
    s->module_rows = size.pitch / share;
    s->padded_rows = size.pitch;
    s->share = share;
    s->groups = size.groups;
    if (p->rows > INT32_MAX / 64 ||
        size_mul(n * f->padded, s->padded_rows, &all))
        return err_set(e, E_DATA, "too many outputs for the GPU");
    solve_rooms(&size, bytes);
    for (int i = 0; i < SOLVE_ROOMS; i++)
        if ((rc = buffer_need(c, to[i], bytes[i], e)) < 0)
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

int solve_transpose_weights(struct cuda_context *c,
                            const struct cuda_factors *f, int i, enum dtype t,
                            struct transposed_weights to, struct err *e)
{
    const uint32_t *input = f->input + i * f->cols;
    const bool *dead = f->dead + i * f->cols;
    const void *from = c->weight.data;
    dim3 block(TILE, 8), grid((unsigned)(f->padded / TILE),
                              (unsigned)(round_up(to.rows, SOLVE_TILE) / TILE));

    if (t == DT_BF16)
        solve_load_kernel<DT_BF16><<<grid, block, 0, c->stream>>>(
            to.w, from, input, dead, to.rows, f->cols, to.pitch, to.bad);
    else if (t == DT_F16)
        solve_load_kernel<DT_F16><<<grid, block, 0, c->stream>>>(
            to.w, from, input, dead, to.rows, f->cols, to.pitch, to.bad);
    else
        solve_load_kernel<DT_F32><<<grid, block, 0, c->stream>>>(
            to.w, from, input, dead, to.rows, f->cols, to.pitch, to.bad);
    LAUNCHED();
    return 0;
}

int solve_transpose_grids(struct cuda_context *c, uint64_t rows,
                          uint64_t groups, uint64_t pitch, uint32_t *meta,
                          struct err *e)
{
    dim3 grid((unsigned)((groups + TILE - 1) / TILE),
              (unsigned)(round_up(rows, SOLVE_TILE) / TILE));

    solve_meta_kernel<<<grid, dim3(TILE, 8), 0, c->stream>>>(
        meta, (const uint32_t *)c->packed.data, rows, groups, pitch);
    LAUNCHED();
    return 0;
}

/* Transpose module i from c->weight and c->packed (its grids) into s. */
static int transpose_module(struct cuda_context *c,
                            const struct solve_params *p,
                            const struct cuda_factors *f,
                            const struct solve_state *s, int i, struct err *e)
{
    int rc = solve_transpose_weights(c, f, i / s->share, p->dtype,
                                     { p->rows, s->padded_rows,
                                       s->w + first_row(s, i, f->padded),
                                       s->bad + i },
                                     e);

    return rc < 0 ?
               rc :
               solve_transpose_grids(c, p->rows, s->groups, s->padded_rows,
                                     s->meta + first_row(s, i, s->groups), e);
}

static int load_module(struct cuda_context *c, const struct solve_params *p,
                       const struct cuda_factors *f,
                       const struct solve_state *s, int i,
                       struct cuda_module *m, struct err *e)
{
    const struct weight_rows rows = { m->w,    m->fp8, p->dtype,
                                      p->cols, 0,      p->rows };
    size_t metas = p->rows * s->groups * sizeof(*m->meta);
    int rc = bring_weight(c, &rows, e);

    if (rc >= 0)
        rc = upload(c, c->packed.data, m->meta, metas, e);
    return rc < 0 ? rc : transpose_module(c, p, f, s, i, e);
}

/* Upload and transpose all modules.  E_DATA: a weight is not finite; the
 * message names its place in the first module that has one. */
static int load_modules(struct cuda_context *c, const struct solve_params *p,
                        const struct cuda_factors *f,
                        const struct solve_state *s, struct cuda_module *m,
                        struct err *e)
{
    int n = f->n * s->share, rc;

    CUDA_TRY(cudaMemsetAsync(s->bad, 0xff, n * sizeof(*s->bad), c->stream));
    for (int i = 0; i < n; i++)
        if ((rc = load_module(c, p, f, s, i, m + i, e)) < 0)
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

/* Add up the rows' losses, in order, to each module's result. */
static int read_losses(struct cuda_context *c, const struct solve_state *s,
                       struct cuda_module *m, int n, bool nearest,
                       struct err *e)
{
    uint64_t all = n * s->module_rows;
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
            *to += rows[first_row(s, i, 1) + r];
    }
    free(rows);
    return rc;
}

int solve_transpose_codes(struct cuda_context *c, const struct cuda_factors *f,
                          int i, uint64_t rows, uint64_t pitch,
                          const uint8_t *codes, struct err *e)
{
    uint64_t words = f->cols / 8;
    uint32_t *where = (uint32_t *)c->order.data;
    dim3 grid((unsigned)((words + TILE - 1) / TILE),
              (unsigned)(round_up(rows, SOLVE_TILE) / TILE));

    solve_where_kernel<<<(unsigned)((f->cols + 255) / 256), 256, 0,
                         c->stream>>>(where, f->input + i * f->cols, f->cols);
    LAUNCHED();
    solve_pack_kernel<<<grid, dim3(TILE, 8), 0, c->stream>>>(
        (uint32_t *)c->packed.data, codes, where, rows, words, pitch);
    LAUNCHED();
    return 0;
}

static int store_codes(struct cuda_context *c, const struct solve_params *p,
                       const struct cuda_factors *f,
                       const struct solve_state *s, struct cuda_module *m,
                       struct err *e)
{
    int rc;

    for (int i = 0; i < f->n * s->share; i++)
        if ((rc = solve_transpose_codes(
                 c, f, i / s->share, p->rows, s->padded_rows,
                 s->codes + first_row(s, i, f->padded), e)) < 0 ||
            (rc = download(c, m[i].codes, c->packed.data, p->rows * p->cols / 2,
                           e)) < 0)
            return rc;
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}

static int check(const struct solve_params *p, const struct cuda_factors *f,
                 int n, struct err *e)
{
    if (f->cols != p->cols || n < f->n || n % f->n)
        return err_set(e, E_DATA, "the factors do not fit the weights");
    for (int i = 0; i < f->n; i++)
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

/* divide() needs scales from 2^-90 to 2^90: all of f16's, and all bf16 scales
 * of a sensible model.  E_CONFIG. */
static int check_scales(const struct solve_params *p, const uint32_t *meta,
                        struct err *e)
{
    uint64_t n = p->rows * quant_groups(p->cols, p->group);

    for (uint64_t i = 0; i < n; i++) {
        int q = (int16_t)(meta[i] & 0xffff);

        if (meta[i] >> 24 & QUANT_NEGATIVE)
            return err_set(e, E_CONFIG, "the GPU takes no negative scales");
        if (q < -90 * 256 || q > 89 * 256)
            return err_set(e, E_CONFIG, "the GPU takes no scale of 2^%d",
                           q >> 8);
    }
    return 0;
}

/* Round to nearest, for comparison, then solve; and the losses of both. */
static int run_passes(struct cuda_context *c, const struct solve_params *p,
                      const struct cuda_factors *f, const struct solve_state *s,
                      struct cuda_module *m, struct err *e)
{
    const float *mantissa;
    int n = f->n * s->share, rc = context_scales(c, DT_F32, &mantissa, e);

    if (rc < 0)
        return rc;
    for (int pass = !(p->nearest || p->compare); pass < 2; pass++) {
        CUDA_TRY(cudaMemsetAsync(
            s->loss, 0, n * s->module_rows * sizeof(double), c->stream));
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

static int solve_modules(struct cuda_context *c, const struct solve_params *p,
                         const struct cuda_factors *f, struct cuda_module *m,
                         int n, struct err *e)
{
    struct solve_state s = {};
    int rc;

    for (int i = 0; i < n; i++)
        m[i].result = (struct solve_result){ 0, 0 };
    if ((rc = check(p, f, n, e)) < 0)
        return rc;
    for (int i = 0; i < n; i++)
        if ((rc = check_scales(p, m[i].meta, e)) < 0)
            return rc;
    if ((rc = need_blas(c, e)) < 0 ||
        (rc = open_state(c, p, f, n / f->n, &s, e)) < 0 ||
        (rc = load_modules(c, p, f, &s, m, e)) < 0 ||
        (rc = run_passes(c, p, f, &s, m, e)) < 0 ||
        (rc = store_codes(c, p, f, &s, m, e)) < 0)
        return rc;
    return find_bad(c, p, &s, n, e);
}

int cuda_solve(struct cuda_context *c, const struct solve_params *p,
               const struct cuda_factors *f, struct cuda_module *m, int n,
               struct err *e)
{
    int rc = solve_modules(c, p, f, m, n, e);

    if (rc == E_TEMP)
        context_trim(c);
    return rc;
}
