/* w4a16_cuda.cu - forge_w4a16_cuda.h: checks a product, and does it by tiles
 * (w4a16_tile_cuda.cu, w4a16_wgmma_cuda.cu) or by weights in x's type and
 * cuBLAS. */
#include "cuda/w4a16_internal.cuh"

#include <stdio.h>
#include <stdlib.h>

static const char what[] = "4-bit product";

/* A call: x and y begin at row first[0], and so do the numbers of rows. */
struct call {
    struct cuda_context *c;
    const struct cuda_w4 *w; /* the first one with rows: all have its shape */
    int experts;             /* with rows */
    int64_t rows, most;      /* of all, of the linear that has most */
    bool split, long_scales; /* scales not of x's type; of f32 */
    int half_scales;         /* experts whose scales are f16 */
    struct forge_w4a16_rows x, y;
};

static size_t size_of(enum forge_w4a16_type t)
{
    return t == FORGE_W4A16_F32 ? 4 : 2;
}

static void *row_of(const struct forge_w4a16_rows *r, int64_t row)
{
    return (char *)r->p + (size_t)(row * r->ld) * size_of(r->type);
}

static cudaDataType type_of(enum forge_w4a16_type t)
{
    return t == FORGE_W4A16_F32 ? CUDA_R_32F :
           t == FORGE_W4A16_F16 ? CUDA_R_16F :
                                  CUDA_R_16BF;
}

/* ---- rows of x in the order of places ---- */

/* T: an integer of the size of an element. */
template <class T>
static __global__ void __launch_bounds__(256)
    places_kernel(const T *x, int64_t ld, const int32_t *input, int inputs,
                  int depth, T *to)
{
    x += blockIdx.x * ld;
    to += (int64_t)blockIdx.x * depth;
    for (int i = threadIdx.x; i < depth; i += 256) {
        int k = input ? input[i] : i;

        to[i] = k >= 0 && k < inputs ? x[k] : 0;
    }
}

template <class T>
static int rows_to_places(const struct call *a, const struct cuda_w4 *w,
                          int64_t row, int64_t rows, void *to, struct err *e)
{
    if (rows > INT32_MAX)
        return err_set(e, E_CONFIG, "%s: too many rows", what);
    if (!rows)
        return 0;
    places_kernel<T><<<(unsigned)rows, 256, 0, a->c->stream>>>(
        (const T *)row_of(&a->x, row), a->x.ld, (const int32_t *)w->input.data,
        (int)w->inputs, (int)w->depth, (T *)to + row * w->depth);
    LAUNCHED();
    return 0;
}

/* Rows row.. of a->x to the same of `to` [rows, depth]. */
static int to_places(const struct call *a, const struct cuda_w4 *w, int64_t row,
                     int64_t rows, void *to, struct err *e)
{
    return a->x.type == FORGE_W4A16_F32 ?
               rows_to_places<uint32_t>(a, w, row, rows, to, e) :
               rows_to_places<uint16_t>(a, w, row, rows, to, e);
}

/* ---- by tiles ---- */

/* Rows and outputs from which x of bf16 is made f16 where scales are f16, which a weight
 * is then multiplied by once, not twice. */
enum { HALVES_ROWS = 1024, HALVES_OUTPUTS = 16384 };

/* Rows (of an expert, on average) for which tiles of mma.sync are faster than
 * cuBLAS's on weights that are made first; up to which they are faster than tiles of
 * w4_few(), for a linear and for experts, whose rows vary. */
enum { TILED = 384, FEWEST = 8, FEWEST_EACH = 4 };

/* w4_few() makes operands of codes anew for each 64 rows, w4_wgmma() for each 256, but
 * has larger tiles, which are divided.  The first is faster up to so many tiles of 256
 * outputs by 64 rows of a linear; up to more if it has few inputs. */
enum { FEW_TILES = 96, MORE_TILES = 128, FEW_DEPTH = 4096 };

/* On average. */
static int64_t rows_each(const struct call *a)
{
    return (a->rows + a->experts - 1) / a->experts;
}

static bool in_place(const struct call *a, const struct cuda_w4 *const *w,
                     const int64_t *first, int64_t experts)
{
    for (int64_t i = 0; i < experts; i++)
        if (first[i + 1] > first[i] && w[i]->input.cap)
            return false;
    return a->w->depth == a->w->inputs && a->x.ld % 8 == 0 &&
           (uintptr_t)a->x.p % 16 == 0;
}

/* *x, *ld: rows of places. */
static int place_rows(const struct call *a, const struct cuda_w4 *const *w,
                      const int64_t *first, int64_t experts, const void **x,
                      int64_t *ld, struct err *e)
{
    struct device_buffer *to = &a->c->w4_x;
    int rc;

    *x = a->x.p;
    *ld = a->x.ld;
    if (in_place(a, w, first, experts))
        return 0;
    rc = buffer_need(a->c, to, (size_t)(a->rows * a->w->depth) * 2, e);
    for (int64_t i = 0; i < experts && rc >= 0; i++)
        if (first[i + 1] > first[i])
            rc = to_places(a, w[i], first[i] - first[0],
                           first[i + 1] - first[i], to->data, e);
    *x = to->data;
    *ld = a->w->depth;
    return rc;
}

/* The table of the launch's linears, and its tiles. */
static int set_rows(const struct call *a, const struct cuda_w4 *const *w,
                    const int64_t *first, int64_t experts, struct w4_launch *l,
                    struct err *e)
{
    int64_t across = (l->outputs + l->across - 1) / l->across, tiles = 0;
    struct w4_rows *list = (struct w4_rows *)mem_alloc(
        (size_t)a->experts * sizeof(*list), what, e);
    struct device_buffer *to = &a->c->w4_table;
    size_t bytes = (size_t)a->experts * sizeof(*list);
    int rc = list ? 0 : e->code;

    for (int64_t i = 0; i < experts && list; i++) {
        int64_t rows = first[i + 1] - first[i];

        if (!rows)
            continue;
        list[l->n++] = { (const uint4 *)w[i]->codes.data,
                         (const uint32_t *)w[i]->meta.data, first[i] - first[0],
                         (int)rows, (int)tiles };
        tiles += (rows + l->most - 1) / l->most * across;
        if (tiles > INT32_MAX)
            rc = err_set(e, E_CONFIG, "%s: too many rows", what);
    }
    l->tiles = (int)tiles;
    if (!rc)
        l->one = list[0];
    if (!rc && l->n > 1 && (rc = buffer_need(a->c, to, bytes, e)) >= 0)
        rc = upload(a->c, to->data, list, bytes, e);
    l->many = (const struct w4_rows *)to->data;
    free(list);
    return rc;
}

static int by_tiles(const struct call *a, const struct cuda_w4 *const *w,
                    const int64_t *first, int64_t experts, enum w4_way way,
                    struct err *e)
{
    struct w4_launch l = {};
    bool wgmma = way == W4_BY_WGMMA;
    int rc;

    l.y = a->y.p;
    l.ldy = a->y.ld;
    l.x_type = a->x.type;
    l.y_type = a->y.type;
    l.depth = a->w->depth;
    l.outputs = a->w->outputs;
    l.groups = a->w->groups;
    l.halves = a->w->halves;
    l.rows = a->rows;
    l.split = a->split;
    l.most = w4_most(a->c, &l, rows_each(a));
    l.across = W4_ACROSS;
    if (wgmma)
        w4_wgmma_tile(&l);
    if (way == W4_BY_FEW &&
        (rc = w4_few_tile(a->c, &l, rows_each(a), a->experts == 1, e)) < 0)
        return rc;
    if ((rc = place_rows(a, w, first, experts, &l.x, &l.ldx, e)) < 0)
        return rc;
    if (wgmma && a->x.type == FORGE_W4A16_BF16 && a->rows >= HALVES_ROWS &&
        a->w->outputs >= HALVES_OUTPUTS && a->half_scales == a->experts &&
        (rc = w4_halves(a->c, &l, e)) < 0)
        return rc;
    if ((rc = set_rows(a, w, first, experts, &l, e)) < 0)
        return rc;
    return wgmma            ? w4_wgmma(a->c, &l, e) :
           way == W4_BY_FEW ? w4_few(a->c, &l, e) :
                              w4_tiled(a->c, &l, e);
}

/* ---- by cuBLAS ---- */

/* Eight weights to 16 or 32 aligned bytes. */
static __device__ __forceinline__ void store_eight(float *to, const float v[8])
{
    ((float4 *)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

template <class T>
static __device__ __forceinline__ void store_eight(T *to, const float v[8])
{
    typename w4_base<T>::pair p[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        p[i] = { T(v[2 * i]), T(v[2 * i + 1]) };
    *(uint4 *)to = *(const uint4 *)p;
}

/* Outputs of strips strip.. as T, [.., depth].  A warp makes 64 places of a
 * strip; a lane stores 8 places at once.  Codes less their zero points are exact
 * in bf16, and so the upper halves of floats. */
template <class T>
static __global__ void __launch_bounds__(256)
    dense_kernel(const uint4 *codes, const uint32_t *meta, int64_t strip,
                 int64_t strips, int blocks, int groups, uint32_t inverse,
                 int64_t outputs, T *to)
{
    int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    int lane = threadIdx.x % 32, block = (int)(i % blocks);
    int64_t s = strip + i / blocks;
    uint4 q;

    if (i / blocks >= strips)
        return;
    q = __ldg(codes + (s * blocks + block) * 32 + lane);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t g = w4_group(2 * block + h, inverse), zero[2], w[2][4];
        float scale[2], v[2][8];

#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t m = meta[(s * groups + g) * W4_STRIP + lane / 4 + 8 * r];

            scale[r] = __uint_as_float(m & ~15u);
            zero[r] = (m & 15) * 0x00010001 + w4_base<__nv_bfloat16>::base;
        }
        w4_operand<__nv_bfloat16>(w[0], h ? q.y : q.x, zero);
        w4_operand<__nv_bfloat16>(w[1], h ? q.w : q.z, zero);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            uint32_t two = w[k / 4][k % 4];

            v[k % 2][k / 2 * 2] = __uint_as_float(two << 16) * scale[k % 2];
            v[k % 2][k / 2 * 2 + 1] =
                __uint_as_float(two & 0xffff0000) * scale[k % 2];
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t o = s * W4_STRIP + lane / 4 + 8 * r;

            if (o < outputs)
                store_eight(
                    to + ((o - strip * W4_STRIP) * blocks + block) * W4_PLACES +
                        h * W4_HALF + lane % 4 * 8,
                    v[r]);
        }
    }
}

template <class T>
static int make_dense_as(const struct call *a, const struct cuda_w4 *w,
                         int64_t o, int64_t n, struct err *e)
{
    int64_t strips = (n + W4_STRIP - 1) / W4_STRIP;
    int blocks = (int)(w->depth / W4_PLACES);
    unsigned grid = (unsigned)((strips * blocks + 7) / 8);

    dense_kernel<T><<<grid, 256, 0, a->c->stream>>>(
        (const uint4 *)w->codes.data, (const uint32_t *)w->meta.data,
        o / W4_STRIP, strips, blocks, (int)w->groups, w4_inverse(w->halves),
        w->outputs, (T *)a->c->w4_dense.data);
    LAUNCHED();
    return 0;
}

/* Outputs o..o+n-1 of W in x's type. */
static int make_dense(const struct call *a, const struct cuda_w4 *w, int64_t o,
                      int64_t n, struct err *e)
{
    switch (a->x.type) {
    case FORGE_W4A16_F32: return make_dense_as<float>(a, w, o, n, e);
    case FORGE_W4A16_F16: return make_dense_as<__half>(a, w, o, n, e);
    default: return make_dense_as<__nv_bfloat16>(a, w, o, n, e);
    }
}

template <class T>
static __global__ void __launch_bounds__(256)
    narrow_kernel(const float *from, int64_t n, T *to, int64_t ld)
{
    from += blockIdx.x * n;
    for (int64_t i = threadIdx.x; i < n; i += 256)
        to[blockIdx.x * ld + i] = T(from[i]);
}

/* Sums [rows, n] to y's outputs o..o+n-1, where cuBLAS does not mix the types. */
static int narrow(const struct call *a, int64_t row, int64_t rows, int64_t o,
                  int64_t n, struct err *e)
{
    const float *from = (const float *)a->c->w4_sums.data;
    void *to = (char *)row_of(&a->y, row) + o * 2;

    if (a->y.type == FORGE_W4A16_F16)
        narrow_kernel<<<(unsigned)rows, 256, 0, a->c->stream>>>(
            from, n, (__half *)to, a->y.ld);
    else
        narrow_kernel<<<(unsigned)rows, 256, 0, a->c->stream>>>(
            from, n, (__nv_bfloat16 *)to, a->y.ld);
    LAUNCHED();
    return 0;
}

/* Outputs o..o+n-1 of rows of x, [rows, ldx], of places if W has some. */
static int multiply_dense(const struct call *a, const struct cuda_w4 *w,
                          const struct forge_w4a16_rows *x, int64_t row,
                          int64_t rows, int64_t o, int64_t n, struct err *e)
{
    bool mixed = a->y.type != FORGE_W4A16_F32 && a->y.type != a->x.type;
    const float one = 1, zero = 0;
    struct cuda_context *c = a->c;
    int64_t k = w->input.cap ? w->depth : w->inputs;
    void *y = (char *)row_of(&a->y, row) + (size_t)o * size_of(a->y.type);
    int rc;

    if (mixed &&
        (rc = buffer_need(c, &c->w4_sums, (size_t)(rows * n) * 4, e)) < 0)
        return rc;
    BLAS_TRY(c->blas.gemm(
        c->blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)rows, (int)k,
        &one, c->w4_dense.data, type_of(x->type), (int)w->depth, row_of(x, row),
        type_of(x->type), (int)x->ld, &zero, mixed ? c->w4_sums.data : y,
        mixed ? CUDA_R_32F : type_of(a->y.type), mixed ? (int)n : (int)a->y.ld,
        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return mixed ? narrow(a, row, rows, o, n, e) : 0;
}

/* Rows of one linear. */
static int dense_rows(const struct call *a, const struct cuda_w4 *w,
                      const struct forge_w4a16_rows *x, int64_t row,
                      int64_t rows, struct err *e)
{
    int64_t row_bytes = w->depth * (int64_t)size_of(x->type);
    int64_t slabs = (w->outputs * row_bytes + W4_SLAB - 1) / W4_SLAB;
    int64_t step = (int64_t)round_up((uint64_t)(w->outputs + slabs - 1) / slabs,
                                     W4_ACROSS);
    int rc = buffer_need(a->c, &a->c->w4_dense, (size_t)(step * row_bytes), e);

    for (int64_t o = 0; o < w->outputs && rc >= 0; o += step) {
        int64_t n = w->outputs - o < step ? w->outputs - o : step;

        if ((rc = make_dense(a, w, o, n, e)) >= 0)
            rc = multiply_dense(a, w, x, row, rows, o, n, e);
    }
    return rc;
}

static int by_blas(const struct call *a, const struct cuda_w4 *const *w,
                   const int64_t *first, int64_t experts, struct err *e)
{
    struct device_buffer *room = &a->c->w4_x;
    int rc = need_blas(a->c, e);

    if (rc >= 0 &&
        (a->rows > INT32_MAX || a->x.ld > INT32_MAX || a->y.ld > INT32_MAX))
        return err_set(e, E_CONFIG, "%s: too large", what);
    for (int64_t i = 0; i < experts && rc >= 0; i++) {
        int64_t row = first[i] - first[0], rows = first[i + 1] - first[i];
        struct forge_w4a16_rows x = a->x;

        if (!rows)
            continue;
        if (w[i]->input.cap) {
            rc = buffer_need(a->c, room,
                             (size_t)(a->rows * a->w->depth) * size_of(x.type),
                             e);
            if (rc >= 0)
                rc = to_places(a, w[i], row, rows, room->data, e);
            x.p = room->data;
            x.ld = w[i]->depth;
        }
        if (rc >= 0)
            rc = dense_rows(a, w[i], &x, row, rows, e);
    }
    return rc;
}

/* ---- calls ---- */

static int check(struct call *a, const struct cuda_w4 *const *w,
                 const int64_t *first, int64_t experts, struct err *e)
{
    if (experts < 0)
        return err_set(e, E_CONFIG, "%s: no such number of linears", what);
    if (w4_rows_check(&a->x, "x", 0, 0, e) < 0 ||
        w4_rows_check(&a->y, "y", 0, 0, e) < 0)
        return e->code;
    for (int64_t i = 0; i < experts; i++) {
        int64_t rows = w4_expert_rows(first + i, w[i], e);

        if (rows < 0)
            return e->code;
        if (!rows)
            continue;
        if (!a->w)
            a->w = w[i];
        if (w[i]->outputs != a->w->outputs || w[i]->inputs != a->w->inputs ||
            w[i]->depth != a->w->depth || w[i]->groups != a->w->groups ||
            w[i]->halves != a->w->halves)
            return err_set(e, E_CONFIG, "%s: experts differ in shape", what);
        if (w4_rows_check(&a->x, "x", first[i + 1], a->w->inputs, e) < 0 ||
            w4_rows_check(&a->y, "y", first[i + 1], a->w->outputs, e) < 0)
            return e->code;
        a->experts++;
        a->split |= w[i]->scale_type != a->x.type;
        a->long_scales |= w[i]->scale_type == FORGE_W4A16_F32;
        a->half_scales += w[i]->scale_type == FORGE_W4A16_F16;
        a->rows += rows;
        a->most = rows > a->most ? rows : a->most;
    }
    if (a->most > INT32_MAX)
        return err_set(e, E_CONFIG, "%s: too many rows", what);
    return 0;
}

static bool few_pays(const struct call *a)
{
    int64_t rows = rows_each(a);
    int64_t tiles = (rows + 63) / 64 * ((a->w->outputs + 255) / 256);

    if (a->experts > 1)
        return rows > FEWEST_EACH && rows <= FORGE_W4A16_CUDA_EXACT;
    return rows > FEWEST &&
           (rows <= FORGE_W4A16_CUDA_EXACT ||
            tiles <= (a->w->depth <= FEW_DEPTH ? MORE_TILES : FEW_TILES));
}

static enum w4_way best_way(const struct call *a)
{
    if (a->x.type == FORGE_W4A16_F32)
        return W4_BY_BLAS;
    if (w4_few_runs(a->c) && a->rows <= INT32_MAX / 2 && few_pays(a))
        return W4_BY_FEW;
    if (a->rows <= (int64_t)FORGE_W4A16_CUDA_EXACT * a->experts)
        return W4_BY_TILES;
    if (w4_wgmma_runs(a->c) && !a->long_scales && a->rows <= INT32_MAX / 2)
        return W4_BY_WGMMA;
    return a->rows > (int64_t)TILED * a->experts ? W4_BY_BLAS : W4_BY_TILES;
}

int w4_grouped(struct cuda_context *c, const struct cuda_w4 *const *w,
               const int64_t *first, int64_t experts,
               const struct forge_w4a16_rows *x,
               const struct forge_w4a16_rows *y, enum w4_way way, struct err *e)
{
    struct call a = { c };
    int rc;

    a.x = *x;
    a.y = *y;
    rc = check(&a, w, first, experts, e);
    if (rc < 0 || !a.rows)
        return rc;
    a.x.p = row_of(x, first[0]);
    a.y.p = row_of(y, first[0]);
    if (way == W4_AUTO)
        way = best_way(&a);
    return way == W4_BY_BLAS ? by_blas(&a, w, first, experts, e) :
                               by_tiles(&a, w, first, experts, way, e);
}

/* ---- forge_w4a16_cuda.h ---- */

#define EXPORT extern "C" __attribute__((visibility("default")))

static int said(int rc, const struct err *e, char *why, size_t why_size)
{
    if (rc < 0 && why && why_size)
        snprintf(why, why_size, "%s", e->msg);
    return rc;
}

static struct cuda_context *context_of(struct forge_w4a16_cuda *c)
{
    return (struct cuda_context *)c;
}

EXPORT int forge_w4a16_cuda_open(struct forge_w4a16_cuda **out, int device,
                                 void *stream, char *why, size_t why_size)
{
    struct cuda_context *c;
    struct err e;
    int rc = cuda_open(&c, device, 0, &e);

    *out = (struct forge_w4a16_cuda *)c;
    if (rc >= 0 && stream) {
        cudaStreamDestroy(c->stream);
        c->stream = (cudaStream_t)stream;
    }
    return said(rc, &e, why, why_size);
}

EXPORT int forge_w4a16_cuda_prepare(struct forge_w4a16_cuda *c,
                                    struct forge_w4a16_cuda_linear **w,
                                    const struct forge_w4a16_linear *l,
                                    char *why, size_t why_size)
{
    struct err e;
    int rc = cuda_w4_prepare(context_of(c), (struct cuda_w4 **)w, l, &e);

    return said(rc, &e, why, why_size);
}

EXPORT void forge_w4a16_cuda_release(struct forge_w4a16_cuda_linear *w)
{
    cuda_w4_release((struct cuda_w4 *)w);
}

EXPORT size_t forge_w4a16_cuda_memory(const struct forge_w4a16_cuda_linear *w)
{
    return cuda_w4_memory((const struct cuda_w4 *)w);
}

EXPORT int forge_w4a16_cuda_grouped(
    struct forge_w4a16_cuda *c, const struct forge_w4a16_cuda_linear *const *w,
    const int64_t *first, int64_t experts, const struct forge_w4a16_rows *x,
    const struct forge_w4a16_rows *y, char *why, size_t why_size)
{
    struct err e;
    int rc = w4_grouped(context_of(c), (const struct cuda_w4 *const *)w, first,
                        experts, x, y, W4_AUTO, &e);

    return said(rc, &e, why, why_size);
}

EXPORT int forge_w4a16_cuda_multiply(struct forge_w4a16_cuda *c,
                                     const struct forge_w4a16_cuda_linear *w,
                                     const struct forge_w4a16_rows *x,
                                     int64_t rows,
                                     const struct forge_w4a16_rows *y,
                                     char *why, size_t why_size)
{
    const int64_t first[2] = { 0, rows };

    return forge_w4a16_cuda_grouped(c, &w, first, 1, x, y, why, why_size);
}

EXPORT int forge_w4a16_cuda_wait(struct forge_w4a16_cuda *c, char *why,
                                 size_t why_size)
{
    struct err e;
    int rc = loan_settle(context_of(c), &e);

    return said(rc, &e, why, why_size);
}
