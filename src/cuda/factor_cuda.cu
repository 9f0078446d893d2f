/* factor_cuda.cu - the Cholesky factors of a batch, by cuSOLVER.
 *
 * The lower triangle, column-major, is the form that cuSOLVER factors fastest.
 * One matrix after the other: cuSOLVER's batched call is faster for small
 * matrices (32 of 2048: 0.35 ms each instead of 0.74), but rounds differently,
 * so that codes would depend on the composition of a batch.  A matrix that is
 * not positive definite is filled again with ten times the damping; the others
 * of the batch keep their factor. */
#include "cuda/internal.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLS_MAX = 65408 }; /* limit of a launch's grid dimension y */

/* An element of H with the prior. */
static __device__ __forceinline__ float with_prior(float x, bool diagonal,
                                                   float prior)
{
    return diagonal && x > 0 && prior > 0 ? x + prior : x;
}

/* Of the kernels below: 32 x 32 elements through shared memory (4 KiB); block
 * 32 x 8, grid (ld / 32, ld / 32). */
enum { TILE = 32, TILE_ROWS = 8 };
struct patch {
    float at[TILE][TILE + 1];
};

/* t->at[c][r] = H[input[r0 + r]][input[c0 + c]], 0 in the padding.  Of the packed
 * triangle a row is that of the larger input; threads go along it, since rows are
 * up to 100 KB apart.  Inputs of a group of columns are close to each other. */
static __device__ void read_patch(struct patch *t, const float *h,
                                  const uint32_t *input, uint64_t cols,
                                  uint64_t r0, uint64_t c0)
{
    bool along_c = r0 < cols && c0 < cols && input[r0] > input[c0];

    for (uint32_t y = threadIdx.y; y < TILE; y += TILE_ROWS) {
        uint32_t r = along_c ? y : threadIdx.x, c = along_c ? threadIdx.x : y;
        float x = 0;

        if (r0 + r < cols && c0 + c < cols) {
            uint64_t i = input[r0 + r], j = input[c0 + c];

            x = i > j ? h[i * (i + 1) / 2 + j] : h[j * (j + 1) / 2 + i];
        }
        t->at[c][r] = x;
    }
    __syncthreads();
}

/* a[c * ld + r] = H[input[r]][input[c]] for r >= c, plus lambda and the prior on
 * the diagonal, plus 1 where the input is dead; an identity beyond cols.  *bad =
 * 1: an element is not finite, or negative on the diagonal. */
static __global__ void factor_fill_kernel(float *a, const float *h,
                                          const uint32_t *input,
                                          const bool *dead, uint64_t cols,
                                          uint64_t ld, double lambda,
                                          float prior, int *bad)
{
    __shared__ struct patch t;
    uint64_t r0 = (uint64_t)blockIdx.x * TILE, c0 = (uint64_t)blockIdx.y * TILE;
    uint64_t r = r0 + threadIdx.x;

    if (r0 >= c0)
        read_patch(&t, h, input, cols, r0, c0);
    for (uint32_t y = threadIdx.y; y < TILE; y += TILE_ROWS) {
        uint64_t c = c0 + y;
        float x = r == c ? 1 : 0;

        if (r >= c && r < cols) {
            x = with_prior(t.at[y][threadIdx.x], r == c, prior);
            if (!isfinite(x) || (r == c && x < 0))
                *bad = 1;
            if (r == c)
                x = (float)((double)x + (dead[r] ? 1 : 0) + lambda);
        }
        a[c * ld + r] = x;
    }
}

/* to[3 (c * ld + r) + part] = H[input[r]][input[c]] as high, low, high, both
 * triangles, undamped, with the prior; 0 in the padding. */
static __global__ void factor_whole_kernel(__nv_bfloat16 *to, const float *h,
                                           const uint32_t *input, uint64_t cols,
                                           uint64_t ld, float prior)
{
    __shared__ struct patch t;
    uint64_t r0 = (uint64_t)blockIdx.x * TILE, c0 = (uint64_t)blockIdx.y * TILE;
    uint64_t r = r0 + threadIdx.x;

    read_patch(&t, h, input, cols, r0, c0);
    for (uint32_t y = threadIdx.y; y < TILE; y += TILE_ROWS) {
        uint64_t c = c0 + y;
        float x = with_prior(t.at[y][threadIdx.x], r == c, prior);
        __nv_bfloat16 *at = to + 3 * (c * ld + r);

        at[0] = at[2] = __float2bfloat16_rn(x);
        at[1] = __float2bfloat16_rn(x - __bfloat162float(at[0]));
    }
}

/* to[c * ld + r] = E[input[r]][input[c]], 0 in the padding; reads follow rows. */
static __global__ void factor_drift_kernel(float *to, const float *from,
                                           const uint32_t *input, uint64_t cols,
                                           uint64_t ld)
{
    __shared__ struct patch t;
    uint64_t r0 = (uint64_t)blockIdx.x * TILE, c0 = (uint64_t)blockIdx.y * TILE;
    uint64_t c = c0 + threadIdx.x;

    for (uint32_t y = threadIdx.y; y < TILE; y += TILE_ROWS)
        t.at[threadIdx.x][y] = r0 + y < cols && c < cols ?
                                   from[input[r0 + y] * cols + input[c]] :
                                   0;
    __syncthreads();
    for (uint32_t y = threadIdx.y; y < TILE; y += TILE_ROWS)
        to[(c0 + y) * ld + r0 + threadIdx.x] = t.at[y][threadIdx.x];
}

/* info[i] = 1 when a diagonal element of matrix i is not finite.  One block of
 * 256 threads a matrix. */
static __global__ void factor_finite_kernel(const float *a, uint64_t cols,
                                            uint64_t ld, int *info)
{
    const float *m = a + blockIdx.x * ld * ld;

    for (uint64_t i = threadIdx.x; i < cols; i += blockDim.x)
        if (!isfinite(m[i * ld + i]))
            info[blockIdx.x] = 1;
}

/* split[3 k + part] = l[k] as bf16: high, low = l - high, high.  One thread per
 * element; floor: 4 bytes read, 6 written. */
static __global__ void factor_split_kernel(__nv_bfloat16 *split, const float *l,
                                           size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t k = (size_t)blockIdx.x * blockDim.x + threadIdx.x; k < n;
         k += step) {
        float x = l[k];
        __nv_bfloat16 high = __float2bfloat16_rn(x);

        split[3 * k] = high;
        split[3 * k + 1] = __float2bfloat16_rn(x - __bfloat162float(high));
        split[3 * k + 2] = high;
    }
}

/* diagonal[i][c0 + r][c] = L[c0 + r][c0 + c] of matrix i, for the block of
 * columns at c0.  A thread reads along columns of L and writes along rows, 128
 * rows by 128 columns through shared memory (4 KiB a tile); block 32 x 8, grid
 * (4, 4 * blocks, matrices). */
static __global__ void factor_diagonal_kernel(float *diagonal, const float *l,
                                              uint64_t padded)
{
    __shared__ float tile[32][33];
    uint64_t c0 = blockIdx.y / 4 * SOLVE_BLOCK, m = blockIdx.z * padded;
    uint32_t r0 = blockIdx.x * 32, k0 = blockIdx.y % 4 * 32;

    for (uint32_t y = threadIdx.y; y < 32; y += blockDim.y)
        tile[y][threadIdx.x] =
            l[(m + c0 + k0 + y) * padded + c0 + r0 + threadIdx.x];
    __syncthreads();
    for (uint32_t y = threadIdx.y; y < 32; y += blockDim.y)
        diagonal[(m + c0 + r0 + y) * SOLVE_BLOCK + k0 + threadIdx.x] =
            tile[threadIdx.x][y];
}

int factor_parts(struct cuda_context *c, __nv_bfloat16 *to, const float *from,
                 size_t n, struct err *e)
{
    factor_split_kernel<<<4096, 256, 0, c->stream>>>(to, from, n);
    LAUNCHED();
    return 0;
}

int factor_split(struct cuda_context *c, const struct cuda_factors *f,
                 struct err *e)
{
    size_t n = (size_t)f->n * f->padded * f->padded;
    dim3 grid(4, (unsigned)(4 * (f->padded / SOLVE_BLOCK)), (unsigned)f->n);
    int rc = factor_parts(c, f->split, f->l, n, e);

    if (rc < 0 || f->whole)
        return rc;
    factor_diagonal_kernel<<<grid, dim3(32, 8), 0, c->stream>>>(
        f->diagonal, f->l, f->padded);
    LAUNCHED();
    return 0;
}

int factor_potrf(struct cuda_context *c, float *a, uint64_t cols, uint64_t ld,
                 int n, int *info, struct err *e)
{
    int room, rc = need_solver(c, e);

    if (rc < 0)
        return rc;
    SOLVER_TRY(c->solver.potrf_room(c->solver.handle, CUBLAS_FILL_MODE_LOWER,
                                    (int)cols, a, (int)ld, &room));
    rc = buffer_need(c, &c->work, (size_t)room * sizeof(float), e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < n; i++)
        SOLVER_TRY(c->solver.potrf(c->solver.handle, CUBLAS_FILL_MODE_LOWER,
                                   (int)cols, a + i * ld * ld, (int)ld,
                                   (float *)c->work.data, room, info + i));
    return 0;
}

static int fill(struct cuda_factors *f, struct cuda_matrix *m, int i,
                struct err *e)
{
    struct cuda_context *c = f->c;
    uint64_t n = f->cols, ld = f->padded;
    double d = m->n_tried ? m->tried[m->n_tried - 1] * 10 : m->damping;
    dim3 grid((unsigned)(ld / TILE), (unsigned)(ld / TILE));
    dim3 block(TILE, TILE_ROWS);
    const float *h;
    int rc;

    d = d > 1 ? 1 : d;
    m->tried[m->n_tried++] = d;
    m->lambda = d * m->mean;
    f->lambda[i] = m->lambda;
    f->prior[i] = m->prior;
    rc = on_device(c, m->h, n * (n + 1) / 2 * sizeof(float), &c->fill, &h, e);
    if (rc < 0)
        return rc;
    factor_fill_kernel<<<grid, block, 0, c->stream>>>(
        f->l + i * ld * ld, h, f->input + i * n, f->dead + i * n, n, ld,
        m->lambda, m->prior, (int *)c->info.data + f->n + i);
    LAUNCHED();
    if (f->whole)
        factor_whole_kernel<<<grid, block, 0, c->stream>>>(
            f->whole + 3 * i * ld * ld, h, f->input + i * n, n, ld, m->prior);
    LAUNCHED();
    return 0;
}

/* Fill and factor matrices first..first+n-1.  info, on the host: [n of all
 * matrices] not positive definite, then [n of all] bad (cuda_matrix.bad). */
static int attempt(struct cuda_factors *f, struct cuda_matrix *m, int first,
                   int n, int *info, struct err *e)
{
    struct cuda_context *c = f->c;
    uint64_t ld = f->padded;
    float *a = f->l + first * ld * ld;
    int *at = (int *)c->info.data + first;
    int rc;

    for (int i = first; i < first + n; i++)
        if ((rc = fill(f, m + i, i, e)) < 0)
            return rc;
    rc = factor_potrf(c, a, f->cols, ld, n, at, e);
    if (rc < 0)
        return rc;
    factor_finite_kernel<<<n, 256, 0, c->stream>>>(a, f->cols, ld, at);
    LAUNCHED();
    CUDA_TRY(cudaMemcpyAsync(info, c->info.data, 2 * f->n * sizeof(int),
                             cudaMemcpyDeviceToHost, c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}

static int attempts(struct cuda_factors *f, struct cuda_matrix *m, int *info,
                    struct err *e)
{
    int rc;

    CUDA_TRY(cudaMemsetAsync(f->c->info.data, 0, 2 * f->n * sizeof(int),
                             f->c->stream));
    rc = attempt(f, m, 0, f->n, info, e);

    for (int i = 0; i < f->n && rc >= 0; i++) {
        struct cuda_matrix *x = m + i;

        x->bad = info[f->n + i] != 0;
        while (info[i] && !x->bad && x->n_tried < FACTOR_TRIES &&
               x->tried[x->n_tried - 1] < 1 &&
               (rc = attempt(f, m, i, 1, info, e)) >= 0)
            ;
        x->failed = f->failed[i] = info[i] != 0 || x->bad;
    }
    if (rc < 0)
        return rc;
    CUDA_TRY(cudaMemcpyAsync(f->lambdas, f->lambda, f->n * sizeof(double),
                             cudaMemcpyHostToDevice, f->c->stream));
    return factor_split(f->c, f, e);
}

static int open_rooms(struct cuda_factors *f, bool whole, struct err *e)
{
    uint64_t bytes[FACTOR_ROOMS];
    int rc;

    factor_rooms((uint64_t)f->n, f->cols, whole, bytes);
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++)
        if (bytes[i] && (rc = buffer_open(f->c, &f->room[i], bytes[i], e)) < 0)
            return rc;
    f->l = (float *)f->room[FACTOR_L].data;
    f->diagonal = (float *)f->room[FACTOR_DIAGONAL].data;
    f->split = (__nv_bfloat16 *)f->room[FACTOR_SPLIT].data;
    f->input = (uint32_t *)f->room[FACTOR_INPUT].data;
    f->dead = (bool *)f->room[FACTOR_DEAD].data;
    f->lambdas = (double *)f->room[FACTOR_LAMBDAS].data;
    f->whole = (__nv_bfloat16 *)f->room[FACTOR_WHOLE].data;
    f->curve = (float *)f->room[FACTOR_CURVE].data;
    return 0;
}

static int open_factors(struct cuda_factors *f, const struct cuda_matrix *m,
                        struct err *e)
{
    uint64_t n = f->cols;
    int rc;

    f->lambda = (double *)mem_zero(f->n, sizeof(double), "factor", e);
    f->prior = (float *)mem_zero(f->n, sizeof(float), "factor", e);
    f->failed = (bool *)mem_zero(f->n, sizeof(bool), "factor", e);
    if (!f->lambda || !f->prior || !f->failed)
        return e->code;
    if ((rc = open_rooms(f, m->whole, e)) < 0)
        return rc;
    for (int i = 0; i < f->n; i++) {
        CUDA_TRY(cudaMemcpyAsync(f->input + i * n, m[i].input,
                                 n * sizeof(*f->input), cudaMemcpyHostToDevice,
                                 f->c->stream));
        CUDA_TRY(cudaMemcpyAsync(f->dead + i * n, m[i].dead, n,
                                 cudaMemcpyHostToDevice, f->c->stream));
    }
    return buffer_need(f->c, &f->c->info, 2 * f->n * sizeof(int), e);
}

int cuda_factors_build(struct cuda_factors **out, struct cuda_context *c,
                       uint64_t cols, struct cuda_matrix *m, int n,
                       struct err *e)
{
    struct cuda_factors *f;
    int *info, rc;

    *out = NULL;
    if (cols == 0 || cols > COLS_MAX || n < 1)
        return err_set(e, E_DATA, "hessian: too many inputs for the GPU");
    f = (struct cuda_factors *)mem_zero(1, sizeof(*f), "factor", e);
    info = (int *)mem_zero(2 * n, sizeof(*info), "factor", e);
    if (!f || !info) {
        free(f);
        free(info);
        return e->code;
    }
    f->c = c;
    f->cols = cols;
    f->padded = round_up(cols, SOLVE_BLOCK);
    f->n = n;
    for (int i = 0; i < n; i++) {
        m[i].n_tried = 0;
        m[i].failed = false;
    }
    rc = open_factors(f, m, e);
    if (!rc)
        rc = attempts(f, m, info, e);
    free(info);
    if (rc < 0) {
        cuda_factors_free(f);
        if (rc == E_TEMP)
            context_trim(c);
        return rc;
    }
    *out = f;
    return 0;
}

int cuda_factors_drift(struct cuda_factors *f, int i, const float *drift,
                       struct err *e)
{
    struct cuda_context *c = f->c;
    uint64_t n = f->cols, ld = f->padded;
    dim3 grid((unsigned)(ld / TILE), (unsigned)(ld / TILE));
    const float *from;
    int rc;

    if (!drift) {
        buffer_close(c, &f->drift);
        return 0;
    }
    if (!f->drift.data &&
        (rc = buffer_open(c, &f->drift, drift_room(f->n, ld), e)) < 0)
        return rc;
    if ((rc = on_device(c, drift, n * n * sizeof(float), &c->fill, &from, e)) <
        0)
        return rc;
    factor_drift_kernel<<<grid, dim3(TILE, TILE_ROWS), 0, c->stream>>>(
        (float *)f->drift.data + i * ld * ld, from, f->input + i * n, n, ld);
    LAUNCHED();
    return 0;
}

int cuda_factors_read(const struct cuda_factors *f, int i, float *l,
                      struct err *e)
{
    uint64_t n = f->cols, ld = f->padded;

    CUDA_TRY(cudaMemcpy2DAsync(l, n * sizeof(float), f->l + i * ld * ld,
                               ld * sizeof(float), n * sizeof(float), n,
                               cudaMemcpyDeviceToHost, f->c->stream));
    CUDA_TRY(cudaStreamSynchronize(f->c->stream));
    for (uint64_t r = 0; r < n; r++)
        for (uint64_t c = 0; c < r; c++) {
            l[r * n + c] = l[c * n + r];
            l[c * n + r] = 0;
        }
    return 0;
}

void cuda_factors_free(struct cuda_factors *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < ARRAY_LEN(f->room); i++)
        buffer_close(f->c, &f->room[i]);
    buffer_close(f->c, &f->drift);
    free(f->lambda);
    free(f->prior);
    free(f->failed);
    free(f);
}
