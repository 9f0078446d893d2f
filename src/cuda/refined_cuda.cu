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

static int open_buffers(struct cuda_context *c, const struct refined_job *j,
                        const struct solve_size *size, struct err *e)
{
    struct device_buffer *const to[REFINED_ROOMS] = {
        &c->shifted,    &c->pushed, &c->split,  &c->second, &c->gradient,
        &c->moved,      &c->codes,  &c->meta,   &c->loss,   &c->order,
        &c->importance, &c->steps,  &c->weight, &c->packed
    };
    uint64_t bytes[REFINED_ROOMS];

    refined_rooms(size, j->p->block.factors, bytes);
    for (int i = 0; i < REFINED_ROOMS; i++) {
        int rc = buffer_need(c, to[i], bytes[i], e);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static int open_state(struct cuda_context *c, const struct refined_job *j,
                      uint64_t rows, struct refined_state *s, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    const struct cuda_factors *f = refined_factors(j, 0);
    const struct solve_size size =
        solve_size(f->n, j->modules / f->n, rows, p->cols, p->group);
    uint64_t all;
    int rc;

    *s = {};
    s->n = f->n;
    s->share = (int)size.share;
    s->rows = rows;
    s->module_rows = size.pitch / size.share;
    s->pitch = size.pitch;
    s->padded = f->padded;
    s->groups = size.groups;
    if (s->pitch > INT32_MAX / 64 ||
        size_mul(s->n * s->padded, s->pitch, &all) || all > SIZE_MAX / 8)
        return err_set(e, E_DATA, "too many outputs for the GPU");
    if ((rc = open_buffers(c, j, &size, e)) < 0)
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

static int load_factors(struct cuda_context *c, const struct refined_job *j,
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

static int find_bad(struct cuda_context *c, const struct refined_job *j,
                    struct err *e)
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

static int load_weights(struct cuda_context *c, const struct refined_job *j,
                        const struct refined_state *s, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    int rc;

    CUDA_TRY(cudaMemsetAsync(c->bad, 0xff, sizeof(*c->bad), c->stream));
    for (int i = 0; i < j->modules; i++) {
        const struct weight_rows rows = { j->m[i].w, j->m[i].fp8, p->dtype,
                                          p->cols,   j->first,    s->rows };

        if ((rc = bring_weight(c, &rows, e)) < 0 ||
            (rc = solve_transpose_weights(
                 c, refined_factors(j, 0), i / s->share, p->dtype,
                 { s->rows, s->pitch, s->w + refined_first(s, i, s->padded),
                   c->bad },
                 e)) < 0)
            return rc;
    }
    return find_bad(c, j, e);
}

/* j->kept of the rows in s, whose targets have been moved. */
static int take_kept(struct cuda_context *c, const struct refined_job *j,
                     const struct refined_state *s, struct err *e)
{
    uint64_t rows = j->p->solve.rows;

    for (int i = 0; i < j->modules; i++)
        CUDA_TRY(cudaMemcpyAsync(
            j->kept + i * rows + j->first, s->loss + refined_first(s, i, 1),
            s->rows * sizeof(*j->kept), cudaMemcpyDeviceToHost, c->stream));
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}

static int move_target(struct cuda_context *c, const struct refined_job *j,
                       const struct refined_state *s, struct err *e)
{
    const float **output = NULL;
    int rc;

    if (!j->m[0].output && !refined_factors(j, 0)->drift.data)
        return 0;
    if (j->m[0].output) {
        output =
            (const float **)mem_zero(j->modules, sizeof(*output), "solve", e);
        if (!output)
            return e->code;
        for (int i = 0; i < j->modules; i++)
            output[i] = j->m[i].output + j->first * j->p->solve.cols;
    }
    rc = refined_move_target(c, j->p, refined_factors(j, 0), s, output, e);
    free(output);
    return rc < 0 ? rc : take_kept(c, j, s, e);
}

/* target = the moved targets, on the host, inputs as stored. */
static int give_targets(struct cuda_context *c, const struct refined_job *j,
                        const struct refined_state *s, struct err *e)
{
    const struct cuda_factors *f = refined_factors(j, 0);
    uint64_t cols = f->cols;
    dim3 grid((unsigned)((cols + 31) / 32), (unsigned)(s->module_rows / 32));
    int rc;

    for (int i = 0; i < j->modules; i++) {
        if (!j->m[i].target)
            continue;
        refined_give_kernel<<<grid, dim3(32, 8), 0, c->stream>>>(
            (float *)c->weight.data, s->w + refined_first(s, i, s->padded),
            f->input + i / s->share * cols, s->rows, cols, s->pitch);
        LAUNCHED();
        if ((rc = download(c, j->m[i].target + j->first * cols, c->weight.data,
                           s->rows * cols * sizeof(float), e)) < 0)
            return rc;
    }
    return 0;
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

static int store_module(struct cuda_context *c, const struct refined_job *j,
                        int start, const struct refined_state *s, int i,
                        struct err *e)
{
    const struct cuda_factors *f = refined_factors(j, start);
    const struct refined_found *to = &j->found[start];
    uint64_t width = f->cols / 2, metas = s->rows * s->groups;
    uint64_t rows = j->p->solve.rows, at = i * rows + j->first;
    uint8_t *codes =
        start ? to->codes + at * width : j->m[i].codes + j->first * width;
    int rc;

    if ((rc = solve_transpose_codes(c, f, i / s->share, s->rows, s->pitch,
                                    s->codes + refined_first(s, i, s->padded),
                                    e)) < 0 ||
        (rc = download(c, codes, c->packed.data, s->rows * width, e)) < 0)
        return rc;
    refined_metas_kernel<<<(unsigned)((metas + 255) / 256), 256, 0,
                           c->stream>>>(
        (uint32_t *)c->packed.data, s->meta + refined_first(s, i, s->groups),
        s->rows, s->groups, s->pitch);
    LAUNCHED();
    return download(c, to->meta + at * s->groups, c->packed.data,
                    metas * sizeof(*to->meta), e);
}

static int store(struct cuda_context *c, const struct refined_job *j, int start,
                 const struct refined_state *s, struct err *e)
{
    size_t n = (size_t)s->n * s->pitch;
    double *loss = (double *)mem_alloc(n * sizeof(*loss), "solve", e);
    int rc = loss ? refined_measure(c, refined_factors(j, start), s, loss, e) :
                    e->code;

    for (int i = 0; i < j->modules && rc >= 0; i++) {
        memcpy(j->found[start].loss + i * j->p->solve.rows + j->first,
               loss + refined_first(s, i, 1), s->rows * sizeof(*loss));
        rc = store_module(c, j, start, s, i, e);
    }
    free(loss);
    return rc;
}

static int solve_order(struct cuda_context *c, const struct refined_job *j,
                       int start, const struct refined_state *s, struct err *e)
{
    struct cuda_factors *f = refined_factors(j, start);
    struct refined_state other;
    struct refined_pass pass = { j->p, f, &j->b->plan[start], s,
                                 REFINED_CHOOSE };
    int rc;

    if ((rc = refined_squares(c, f, pass.plan, e)) < 0)
        return rc;
    if (start > 0) {
        if ((rc = reorder(c, refined_factors(j, 0), f, s, &other, e)) < 0)
            return rc;
        pass.s = &other;
    }
    if ((rc = refined_restart(c, f, pass.s, e)) < 0 ||
        (rc = refined_walk(c, &pass, e)) < 0)
        return rc;
    pass.what = REFINED_DESCENT;
    if ((rc = refined_sweep(c, &pass, e)) < 0)
        return rc;
    return store(c, j, start, pass.s, e);
}

/* Copy to the first order's results the rows where another order has the smaller
 * loss. */
static void keep_best(const struct refined_job *j)
{
    const struct solve_params *p = &j->p->solve;
    const struct refined_found *to = &j->found[0];
    uint64_t width = p->cols / 2, groups = quant_groups(p->cols, p->group);

    for (int i = 1; i < j->b->starts; i++)
        for (uint64_t k = 0; k < j->modules * p->rows; k++) {
            const struct refined_found *f = &j->found[i];

            if (!(f->loss[k] < to->loss[k]))
                continue;
            to->loss[k] = f->loss[k];
            memcpy(j->m[k / p->rows].codes + k % p->rows * width,
                   f->codes + k * width, width);
            memcpy(to->meta + k * groups, f->meta + k * groups,
                   groups * sizeof(*f->meta));
        }
}

/* The rows of each module together, from the best order of each; modules with the
 * same F at the same time. */
static int solve_together(struct cuda_context *c, const struct refined_job *j,
                          const struct refined_state *s, struct err *e)
{
    struct refined_rows x = { refined_factors(j, 0), &j->b->plan[0], 0, 0, j->m,
                              j->found[0].meta };
    int rc;

    if (s->rows < j->p->solve.rows)
        return err_set(e, E_TEMP, "the GPU has no room for all rows at once");
    keep_best(j);
    for (; x.first < j->modules; x.first += x.n) {
        const float *fisher = j->m[x.first].fisher;

        x.n = 1;
        while (x.first + x.n < j->modules &&
               j->m[x.first + x.n].fisher == fisher)
            x.n++;
        if ((rc = refined_together(c, j->p, s, &x, e)) < 0)
            return rc;
    }
    return store(c, j, 0, s, e);
}

static int solve_rows(struct cuda_context *c, const struct refined_job *j,
                      uint64_t rows, struct err *e)
{
    struct refined_state s;
    int rc;

    if ((rc = open_state(c, j, rows, &s, e)) < 0 ||
        (rc = load_factors(c, j, &s, e)) < 0 ||
        (rc = refined_squares(c, refined_factors(j, 0), &j->b->plan[0], e)) <
            0 ||
        (rc = load_weights(c, j, &s, e)) < 0 ||
        (rc = move_target(c, j, &s, e)) < 0 ||
        (rc = give_targets(c, j, &s, e)) < 0 ||
        (rc = refined_compare(c, j, &s, e)) < 0)
        return rc;
    for (int i = 0; i < j->b->starts; i++)
        if ((rc = solve_order(c, j, i, &s, e)) < 0)
            return rc;
    return j->m[0].fisher ? solve_together(c, j, &s, e) : 0;
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
        if (!m[i].output != !m[0].output || !m[i].fisher != !m[0].fisher)
            return err_set(e, E_DATA, "modules have different moments");
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

/* Allocate the results: losses and grids of all orders, codes of all but the
 * first, which go to the caller's memory. */
static char *open_found(struct refined_job *j, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t groups = quant_groups(p->cols, p->group), each, all;
    uint64_t rows = j->modules * p->rows;
    char *at;

    each = rows * (sizeof(double) + groups * sizeof(uint32_t) + p->cols / 2);
    each = round_up(each, 64);
    all = j->b->starts * each + 3 * rows * sizeof(double);
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
    j->kept = j->plain + rows;
    memset(j->kept, 0, rows * sizeof(*j->kept));
    return at;
}

/* Grids and losses of all modules. */
static int give(const struct refined_job *j, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t metas = p->rows * quant_groups(p->cols, p->group);
    int rc;

    if (!j->m[0].fisher) /* or it has been done */
        keep_best(j);
    for (int i = 0; i < j->modules; i++) {
        const uint32_t *meta = j->found[0].meta + i * metas;
        const double *loss = j->found[0].loss + i * p->rows;
        struct refined_result *r = &j->m[i].result;

        if ((rc = check_scales(meta, metas, e)) < 0)
            return rc;
        for (uint64_t k = 0; k < p->rows; k++) {
            r->solve.loss += loss[k];
            r->kept += j->kept[i * p->rows + k] > 0;
        }
        r->solve.loss_nearest =
            solve_compare_sum(p, loss, j->nearest + i * p->rows);
        r->loss_plain = solve_compare_sum(p, loss, j->plain + i * p->rows);
    }
    for (int i = 0; i < j->modules; i++)
        memcpy(j->m[i].meta, j->found[0].meta + i * metas,
               metas * sizeof(*j->m[i].meta));
    return 0;
}

/* All rows at once, or of one module fewer at a time where memory ends. */
static int solve_all(struct cuda_context *c, struct refined_job *j,
                     struct err *e)
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
    struct refined_job j = { p, b, m, n };
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
