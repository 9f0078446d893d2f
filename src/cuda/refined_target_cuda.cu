/* refined_target_cuda.cu - the targets that gptq/target.h describes:
 * W* = W + M (H + lambda I)⁻¹.
 *
 * X Lᵀ = M upwards, Y L = X downwards, 512 columns at a time: what the others
 * give them is one product in three parts of bf16, then they are multiplied by
 * the inverse of L's diagonal block in f32.  (cuBLAS's triangular solve in f32
 * takes three times as long.) */
#include "cuda/refined_internal.cuh"

enum { DIVIDE = REFINED_DIVIDE };

/* A matrix of the batch, and what its targets are moved by. */
struct way {
    const struct cuda_factors *f;
    uint64_t pitch, rows, padded; /* rows: of a module */
    float *w, *d, *scratch;
    double *far;           /* [pitch]: 1 where a row stays */
    __nv_bfloat16 *split;  /* of w, then of d */
    __nv_bfloat16 *square; /* [padded, padded, 3]: E, then L turned */
    const float *l, *inverse;
    const __nv_bfloat16 *factor, *whole;
    const bool *dead;
    float prior; /* H has it on its diagonal, G does not */
};

/* w += part d, except at dead inputs; block 16 x 16, grid (pitch / 64, cols /
 * 16). */
enum { SHIFT_COLUMNS = 16 };
static __global__ void __launch_bounds__(SHIFT_COLUMNS *REFINED_TILE / 4)
    refined_shift_kernel(float *w, const float *d, float part, const bool *dead,
                         uint64_t cols, uint64_t pitch)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + 4 * threadIdx.x;
    uint64_t c = (uint64_t)blockIdx.y * SHIFT_COLUMNS + threadIdx.y;
    uint64_t at = c * pitch + r;
    float4 x, y;

    if (c >= cols || dead[c])
        return;
    x = *(const float4 *)(w + at);
    y = *(const float4 *)(d + at);
    x.x += part * y.x;
    x.y += part * y.y;
    x.z += part * y.z;
    x.w += part * y.w;
    *(float4 *)(w + at) = x;
}

/* d = 0 in rows that part d would move too far from w, where far = 1; block 32 x
 * 32, grid pitch / 32. */
enum { NEAR_ROWS = 32, NEAR_COLUMNS = 32 };
static __global__ void __launch_bounds__(NEAR_ROWS *NEAR_COLUMNS)
    refined_near_kernel(const float *w, float *d, double *far, float part,
                        const bool *dead, uint64_t cols, uint64_t pitch)
{
    __shared__ float moved[NEAR_COLUMNS][NEAR_ROWS],
        norm[NEAR_COLUMNS][NEAR_ROWS];
    uint64_t r = (uint64_t)blockIdx.x * NEAR_ROWS + threadIdx.x;
    float m = 0, n = 0;

    for (uint64_t c = threadIdx.y; c < cols; c += NEAR_COLUMNS)
        if (!dead[c]) {
            float by = part * d[c * pitch + r], at = w[c * pitch + r];

            m += by * by;
            n += at * at;
        }
    moved[threadIdx.y][threadIdx.x] = m;
    norm[threadIdx.y][threadIdx.x] = n;
    __syncthreads();
    m = n = 0;
    for (int i = 0; i < NEAR_COLUMNS; i++) {
        m += moved[i][threadIdx.x];
        n += norm[i][threadIdx.x];
    }
    if (!threadIdx.y)
        far[r] = TARGET_TOO_FAR(m, n);
    for (uint64_t c = threadIdx.y; c < cols && TARGET_TOO_FAR(m, n);
         c += NEAR_COLUMNS)
        d[c * pitch + r] = 0;
}

/* Columns c0..c0+n-1 and rows r0..r0+k-1 of a square. */
struct square_part {
    const __nv_bfloat16 *square;
    uint64_t c0, n, r0, k;
};

/* d's columns c0.. = alpha times columns r0.. of split times the part, + beta. */
static int product(struct cuda_context *c, const struct way *y,
                   struct square_part s, float alpha, float beta, struct err *e)
{
    const struct refined_product p = {
        s.n,       s.k,
        alpha,     y->split + 3 * s.r0 * y->pitch,
        0,         s.square + 3 * (s.c0 * y->padded + s.r0),
        y->padded, 0,
        beta,      y->d + s.c0 * y->pitch,
        0,         1
    };

    return s.k ? refined_product(c, y->pitch, y->rows, &p, e) : 0;
}

/* Columns c0..c0 + n of d times the inverse of their block, turned or not; also
 * to split. */
static int divide_block(struct cuda_context *c, const struct way *y,
                        uint64_t c0, uint64_t n, bool turned, struct err *e)
{
    const float one = 1, zero = 0;
    float *d = y->d + c0 * y->pitch;

    for (uint64_t at = 0; at < y->pitch; at += y->rows) /* refined_product() */
        BLAS_TRY(c->blas.gemm(
            c->blas.handle, CUBLAS_OP_N, turned ? CUBLAS_OP_T : CUBLAS_OP_N,
            (int)y->rows, (int)n, (int)n, &one, d + at, CUDA_R_32F,
            (int)y->pitch, y->inverse + c0 * DIVIDE, CUDA_R_32F, DIVIDE, &zero,
            y->scratch + at, CUDA_R_32F, (int)y->pitch, CUBLAS_COMPUTE_32F,
            CUBLAS_GEMM_DEFAULT));
    CUDA_TRY(cudaMemcpyAsync(d, y->scratch, n * y->pitch * sizeof(*d),
                             cudaMemcpyDeviceToDevice, c->stream));
    return refined_split_columns(c, y->split + 3 * c0 * y->pitch, d, n,
                                 y->pitch, 0, 1, e);
}

/* d = d (H + lambda I)⁻¹. */
static int divide(struct cuda_context *c, const struct way *y, struct err *e)
{
    uint64_t padded = y->padded, n, c0;
    int rc = refined_turn(c, y->square, y->l, padded, e);

    for (c0 = 0; c0 < padded && rc >= 0; c0 += n) {
        n = padded - c0 < DIVIDE ? padded - c0 : DIVIDE;
        rc = product(c, y, { y->square, c0, n, 0, c0 }, -1, 1, e);
        if (rc >= 0)
            rc = divide_block(c, y, c0, n, true, e);
    }
    for (uint64_t end = padded; end > 0 && rc >= 0; end = c0) {
        c0 = (end - 1) / DIVIDE * DIVIDE;
        rc = product(c, y, { y->factor, c0, end - c0, end, padded - end }, -1,
                     1, e);
        if (rc >= 0)
            rc = divide_block(c, y, c0, end - c0, false, e);
    }
    return rc;
}

static int split_all(struct cuda_context *c, const struct way *y,
                     const float *from, struct err *e)
{
    return refined_split_columns(c, y->split, from, y->padded, y->pitch, 0, 1,
                                 e);
}

/* d = W E. */
static int follow_drift(struct cuda_context *c, const struct way *y,
                        const float *drift, struct err *e)
{
    int rc = factor_parts(c, y->square, drift, y->padded * y->padded, e);

    if (rc < 0 || (rc = split_all(c, y, y->w, e)) < 0)
        return rc;
    return product(c, y, { y->square, 0, y->padded, 0, y->padded }, 1, 0, e);
}

/* d = G or F of all modules; c->weight has room for one. */
static int load_outputs(struct cuda_context *c, const struct cuda_factors *f,
                        const struct refined_state *s,
                        const float *const *output, struct err *e)
{
    for (int i = 0; i < s->n * s->share; i++) {
        uint64_t at =
            i / s->share * s->padded * s->pitch + i % s->share * s->module_rows;
        size_t bytes = s->rows * f->cols * sizeof(float);
        const float *from;
        int rc = on_device(c, output[i], bytes, &c->weight, &from, e);

        if (rc < 0)
            return rc;
        if (from != c->weight.data)
            CUDA_TRY(cudaMemcpyAsync(c->weight.data, from, bytes,
                                     cudaMemcpyDeviceToDevice, c->stream));
        if ((rc = solve_transpose_weights(
                 c, f, i / s->share, DT_F32,
                 { s->rows, s->pitch, s->d + at, c->bad }, e)) < 0)
            return rc;
    }
    return 0;
}

/* to += part from, as refined_shift_kernel() does. */
static int shift(struct cuda_context *c, const struct way *y, float *to,
                 const float *from, float part, struct err *e)
{
    dim3 grid((unsigned)(y->pitch / REFINED_TILE),
              (unsigned)((y->f->cols + SHIFT_COLUMNS - 1) / SHIFT_COLUMNS));

    refined_shift_kernel<<<grid, dim3(REFINED_TILE / 4, SHIFT_COLUMNS), 0,
                           c->stream>>>(to, from, part, y->dead, y->f->cols,
                                        y->pitch);
    LAUNCHED();
    return 0;
}

/* d += prior W - W H: H has the prior, which G lacks. */
static int take_off(struct cuda_context *c, const struct way *y, struct err *e)
{
    int rc = y->prior > 0 ? shift(c, y, y->d, y->w, y->prior, e) : 0;

    if (rc < 0 || (rc = split_all(c, y, y->w, e)) < 0)
        return rc;
    return product(c, y, { y->whole, 0, y->padded, 0, y->padded }, -1, 1, e);
}

static int move_matrix(struct cuda_context *c, const struct way *y,
                       const float *drift, bool gap, float part, struct err *e)
{
    int rc = drift ? follow_drift(c, y, drift, e) : gap ? 0 : take_off(c, y, e);

    if (rc < 0 || (rc = divide(c, y, e)) < 0)
        return rc;
    refined_near_kernel<<<(unsigned)(y->pitch / NEAR_ROWS),
                          dim3(NEAR_ROWS, NEAR_COLUMNS), 0, c->stream>>>(
        y->w, y->d, y->far, part, y->dead, y->f->cols, y->pitch);
    LAUNCHED();
    return shift(c, y, y->w, y->d, part, e);
}

/* Matrix i of the batch. */
static struct way way_of(const struct cuda_context *c,
                         const struct cuda_factors *f,
                         const struct refined_state *s, uint64_t i)
{
    uint64_t columns = i * s->padded * s->pitch,
             square = i * s->padded * s->padded;
    struct way y = {};

    y.f = f;
    y.pitch = s->pitch;
    y.rows = s->module_rows;
    y.padded = s->padded;
    y.w = s->w + columns;
    y.d = s->d + columns;
    y.scratch = s->gradient;
    y.far = s->loss + i * s->pitch;
    y.split = s->split + 3 * columns;
    y.square = (__nv_bfloat16 *)c->square.data;
    y.l = f->l + square;
    y.factor = f->split + 3 * square;
    y.whole = f->whole + 3 * square;
    y.dead = f->dead + i * f->cols;
    y.prior = f->prior[i];
    return y;
}

int refined_move_target(struct cuda_context *c, const struct refined_params *p,
                        const struct cuda_factors *f,
                        const struct refined_state *s,
                        const float *const *output, struct err *e)
{
    const float *drift = output ? NULL : (const float *)f->drift.data;
    uint64_t square = s->padded * s->padded;
    int rc;

    if (!drift && !output)
        return 0;
    if ((rc = buffer_need(c, &c->square, target_room(s->padded), e)) < 0 ||
        (rc = output ? load_outputs(c, f, s, output, e) : 0) < 0)
        return rc;
    for (int i = 0; i < s->n; i++) {
        struct way y = way_of(c, f, s, (uint64_t)i);

        if ((rc = refined_inverses(c, y.l, s->padded, &y.inverse, e)) < 0 ||
            (rc = move_matrix(c, &y, drift ? drift + i * square : NULL, p->gap,
                              (float)(output ? p->beta : p->alpha), e)) < 0)
            return rc;
    }
    return 0;
}
