/* refined_cuda.cu - the refined solver (gptq/solve/solve_refined.h) on the GPU:
 * the host's part.  Uploads and downloads rows, runs the starts (orders), keeps
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
 * cols). */
template <enum dtype S>
static __global__ void __launch_bounds__(REFINED_TILE)
    refined_round_kernel(const struct refined_state s, const uint32_t *input,
                         uint32_t group)
{
    uint64_t r = (uint64_t)blockIdx.x * REFINED_TILE + threadIdx.x;
    uint64_t at = blockIdx.y * s.pitch + r;
    uint32_t meta = s.meta[input[blockIdx.y] / group * s.pitch + r];
    float scale = refined_scale<S>(s.mantissa, meta);
    float zero = (float)meta_zero(meta), x = __fdiv_rn(s.w[at], scale);

    x = fminf(fmaxf(x, -zero), 15 - zero);
    x = (x + ROUNDER) - ROUNDER;
    s.d[at] = s.w[at] - x * scale;
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

/* ---- rows in and out ---- */

/* The result of one order (start), for all rows. */
struct found {
    uint8_t *codes;
    uint32_t *meta;
    double *loss;
};

/* Rows of a weight, from `first` on. */
struct job {
    const struct refined_params *p;
    const struct refined_hessian *b;
    const char *w;
    const uint32_t *meta;
    uint64_t first;
    struct found found[REFINED_STARTS];
    double *nearest, *plain; /* [rows] */
};

static int open_state(struct cuda_context *c, const struct job *j,
                      uint64_t rows, struct refined_state *s, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    const struct cuda_factors *f = j->b->factor[0]->gpu;
    uint64_t pitch = round_up(rows, REFINED_TILE), all = f->padded * pitch;
    uint64_t groups = quant_groups(p->cols, p->group);
    uint64_t outs =
        rows * (p->cols / 2 > 4 * groups ? p->cols / 2 : 4 * groups);
    int rc;

    if ((rc = buffer_need(c, &c->shifted, all * sizeof(float), e)) < 0 ||
        (rc = buffer_need(c, &c->split, all * sizeof(float), e)) < 0 ||
        (rc = j->b->starts < 2 ?
                  0 :
                  buffer_need(c, &c->second, all * sizeof(float), e)) < 0 ||
        (rc = buffer_need(c, &c->gradient, REFINED_SUPER * pitch * 4, e)) < 0 ||
        (rc = buffer_need(c, &c->moved, REFINED_WIDE * pitch * 4 + sizeof(int),
                          e)) < 0 ||
        (rc = buffer_need(c, &c->codes, all, e)) < 0 ||
        (rc = buffer_need(c, &c->meta, groups * pitch * 4, e)) < 0 ||
        (rc = buffer_need(c, &c->loss, f->padded / REFINED_WIDE * pitch * 8,
                          e)) < 0 ||
        (rc = buffer_need(c, &c->order, f->cols * 4, e)) < 0 ||
        (rc = buffer_need(c, &c->steps, j->p->block.factors * 8, e)) < 0 ||
        (rc = buffer_need(c, &c->weight, rows * p->cols * 4, e)) < 0 ||
        (rc = buffer_need(c, &c->packed, outs, e)) < 0)
        return rc;
    *s = (struct refined_state){ rows,
                                 pitch,
                                 f->padded,
                                 groups,
                                 (float *)c->shifted.data,
                                 (float *)c->split.data,
                                 (float *)c->gradient.data,
                                 (float *)c->moved.data,
                                 (uint8_t *)c->codes.data,
                                 (uint32_t *)c->meta.data,
                                 (double *)c->loss.data,
                                 (double *)c->steps.data,
                                 (int *)((float *)c->moved.data +
                                         REFINED_WIDE * pitch),
                                 NULL };
    return context_scales(c, DT_F32, &s->mantissa, e);
}

/* Upload the rows as targets, move them if there are cross moments, and upload
 * the candidates' factors. */
static int load(struct cuda_context *c, const struct job *j,
                const struct refined_state *s, struct err *e)
{
    const struct refined_params *p = j->p;
    const struct cuda_factors *f = j->b->factor[0]->gpu;
    uint64_t stride = p->solve.cols * dtype_bits(p->solve.dtype) / 8;
    double *factors =
        (double *)mem_alloc(p->block.factors * sizeof(*factors), "solve", e);
    int rc = factors ? 0 : e->code;

    for (int i = 0; i < p->block.factors && factors; i++)
        factors[i] = block_factor(&p->block, i);
    if (!rc)
        rc = upload(c, s->factors, factors, p->block.factors * sizeof(*factors),
                    e);
    free(factors); /* upload() has read them */
    if (rc < 0)
        return rc;
    CUDA_TRY(cudaMemsetAsync(c->bad, 0xff, sizeof(*c->bad), c->stream));
    if ((rc = upload(c, c->weight.data, j->w + j->first * stride,
                     s->rows * stride, e)) < 0 ||
        (rc = solve_transpose_weights(c, f, 0, p->solve.dtype,
                                      { s->rows, s->pitch, s->w, c->bad }, e)) <
            0)
        return rc;
    return refined_move_target(c, p, f, s,
                               p->output && j->b->target.plan ?
                                   p->output + j->first * p->solve.cols :
                                   NULL,
                               e);
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

/* The loss of round to nearest on the grids that came with the weights. */
static int measure_nearest(struct cuda_context *c, const struct job *j,
                           const struct refined_state *s, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    const struct cuda_factors *f = j->b->factor[0]->gpu;
    dim3 grid((unsigned)(s->pitch / REFINED_TILE), (unsigned)p->cols);
    int rc = upload(c, c->packed.data, j->meta + j->first * s->groups,
                    s->rows * s->groups * sizeof(*j->meta), e);

    if (rc < 0 || (rc = solve_transpose_grids(c, s->rows, s->groups, s->pitch,
                                              s->meta, e)) < 0)
        return rc;
    CUDA_TRY(cudaMemsetAsync(s->d, 0, s->padded * s->pitch * sizeof(*s->d),
                             c->stream));
    if (p->scale_dtype == DT_F16)
        refined_round_kernel<DT_F16><<<grid, REFINED_TILE, 0, c->stream>>>(
            *s, f->input, (uint32_t)p->group);
    else
        refined_round_kernel<DT_BF16><<<grid, REFINED_TILE, 0, c->stream>>>(
            *s, f->input, (uint32_t)p->group);
    LAUNCHED();
    return refined_measure(c, f, s, j->nearest + j->first, e);
}

/* to->w = the first order's targets in the order of f.  c->order: column of
 * each input in the first order. */
static int reorder(struct cuda_context *c, const struct cuda_factors *from,
                   const struct cuda_factors *f, const struct refined_state *s,
                   struct refined_state *to, struct err *e)
{
    uint32_t *place = (uint32_t *)c->order.data;

    *to = *s;
    to->w = (float *)c->second.data;
    refined_place_kernel<<<(unsigned)((f->cols + 255) / 256), 256, 0,
                           c->stream>>>(place, from->input, f->cols);
    LAUNCHED();
    CUDA_TRY(cudaMemsetAsync(to->w, 0, s->padded * s->pitch * sizeof(*to->w),
                             c->stream));
    refined_reorder_kernel<<<dim3((unsigned)(s->pitch / REFINED_TILE),
                                  (unsigned)f->cols),
                             REFINED_TILE, 0, c->stream>>>(to->w, s->w, place,
                                                           f->input, s->pitch);
    LAUNCHED();
    return 0;
}

static int store(struct cuda_context *c, const struct job *j, int start,
                 const struct refined_state *s, struct err *e)
{
    const struct cuda_factors *f = j->b->factor[start]->gpu;
    const struct found *to = &j->found[start];
    uint64_t width = f->cols / 2, metas = s->rows * s->groups;
    int rc = refined_measure(c, f, s, to->loss + j->first, e);

    if (rc < 0 ||
        (rc = solve_transpose_codes(c, f, 0, s->rows, s->pitch, s->codes, e)) <
            0 ||
        (rc = download(c, to->codes + j->first * width, c->packed.data,
                       s->rows * width, e)) < 0)
        return rc;
    refined_metas_kernel<<<(unsigned)((metas + 255) / 256), 256, 0,
                           c->stream>>>((uint32_t *)c->packed.data, s->meta,
                                        s->rows, s->groups, s->pitch);
    LAUNCHED();
    if ((rc = download(c, to->meta + j->first * s->groups, c->packed.data,
                       metas * sizeof(*to->meta), e)) < 0)
        return rc;
    CUDA_TRY(cudaStreamSynchronize(c->stream));
    return 0;
}

/* p->target = the moved targets, on the host, inputs as stored. */
static int give_target(struct cuda_context *c, const struct job *j,
                       const struct refined_state *s, struct err *e)
{
    const uint32_t *input = j->b->factor[0]->input;
    uint64_t cols = j->p->solve.cols, n = cols * s->pitch;
    float *w = (float *)mem_pages(n * sizeof(*w), "solve", e);
    int rc = w ? download(c, w, s->w, n * sizeof(*w), e) : e->code;

    for (uint64_t r = 0; r < s->rows && !rc; r++)
        for (uint64_t i = 0; i < cols; i++)
            j->p->target[(j->first + r) * cols + input[i]] =
                w[i * s->pitch + r];
    free(w);
    return rc;
}

/* Undo quantization: d = w. */
static int restart(struct cuda_context *c, const struct refined_state *s,
                   struct err *e)
{
    CUDA_TRY(cudaMemcpyAsync(s->d, s->w, s->padded * s->pitch * sizeof(*s->d),
                             cudaMemcpyDeviceToDevice, c->stream));
    return 0;
}

/* Losses of round to nearest and of plain GPTQ on the grids that came with the
 * weights, for a sample of rows (gptq/solve/solve.h, solve_compare_step()). */
static int measure_others(struct cuda_context *c, const struct job *j,
                          const struct refined_state *s, struct err *e)
{
    const struct cuda_factors *f = j->b->factor[0]->gpu;
    struct refined_pass pass = { j->p, f, &j->b->plan[0], s, REFINED_PLAIN };
    int rc = measure_nearest(c, j, s, e);

    if (rc < 0 || (rc = restart(c, s, e)) < 0 ||
        (rc = refined_walk(c, &pass, e)) < 0)
        return rc;
    return refined_measure(c, f, s, j->plain + j->first, e);
}

static int solve_rows(struct cuda_context *c, const struct job *j,
                      uint64_t rows, struct err *e)
{
    struct refined_state s = {}, transposed;
    int rc;

    if ((rc = open_state(c, j, rows, &s, e)) < 0 ||
        (rc = load(c, j, &s, e)) < 0 || (rc = find_bad(c, j, e)) < 0 ||
        (rc = j->p->target ? give_target(c, j, &s, e) : 0) < 0 ||
        (rc = measure_others(c, j, &s, e)) < 0)
        return rc;
    for (int i = 0; i < j->b->starts; i++) {
        const struct cuda_factors *f = j->b->factor[i]->gpu;
        struct refined_pass pass = { j->p, f, &j->b->plan[i], &s,
                                     REFINED_CHOOSE };

        if (i > 0) {
            if ((rc = reorder(c, j->b->factor[0]->gpu, f, &s, &transposed, e)) <
                0)
                return rc;
            pass.s = &transposed;
        }
        if ((rc = restart(c, pass.s, e)) < 0 ||
            (rc = refined_walk(c, &pass, e)) < 0)
            return rc;
        pass.what = REFINED_DESCENT;
        if ((rc = refined_sweep(c, &pass, e)) < 0 ||
            (rc = store(c, j, i, pass.s, e)) < 0)
            return rc;
    }
    return 0;
}

/* ---- solve_refined() ---- */

static int check(const struct refined_params *p,
                 const struct refined_hessian *b, struct err *e)
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
    for (int i = 0; i < b->starts; i++)
        if (!b->factor[i]->gpu || !b->factor[i]->gpu->h ||
            b->factor[i]->gpu->failed[0])
            return err_set(e, E_DATA, "the factors are not for this");
    return 0;
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

/* Copy to `to`, which holds the first order's results, the rows where another
 * order has the smaller loss. */
static void keep_best(const struct job *j, const struct found *to)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t width = p->cols / 2, groups = quant_groups(p->cols, p->group);

    for (int i = 1; i < j->b->starts; i++)
        for (uint64_t r = 0; r < p->rows; r++) {
            const struct found *f = &j->found[i];

            if (!(f->loss[r] < to->loss[r]))
                continue;
            to->loss[r] = f->loss[r];
            memcpy(to->codes + r * width, f->codes + r * width, width);
            memcpy(to->meta + r * groups, f->meta + r * groups,
                   groups * sizeof(*f->meta));
        }
}

/* Allocate the results: losses and grids of all orders, codes of all but the
 * first, which go to the caller's memory. */
static char *open_found(struct job *j, uint8_t *codes, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t groups = quant_groups(p->cols, p->group), each, all;
    char *at;

    each = p->rows * (sizeof(double) + groups * sizeof(uint32_t) + p->cols / 2);
    each = round_up(each, 64);
    all = j->b->starts * each + 2 * p->rows * sizeof(double);
    at = (char *)mem_alloc(all, "solve", e);
    if (!at)
        return NULL;
    for (int i = 0; i < j->b->starts; i++) {
        char *to = at + i * each;

        j->found[i].loss = (double *)to;
        j->found[i].meta = (uint32_t *)(j->found[i].loss + p->rows);
        j->found[i].codes =
            i == 0 ? codes : (uint8_t *)(j->found[i].meta + p->rows * groups);
    }
    j->nearest = (double *)(at + j->b->starts * each);
    j->plain = j->nearest + p->rows;
    return at;
}

int cuda_solve_refined(struct cuda_context *c, const struct refined_params *p,
                       const struct refined_hessian *b, const void *w,
                       uint32_t *meta, uint8_t *codes, struct refined_result *r,
                       struct err *e)
{
    struct job j = { p, b, (const char *)w, meta };
    uint64_t rows = p->solve.rows,
             tiles = round_up(rows, REFINED_TILE) / REFINED_TILE;
    uint64_t metas = rows * quant_groups(p->solve.cols, p->solve.group);
    char *memory;
    int rc = check(p, b, e);

    *r = (struct refined_result){ { 0, 0 }, 0 };
    if (rc < 0 || (rc = need_blas(c, e)) < 0 ||
        (rc = check_scales(meta, metas, e)) < 0)
        return rc;
    if (!(memory = open_found(&j, codes, e)))
        return e->code;
    rc = in_batches(c, tiles, tiles, [&](uint64_t at, uint64_t n) {
        uint64_t left = rows - at * REFINED_TILE;

        j.first = at * REFINED_TILE;
        return solve_rows(c, &j,
                          left < n * REFINED_TILE ? left : n * REFINED_TILE, e);
    });
    if (rc >= 0) {
        keep_best(&j, &j.found[0]);
        rc = check_scales(j.found[0].meta, metas, e);
    }
    if (rc >= 0)
        memcpy(meta, j.found[0].meta, metas * sizeof(*meta));
    for (uint64_t i = 0; i < rows && rc >= 0; i++) {
        r->solve.loss += j.found[0].loss[i];
        r->solve.loss_nearest += j.nearest[i];
        r->loss_plain += j.plain[i];
    }
    free(memory);
    return rc;
}
