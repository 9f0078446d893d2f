/* refined_cuda.cu - the refined solver (gptq/solve/solve_refined.h) on the GPU:
 * the host's part.  Uploads and downloads modules, runs the starts (orders), keeps
 * each row's best, and measures the methods that are compared with. */
#include "cuda/refined_internal.cuh"

#include <stdlib.h>
#include <string.h>

/* ---- small kernels ---- */

/* to[c][r] = from[place[input[c]]][r]: the targets in another order of columns;
 * grid (pitch / 64, cols). */
static __global__ void __launch_bounds__(REFINED_TILE)
    refined_reorder_kernel(float *to, const float *from, const uint32_t *place,
                           const uint32_t *input, uint64_t pitch)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + threadIdx.x;

    to[blockIdx.y * pitch + r] = from[place[input[blockIdx.y]] * pitch + r];
}

/* place[input[c]] = c. */
static __global__ void
refined_place_kernel(uint32_t *place, const uint32_t *input, uint64_t cols)
{
    uint64_t c = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (c < cols)
        place[input[c]] = (uint32_t)c;
}

/* d = w - q, q rounded to nearest on the grids that are set; grid (pitch / 64,
 * cols, matrices). */
template <enum dtype S>
static __global__ void __launch_bounds__(REFINED_TILE)
    refined_round_kernel(const struct refined_state s, const uint32_t *input,
                         uint64_t cols, uint32_t group)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + threadIdx.x;
    uint64_t m = blockIdx.z, c = m * s.padded + blockIdx.y;
    uint64_t g = m * s.groups + input[m * cols + blockIdx.y] / group;
    uint32_t meta = s.meta[g * s.pitch + r];
    float scale = refined_scale<S>(s.mantissa, meta), w = s.w[c * s.pitch + r];
    float zero = (float)meta_zero(meta), x = __fdiv_rn(w, scale);

    x = fminf(fmaxf(x, -zero), 15 - zero);
    x = (x + ROUNDER) - ROUNDER;
    s.d[c * s.pitch + r] = w - x * scale;
    refined_split(s.split + 3 * c * s.pitch + r, s.pitch, w - x * scale);
}

/* to[m][c][r] of some rows of each module, those of list[n]; zero in the padding.
 * Grid (to_pitch / 64, columns, matrices). */
struct sample {
    const uint32_t *list;
    uint64_t n, pitch, module_rows, to_pitch, to_module_rows;
};
template <class T>
static __global__ void __launch_bounds__(REFINED_TILE)
    refined_sample_kernel(T *to, const T *from, struct sample s)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + threadIdx.x;
    uint64_t module = r / s.to_module_rows, k = r % s.to_module_rows;
    uint64_t c = (uint64_t)blockIdx.z * gridDim.y + blockIdx.y;

    to[c * s.to_pitch + r] =
        k < s.n ? from[c * s.pitch + module * s.module_rows + s.list[k]] : 0;
}

/* out[r][g] = meta[g][r]; one thread per element. */
static __global__ void refined_metas_kernel(uint32_t *out, const uint32_t *meta,
                                            uint64_t rows, uint64_t groups,
                                            uint64_t pitch)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < rows * groups)
        out[i] = meta[i % groups * pitch + i / groups];
}

/* out[r][input[c]] = w[c][r] through shared memory, 32 x 32 (4 KiB); block 32 x 8,
 * grid (cols / 32, rows / 32). */
static __global__ void refined_give_kernel(float *out, const float *w,
                                           const uint32_t *input, uint64_t rows,
                                           uint64_t cols, uint64_t pitch)
{
    __shared__ float tile[32][33];
    uint64_t c0 = (uint64_t)blockIdx.x * 32, r0 = (uint64_t)blockIdx.y * 32;

    for (uint64_t y = threadIdx.y; y < 32; y += blockDim.y)
        tile[y][threadIdx.x] =
            c0 + y < cols ? w[(c0 + y) * pitch + r0 + threadIdx.x] : 0;
    __syncthreads();
    for (uint64_t y = threadIdx.y; y < 32; y += blockDim.y)
        if (r0 + y < rows && c0 + threadIdx.x < cols)
            out[(r0 + y) * cols + input[c0 + threadIdx.x]] =
                tile[threadIdx.x][y];
}

/* ---- rows in and out ---- */

/* The result of one order (start): [modules, rows] of each. */
struct found {
    uint8_t *codes; /* of later orders; the first's are the modules' */
    uint32_t *meta;
    double *loss;
};

/* Rows of the modules, from `first` on. */
struct job {
    const struct refined_params *p;
    const struct refined_hessian *b;
    struct cuda_refined *m;
    int modules;
    uint64_t first;
    struct found found[REFINED_STARTS];
    double *nearest, *plain; /* [modules, rows]; of compared rows */
};

static struct cuda_factors *factors_of(const struct job *j, int start)
{
    return j->b->factor[start]->gpu;
}

/* Where a module's first row is: in columns of w, groups of meta, losses. */
static uint64_t first_row(const struct refined_state *s, int module,
                          uint64_t each)
{
    return module / s->share * each * s->pitch +
           module % s->share * s->module_rows;
}

static int open_buffers(struct cuda_context *c, const struct job *j,
                        const struct refined_state *s, uint64_t all,
                        struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t n = (uint64_t)s->n, metas = n * s->groups * s->pitch;
    uint64_t outs =
        s->rows * (p->cols / 2 > 4 * s->groups ? p->cols / 2 : 4 * s->groups);
    struct {
        struct device_buffer *b;
        size_t bytes;
    } need[] = {
        { &c->shifted, all * sizeof(float) },
        { &c->pushed, all * sizeof(float) },
        { &c->split, 3 * all * 2 },
        { &c->second, all * sizeof(float) },
        { &c->gradient, n * REFINED_SUPER * s->pitch * sizeof(float) },
        { &c->moved, n * 3 * REFINED_WIDE * s->pitch * 2 + sizeof(int) },
        { &c->codes, all },
        { &c->meta, 2 * metas * sizeof(uint32_t) },
        { &c->loss, n * (s->padded / REFINED_WIDE) * s->pitch * 8 },
        { &c->order, s->padded * 8 },
        { &c->importance, s->rows * sizeof(uint32_t) },
        { &c->steps, j->p->block.factors * sizeof(double) },
        { &c->weight, s->rows * p->cols * sizeof(float) },
        { &c->packed, outs },
    };

    for (size_t i = 0; i < ARRAY_LEN(need); i++) {
        int rc = buffer_need(c, need[i].b, need[i].bytes, e);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static int open_state(struct cuda_context *c, const struct job *j,
                      uint64_t rows, struct refined_state *s, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    const struct cuda_factors *f = factors_of(j, 0);
    uint64_t all;
    int rc;

    *s = {};
    s->n = f->n;
    s->share = j->modules / f->n;
    s->rows = rows;
    s->module_rows = round_up(rows, REFINED_TILE);
    s->pitch = s->share * s->module_rows;
    s->padded = f->padded;
    s->groups = quant_groups(p->cols, p->group);
    if (s->pitch > INT32_MAX / 64 ||
        size_mul(s->n * s->padded, s->pitch, &all) || all > SIZE_MAX / 8)
        return err_set(e, E_DATA, "too many outputs for the GPU");
    if ((rc = open_buffers(c, j, s, all, e)) < 0)
        return rc;
    s->w = (float *)c->shifted.data;
    s->d = (float *)c->pushed.data;
    s->split = (__nv_bfloat16 *)c->split.data;
    s->gradient = (float *)c->gradient.data;
    s->moved = (__nv_bfloat16 *)c->moved.data;
    s->any = (int *)(s->moved + s->n * 3 * REFINED_WIDE * s->pitch);
    s->codes = (uint8_t *)c->codes.data;
    s->meta = (uint32_t *)c->meta.data;
    s->loss = (double *)c->loss.data;
    s->factors = (double *)c->steps.data;
    return context_scales(c, DT_F32, &s->mantissa, e);
}

static int load_factors(struct cuda_context *c, const struct job *j,
                        const struct refined_state *s, struct err *e)
{
    const struct block_params *p = &j->p->block;
    double *factors =
        (double *)mem_alloc(p->factors * sizeof(*factors), "solve", e);
    int rc;

    if (!factors)
        return e->code;
    for (int i = 0; i < p->factors; i++)
        factors[i] = block_factor(p, i);
    rc = upload(c, s->factors, factors, p->factors * sizeof(*factors), e);
    free(factors); /* so little was read before the call returned */
    return rc;
}

static int find_bad(struct cuda_context *c, const struct job *j, struct err *e)
{
    uint64_t cols = j->p->solve.cols;
    unsigned long long bad;

    CUDA_TRY(cudaMemcpyAsync(&bad, c->bad, sizeof(bad), cudaMemcpyDeviceToHost,
                             c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    if (bad == ~0ull)
        return 0;
    return err_set(e, E_DATA, "row %llu: input %llu is not finite",
                   (unsigned long long)(j->first + bad / cols),
                   (unsigned long long)(bad % cols));
}

static int load_weights(struct cuda_context *c, const struct job *j,
                        const struct refined_state *s, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t stride = p->cols * dtype_bits(p->dtype) / 8;
    int rc;

    CUDA_TRY(cudaMemsetAsync(c->bad, 0xff, sizeof(*c->bad), c->stream));
    for (int i = 0; i < j->modules; i++)
        if ((rc = upload(c, c->weight.data,
                         (const char *)j->m[i].w + j->first * stride,
                         s->rows * stride, e)) < 0 ||
            (rc = solve_transpose_weights(
                 c, factors_of(j, 0), i / s->share, p->dtype,
                 { s->rows, s->pitch, s->w + first_row(s, i, s->padded),
                   c->bad },
                 e)) < 0)
            return rc;
    return find_bad(c, j, e);
}

static int move_target(struct cuda_context *c, const struct job *j,
                       const struct refined_state *s, struct err *e)
{
    const float **output;
    int rc;

    if (!j->m[0].output)
        return refined_move_target(c, j->p, factors_of(j, 0), s, NULL, e);
    output = (const float **)mem_zero(j->modules, sizeof(*output), "solve", e);
    if (!output)
        return e->code;
    for (int i = 0; i < j->modules; i++)
        output[i] = j->m[i].output + j->first * j->p->solve.cols;
    rc = refined_move_target(c, j->p, factors_of(j, 0), s, output, e);
    free(output);
    return rc;
}

/* target = the moved targets, on the host, inputs as stored. */
static int give_targets(struct cuda_context *c, const struct job *j,
                        const struct refined_state *s, struct err *e)
{
    const struct cuda_factors *f = factors_of(j, 0);
    uint64_t cols = f->cols;
    dim3 grid((unsigned)((cols + 31) / 32), (unsigned)(s->module_rows / 32));
    int rc;

    for (int i = 0; i < j->modules; i++) {
        if (!j->m[i].target)
            continue;
        refined_give_kernel<<<grid, dim3(32, 8), 0, c->stream>>>(
            (float *)c->weight.data, s->w + first_row(s, i, s->padded),
            f->input + i / s->share * cols, s->rows, cols, s->pitch);
        LAUNCHED();
        if ((rc = download(c, j->m[i].target + j->first * cols, c->weight.data,
                           s->rows * cols * sizeof(float), e)) < 0)
            return rc;
    }
    return 0;
}

/* Before a pass: d of the padding is zero. */
static int restart(struct cuda_context *c, const struct cuda_factors *f,
                   const struct refined_state *s, struct err *e)
{
    uint64_t rest = (f->padded - f->cols) * s->pitch;
    size_t all = s->padded * s->pitch, n = (size_t)s->n;

    if (!rest)
        return 0;
    CUDA_TRY(cudaMemset2DAsync(s->d + f->cols * s->pitch, all * sizeof(*s->d),
                               0, rest * sizeof(*s->d), n, c->stream));
    CUDA_TRY(cudaMemset2DAsync(s->split + 3 * f->cols * s->pitch,
                               3 * all * sizeof(*s->split), 0,
                               3 * rest * sizeof(*s->split), n, c->stream));
    return 0;
}

/* ---- what others lose ---- */

/* Rows that others are measured on, of those at work; returns how many. */
static uint64_t compared(const struct job *j, const struct refined_state *s,
                         uint32_t *list)
{
    uint64_t step = solve_compare_step(j->p->solve.rows), n = 0;

    for (uint64_t r = 0; r < s->rows; r++)
        if ((j->first + r) / SOLVE_ROWS % step == 0)
            list[n++] = (uint32_t)r;
    return n;
}

/* A state of these rows alone, in the room of s, whose grids are loaded. */
static int open_compared(struct cuda_context *c, const struct job *j,
                         const struct refined_state *s, const uint32_t *list,
                         uint64_t n, struct refined_state *y, struct err *e)
{
    int rc = upload(c, c->importance.data, list, n * sizeof(*list), e);
    struct sample x;
    unsigned tiles;

    *y = *s;
    y->rows = n;
    y->module_rows = round_up(n, REFINED_TILE);
    y->pitch = s->share * y->module_rows;
    y->w = (float *)c->second.data;
    y->meta = s->meta + s->n * s->groups * s->pitch;
    x = { (const uint32_t *)c->importance.data,
          n,
          s->pitch,
          s->module_rows,
          y->pitch,
          y->module_rows };
    if (rc < 0)
        return rc;
    tiles = (unsigned)(y->pitch / REFINED_TILE);
    refined_sample_kernel<<<dim3(tiles, (unsigned)s->padded, (unsigned)s->n),
                            REFINED_TILE, 0, c->stream>>>(
        y->w, (const float *)s->w, x);
    LAUNCHED();
    refined_sample_kernel<<<dim3(tiles, (unsigned)s->groups, (unsigned)s->n),
                            REFINED_TILE, 0, c->stream>>>(
        y->meta, (const uint32_t *)s->meta, x);
    LAUNCHED();
    return restart(c, factors_of(j, 0), y, e);
}

static int load_grids(struct cuda_context *c, const struct job *j,
                      const struct refined_state *s, struct err *e)
{
    int rc;

    for (int i = 0; i < j->modules; i++)
        if ((rc = upload(c, c->packed.data, j->m[i].meta + j->first * s->groups,
                         s->rows * s->groups * sizeof(*s->meta), e)) < 0 ||
            (rc = solve_transpose_grids(c, s->rows, s->groups, s->pitch,
                                        s->meta + first_row(s, i, s->groups),
                                        e)) < 0)
            return rc;
    return 0;
}

/* The losses of rows that are compared, to[modules, rows]. */
static int measure(struct cuda_context *c, const struct job *j,
                   const struct refined_state *y, const uint32_t *list,
                   double *to, struct err *e)
{
    size_t n = (size_t)y->n * y->pitch;
    double *loss = (double *)mem_alloc(n * sizeof(*loss), "solve", e);
    int rc = loss ? refined_measure(c, factors_of(j, 0), y, loss, e) : e->code;

    for (int i = 0; i < j->modules && rc >= 0; i++)
        for (uint64_t k = 0; k < y->rows; k++)
            to[i * j->p->solve.rows + j->first + list[k]] =
                loss[first_row(y, i, 1) + k];
    free(loss);
    return rc;
}

static int measure_compared(struct cuda_context *c, const struct job *j,
                            const struct refined_state *s, const uint32_t *list,
                            uint64_t n, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    const struct cuda_factors *f = factors_of(j, 0);
    struct refined_state y;
    struct refined_pass pass = { j->p, f, &j->b->plan[0], &y, REFINED_PLAIN };
    dim3 grid;
    int rc;

    if ((rc = load_grids(c, j, s, e)) < 0 ||
        (rc = open_compared(c, j, s, list, n, &y, e)) < 0)
        return rc;
    grid = dim3((unsigned)(y.pitch / REFINED_TILE), (unsigned)p->cols,
                (unsigned)y.n);
    if (p->scale_dtype == DT_F16)
        refined_round_kernel<DT_F16><<<grid, REFINED_TILE, 0, c->stream>>>(
            y, f->input, p->cols, (uint32_t)p->group);
    else
        refined_round_kernel<DT_BF16><<<grid, REFINED_TILE, 0, c->stream>>>(
            y, f->input, p->cols, (uint32_t)p->group);
    LAUNCHED();
    if ((rc = measure(c, j, &y, list, j->nearest, e)) < 0 ||
        (rc = refined_walk(c, &pass, e)) < 0)
        return rc;
    return measure(c, j, &y, list, j->plain, e);
}

/* Losses of round to nearest and of plain GPTQ on the grids that came with the
 * weights, for a sample of rows (gptq/solve/solve.h, solve_compare_step()). */
static int measure_others(struct cuda_context *c, const struct job *j,
                          const struct refined_state *s, struct err *e)
{
    uint32_t *list = (uint32_t *)mem_alloc(s->rows * sizeof(*list), "solve", e);
    uint64_t n = list ? compared(j, s, list) : 0;
    int rc = !list ? e->code : n ? measure_compared(c, j, s, list, n, e) : 0;

    free(list);
    return rc;
}

/* ---- orders ---- */

/* to->w = the first order's targets in the order of f. */
static int reorder(struct cuda_context *c, const struct cuda_factors *from,
                   const struct cuda_factors *f, const struct refined_state *s,
                   struct refined_state *to, struct err *e)
{
    uint32_t *place = (uint32_t *)c->order.data;
    uint64_t all = s->padded * s->pitch;

    *to = *s;
    to->w = (float *)c->second.data;
    CUDA_TRY(cudaMemsetAsync(to->w, 0, s->n * all * sizeof(*to->w), c->stream));
    for (int i = 0; i < s->n; i++) {
        refined_place_kernel<<<(unsigned)((f->cols + 255) / 256), 256, 0,
                               c->stream>>>(place, from->input + i * f->cols,
                                            f->cols);
        LAUNCHED();
        refined_reorder_kernel<<<dim3((unsigned)(s->pitch / REFINED_TILE),
                                      (unsigned)f->cols),
                                 REFINED_TILE, 0, c->stream>>>(
            to->w + i * all, s->w + i * all, place, f->input + i * f->cols,
            s->pitch);
        LAUNCHED();
    }
    return 0;
}

static int store_module(struct cuda_context *c, const struct job *j, int start,
                        const struct refined_state *s, int i, struct err *e)
{
    const struct cuda_factors *f = factors_of(j, start);
    const struct found *to = &j->found[start];
    uint64_t width = f->cols / 2, metas = s->rows * s->groups;
    uint64_t rows = j->p->solve.rows, at = i * rows + j->first;
    uint8_t *codes =
        start ? to->codes + at * width : j->m[i].codes + j->first * width;
    int rc;

    if ((rc = solve_transpose_codes(c, f, i / s->share, s->rows, s->pitch,
                                    s->codes + first_row(s, i, s->padded), e)) <
            0 ||
        (rc = download(c, codes, c->packed.data, s->rows * width, e)) < 0)
        return rc;
    refined_metas_kernel<<<(unsigned)((metas + 255) / 256), 256, 0,
                           c->stream>>>((uint32_t *)c->packed.data,
                                        s->meta + first_row(s, i, s->groups),
                                        s->rows, s->groups, s->pitch);
    LAUNCHED();
    return download(c, to->meta + at * s->groups, c->packed.data,
                    metas * sizeof(*to->meta), e);
}

static int store(struct cuda_context *c, const struct job *j, int start,
                 const struct refined_state *s, struct err *e)
{
    size_t n = (size_t)s->n * s->pitch;
    double *loss = (double *)mem_alloc(n * sizeof(*loss), "solve", e);
    int rc =
        loss ? refined_measure(c, factors_of(j, start), s, loss, e) : e->code;

    for (int i = 0; i < j->modules && rc >= 0; i++) {
        memcpy(j->found[start].loss + i * j->p->solve.rows + j->first,
               loss + first_row(s, i, 1), s->rows * sizeof(*loss));
        rc = store_module(c, j, start, s, i, e);
    }
    free(loss);
    return rc;
}

static int solve_order(struct cuda_context *c, const struct job *j, int start,
                       const struct refined_state *s, struct err *e)
{
    struct cuda_factors *f = factors_of(j, start);
    struct refined_state other;
    struct refined_pass pass = { j->p, f, &j->b->plan[start], s,
                                 REFINED_CHOOSE };
    int rc;

    if ((rc = refined_squares(c, f, pass.plan, e)) < 0)
        return rc;
    if (start > 0) {
        if ((rc = reorder(c, factors_of(j, 0), f, s, &other, e)) < 0)
            return rc;
        pass.s = &other;
    }
    if ((rc = restart(c, f, pass.s, e)) < 0 ||
        (rc = refined_walk(c, &pass, e)) < 0)
        return rc;
    pass.what = REFINED_DESCENT;
    if ((rc = refined_sweep(c, &pass, e)) < 0)
        return rc;
    return store(c, j, start, pass.s, e);
}

static int solve_rows(struct cuda_context *c, const struct job *j,
                      uint64_t rows, struct err *e)
{
    struct refined_state s;
    int rc;

    if ((rc = open_state(c, j, rows, &s, e)) < 0 ||
        (rc = load_factors(c, j, &s, e)) < 0 ||
        (rc = refined_squares(c, factors_of(j, 0), &j->b->plan[0], e)) < 0 ||
        (rc = load_weights(c, j, &s, e)) < 0 ||
        (rc = move_target(c, j, &s, e)) < 0 ||
        (rc = give_targets(c, j, &s, e)) < 0 ||
        (rc = measure_others(c, j, &s, e)) < 0)
        return rc;
    for (int i = 0; i < j->b->starts; i++)
        if ((rc = solve_order(c, j, i, &s, e)) < 0)
            return rc;
    return 0;
}

/* ---- solve_refined() ---- */

static int check_factors(const struct refined_hessian *b, int n, struct err *e)
{
    const struct cuda_factors *first = b->factor[0]->gpu;

    for (int i = 0; i < b->starts; i++) {
        const struct cuda_factors *f = b->factor[i]->gpu;

        if (!f || !f->whole || f->n != first->n || n < f->n || n % f->n)
            return err_set(e, E_DATA, "the factors are not for this");
        for (int k = 0; k < f->n; k++)
            if (f->failed[k])
                return err_set(e, E_DATA, "matrix %d has no factor", k);
    }
    return 0;
}

static int check(const struct refined_params *p,
                 const struct refined_hessian *b, const struct cuda_refined *m,
                 int n, struct err *e)
{
    const struct solve_params *s = &p->solve;

    if (s->cols % 8 || !s->rows || s->rows > INT32_MAX / 64)
        return err_set(e, E_CONFIG, "the GPU solves inputs in multiples of 8");
    if (b->plan[0].widest > REFINED_WIDE)
        return err_set(e, E_CONFIG, "the GPU refines groups of %d inputs",
                       REFINED_WIDE);
    if (s->dtype != DT_BF16 && s->dtype != DT_F16 && s->dtype != DT_F32)
        return err_set(e, E_CONFIG, "the GPU takes no %s weights",
                       dtype_name(s->dtype));
    if (s->scale_dtype != DT_F16 && s->scale_dtype != DT_BF16)
        return err_set(e, E_CONFIG, "the GPU takes no %s scales",
                       dtype_name(s->scale_dtype));
    for (int i = 0; i < n; i++)
        if (!m[i].output != !m[0].output)
            return err_set(e, E_DATA, "some modules have outputs");
    return check_factors(b, n, e);
}

/* divide() needs scales between 2^-90 and 2^90.  E_CONFIG. */
static int check_scales(const uint32_t *meta, uint64_t n, struct err *e)
{
    for (uint64_t i = 0; i < n; i++) {
        int q = (int16_t)(meta[i] & 0xffff);

        if (q < -89 * 256 || q > 88 * 256)
            return err_set(e, E_CONFIG, "the GPU takes no scale of 2^%d",
                           q >> 8);
    }
    return 0;
}

/* Copy to the first order's results the rows where another order has the smaller
 * loss. */
static void keep_best(const struct job *j)
{
    const struct solve_params *p = &j->p->solve;
    const struct found *to = &j->found[0];
    uint64_t width = p->cols / 2, groups = quant_groups(p->cols, p->group);

    for (int i = 1; i < j->b->starts; i++)
        for (uint64_t k = 0; k < j->modules * p->rows; k++) {
            const struct found *f = &j->found[i];

            if (!(f->loss[k] < to->loss[k]))
                continue;
            to->loss[k] = f->loss[k];
            memcpy(j->m[k / p->rows].codes + k % p->rows * width,
                   f->codes + k * width, width);
            memcpy(to->meta + k * groups, f->meta + k * groups,
                   groups * sizeof(*f->meta));
        }
}

/* Allocate the results: losses and grids of all orders, codes of all but the
 * first, which go to the caller's memory. */
static char *open_found(struct job *j, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t groups = quant_groups(p->cols, p->group), each, all;
    uint64_t rows = j->modules * p->rows;
    char *at;

    each = rows * (sizeof(double) + groups * sizeof(uint32_t) + p->cols / 2);
    each = round_up(each, 64);
    all = j->b->starts * each + 2 * rows * sizeof(double);
    at = (char *)mem_pages(all, "solve", e);
    if (!at)
        return NULL;
    for (int i = 0; i < j->b->starts; i++) {
        char *to = at + i * each;

        j->found[i].loss = (double *)to;
        j->found[i].meta = (uint32_t *)(j->found[i].loss + rows);
        j->found[i].codes = (uint8_t *)(j->found[i].meta + rows * groups);
    }
    j->nearest = (double *)(at + j->b->starts * each);
    j->plain = j->nearest + rows;
    return at;
}

/* Grids and losses of all modules. */
static int give(const struct job *j, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t metas = p->rows * quant_groups(p->cols, p->group);
    int rc;

    keep_best(j);
    for (int i = 0; i < j->modules; i++) {
        const uint32_t *meta = j->found[0].meta + i * metas;
        const double *loss = j->found[0].loss + i * p->rows;
        struct refined_result *r = &j->m[i].result;

        if ((rc = check_scales(meta, metas, e)) < 0)
            return rc;
        for (uint64_t k = 0; k < p->rows; k++)
            r->solve.loss += loss[k];
        r->solve.loss_nearest =
            solve_compare_sum(loss, j->nearest + i * p->rows, p->rows);
        r->loss_plain =
            solve_compare_sum(loss, j->plain + i * p->rows, p->rows);
    }
    for (int i = 0; i < j->modules; i++)
        memcpy(j->m[i].meta, j->found[0].meta + i * metas,
               metas * sizeof(*j->m[i].meta));
    return 0;
}

/* All rows at once, or of one module fewer at a time where memory ends. */
static int solve_all(struct cuda_context *c, struct job *j, struct err *e)
{
    uint64_t rows = j->p->solve.rows, tile = REFINED_TILE;
    uint64_t tiles = (rows + tile - 1) / tile;

    if (j->modules > 1)
        return solve_rows(c, j, rows, e);
    return in_batches(c, tiles, tiles, [&](uint64_t at, uint64_t n) {
        uint64_t left = rows - at * tile;

        j->first = at * tile;
        return solve_rows(c, j, left < n * tile ? left : n * tile, e);
    });
}

int cuda_solve_refined(struct cuda_context *c, const struct refined_params *p,
                       const struct refined_hessian *b, struct cuda_refined *m,
                       int n, struct err *e)
{
    struct job j = { p, b, m, n };
    uint64_t metas =
        p->solve.rows * quant_groups(p->solve.cols, p->solve.group);
    char *memory;
    int rc = check(p, b, m, n, e);

    for (int i = 0; i < n; i++)
        m[i].result = {};
    for (int i = 0; i < n && rc >= 0; i++)
        rc = check_scales(m[i].meta, metas, e);
    if (rc < 0 || (rc = need_blas(c, e)) < 0)
        return rc;
    if (!(memory = open_found(&j, e)))
        return e->code;
    rc = solve_all(c, &j, e);
    if (rc >= 0)
        rc = give(&j, e);
    free(memory);
    if (rc == E_TEMP)
        context_trim(c);
    return rc;
}
