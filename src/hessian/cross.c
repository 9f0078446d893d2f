/* cross.c - see cross.h.
 *
 * y and x of a token are stored side by side, (y, x).  C is then the
 * off-diagonal block of the Hessian of (y, x); syrk.h computes it tile by
 * tile. */
#include "hessian/cross.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/lanes.h"
#include "common/math/threads.h"
#include "hessian/hessian.h"
#include "hessian/hessian_gpu.h"
#include "hessian/syrk.h"

enum { TILE = SYRK_TILE };

struct cross {
    struct cross_shape shape;
    uint64_t x_at, wide; /* offset of x behind y; length of the two */
    uint64_t tokens, pending;
    struct cuda_cross *gpu; /* the accumulator; NULL: on the CPU, by: */
    float *chunk;           /* DT_F32: [HESSIAN_CHUNK, wide] */
    uint16_t *packed;       /* DT_BF16: the same, packed as in syrk.h */
    float *sum;             /* [rows, cols] */
    bool started;           /* sum has been written */
    bool bad;               /* an element of x was not finite */
};

int cross_open(struct cross **out, const struct cross_shape *s, struct err *e)
{
    struct cross *c = mem_zero(1, sizeof(*c), "cross", e);
    uint64_t bytes;

    if (!c)
        return e->code;
    *out = c;
    c->shape = *s;
    c->x_at = (s->rows + SYRK_PANEL - 1) / SYRK_PANEL * SYRK_PANEL;
    if (size_add(c->x_at, s->cols, &c->wide) ||
        size_mul(c->wide, HESSIAN_CHUNK * sizeof(double), &bytes) ||
        size_mul(s->rows, s->cols, &bytes) ||
        size_mul(bytes, sizeof(float), &bytes))
        return err_set(e, E_DATA, "too large");
    if (s->dtype == DT_BF16 && cross_gpu_open(&c->gpu, s, e) < 0)
        return e->code;
    if (c->gpu)
        return 0;
    c->sum = mem_pages(bytes, "cross", e);
    if (!c->sum)
        return e->code;
    if (s->dtype == DT_BF16) {
        c->packed =
            mem_pages(syrk_packed(HESSIAN_CHUNK, c->wide) * sizeof(*c->packed),
                      "cross", e);
        return c->packed ? 0 : e->code;
    }
    if (blas_open(e) < 0)
        return e->code;
    c->chunk = mem_pages(HESSIAN_CHUNK * c->wide * sizeof(float), "cross", e);
    return c->chunk ? 0 : e->code;
}

void cross_close(struct cross *c)
{
    if (!c)
        return;
    cross_gpu_close(c->gpu);
    free(c->chunk);
    free(c->packed);
    free(c->sum);
    free(c);
}

/* ---- adding a full chunk to the sum ---- */

struct flush {
    struct cross *c;
    atomic_bool failed;
};

static void add_tiles(void *ctx, size_t begin, size_t end)
{
    struct flush *f = ctx;
    struct cross *c = f->c;
    struct err e;
    float *p = mem_pages(TILE * TILE * sizeof(float), "cross", &e);
    uint64_t rows = c->shape.rows, cols = c->shape.cols;
    uint64_t across = (cols + TILE - 1) / TILE;

    if (!p)
        atomic_store(&f->failed, true);
    for (size_t t = begin; t < end && p; t++) {
        uint64_t i = t / across * TILE, j = t % across * TILE;
        uint64_t n = rows - i < TILE ? rows - i : TILE;
        uint64_t m = cols - j < TILE ? cols - j : TILE;

        if (c->packed)
            syrk_tile(p, c->packed, HESSIAN_CHUNK, c->pending, i, c->x_at + j,
                      n, m);
        else
            blas_sgemm(&(struct sgemm){ .ta = true,
                                        .m = n,
                                        .n = m,
                                        .k = c->pending,
                                        .a = c->chunk + i,
                                        .lda = c->wide,
                                        .b = c->chunk + c->x_at + j,
                                        .ldb = c->wide,
                                        .c = p,
                                        .ldc = TILE });
        for (uint64_t r = 0; r < n; r++) {
            float *to = c->sum + (i + r) * cols + j;

            if (c->started)
                lanes_add(to, p + r * TILE, m, to + 2 * cols);
            else
                memcpy(to, p + r * TILE, m * sizeof(*to));
        }
    }
    free(p);
}

static int flush(struct cross *c, struct err *e)
{
    struct flush f = { .c = c };
    uint64_t down = (c->shape.rows + TILE - 1) / TILE;
    uint64_t across = (c->shape.cols + TILE - 1) / TILE;

    if (c->packed)
        syrk_prepare(c->packed, HESSIAN_CHUNK, c->pending,
                     syrk_panels(c->wide));
    threads_for(down * across, 1, add_tiles, &f);
    c->started = true;
    c->pending = 0;
    return f.failed ? err_set(e, E_TEMP, "cross: out of memory") : 0;
}

/* ---- tokens into the chunk ---- */

struct pack {
    struct cross *c;
    const uint16_t *y, *x;
    uint64_t tokens;
    atomic_bool bad_y, bad_x; /* an element is not finite */
};

/* Pack panels begin..end-1 of (y, x): those of y, then those of x. */
static void pack_panels(void *ctx, size_t begin, size_t end)
{
    struct pack *j = ctx;
    const struct cross *c = j->c;
    uint64_t y = c->x_at / SYRK_PANEL, middle = end < y ? end : y;

    if (begin < middle && !syrk_pack(c->packed, HESSIAN_CHUNK, c->pending, j->y,
                                     j->tokens, c->shape.rows, begin, middle))
        atomic_store(&j->bad_y, true);
    begin = begin > y ? begin : y;
    if (begin < end && !syrk_pack(c->packed + syrk_packed_at(HESSIAN_CHUNK, y),
                                  HESSIAN_CHUNK, c->pending, j->x, j->tokens,
                                  c->shape.cols, begin - y, end - y))
        atomic_store(&j->bad_x, true);
}

static bool pack(struct cross *c, const char *y, const char *x, uint64_t n)
{
    struct pack j = {
        .c = c, .y = (const void *)y, .x = (const void *)x, .tokens = n
    };

    threads_for(syrk_panels(c->wide), syrk_pack_grain(n), pack_panels, &j);
    c->bad |= j.bad_x;
    return !j.bad_y;
}

/* Convert to f32 and store y and x side by side.  False: y is not finite. */
static bool lay_out(struct cross *c, const char *y, enum dtype ty,
                    const char *x, enum dtype tx, uint64_t tokens)
{
    const struct cross_shape *s = &c->shape;
    bool good = true;

    for (uint64_t t = 0; t < tokens; t++) {
        float *row = c->chunk + (c->pending + t) * c->wide;

        (void)!to_f32(row, y + t * s->rows * dtype_bits(ty) / 8, ty, s->rows);
        (void)!to_f32(row + c->x_at, x + t * s->cols * dtype_bits(tx) / 8, tx,
                      s->cols);
        good &= lanes_finite(row, s->rows);
    }
    return good;
}

static int add_gpu(struct cross *c, const struct cross_part *p, struct err *e)
{
    uint64_t n = p->tokens * c->shape.rows, bad;

    if (!p->there)
        bad = lanes_all_finite(p->y, p->y_dtype, n) ? n : 0;
    else if (hessian_gpu_finite(p->y_dtype, p->y, n, &bad, e) < 0)
        return e->code;
    if (bad < n)
        return err_set(e, E_DATA, "not finite");
    c->tokens += p->tokens;
    return cross_gpu_add(c->gpu, p->y, p->x, p->tokens, p->there, p->root, e);
}

int cross_add(struct cross *c, const struct cross_part *p, struct err *e)
{
    const char *from_y = p->y, *from_x = p->x;
    enum dtype y_dtype = p->y_dtype, x_dtype = p->x_dtype;
    uint64_t tokens = p->tokens;

    if (c->packed || c->gpu ?
            y_dtype != DT_BF16 || x_dtype != DT_BF16 :
            !dtype_is_float(y_dtype) || !dtype_is_float(x_dtype))
        return err_set(e, E_DATA, "not of one float type");
    if (c->gpu)
        return add_gpu(c, p, e);
    while (tokens) {
        uint64_t n = HESSIAN_CHUNK - c->pending;

        n = n < tokens ? n : tokens;
        if (!(c->packed ? pack(c, from_y, from_x, n) :
                          lay_out(c, from_y, y_dtype, from_x, x_dtype, n)))
            return err_set(e, E_DATA, "not finite");
        from_y += n * c->shape.rows * dtype_bits(y_dtype) / 8;
        from_x += n * c->shape.cols * dtype_bits(x_dtype) / 8;
        c->tokens += n;
        c->pending += n;
        tokens -= n;
        if (c->pending == HESSIAN_CHUNK && flush(c, e) < 0)
            return e->code;
    }
    return 0;
}

uint16_t *cross_packed(const struct cross *c)
{
    return c->packed && !c->bad ?
               c->packed + syrk_packed_at(HESSIAN_CHUNK, c->x_at / SYRK_PANEL) :
               NULL;
}

/* What the GPU's sums are multiplied by. */
static double factor(const struct cross *c, double times)
{
    return 2 * times / (c->tokens ? (double)c->tokens : 1);
}

/* cross_finish() of an accumulator on the GPU. */
static int finish_gpu(struct cross *c, double times, struct err *e)
{
    uint64_t n = c->shape.rows * c->shape.cols;

    c->sum = mem_pages(n * sizeof(float), "cross", e);
    return c->sum ?
               cross_gpu_finish(c->gpu, factor(c, times), c->sum, false, e) :
               e->code;
}

bool cross_is_there(const struct cross *c)
{
    return c->gpu;
}

int cross_finish_there(struct cross *c, double times, float *out, struct err *e)
{
    return cross_gpu_finish(c->gpu, factor(c, times), out, true, e);
}

struct scale {
    struct cross *c;
    double times;
};

static void scale_part(void *ctx, size_t begin, size_t end)
{
    const struct scale *j = ctx;
    float *sum = j->c->sum;

    for (size_t i = begin; i < end; i++)
        sum[i] = (float)(2 * j->times * (double)sum[i] / (double)j->c->tokens);
}

int cross_finish(struct cross *c, double times, const float **data,
                 struct err *e)
{
    uint64_t n = c->shape.rows * c->shape.cols;
    struct scale scale = { c, times };

    if (c->gpu) {
        if (finish_gpu(c, times, e) < 0)
            return e->code;
        *data = c->sum;
        return 0;
    }
    if (c->pending && flush(c, e) < 0)
        return e->code;
    free(c->chunk);
    free(c->packed);
    c->chunk = NULL;
    c->packed = NULL;
    if (c->started)
        threads_for(n, 1 << 16, scale_part, &scale);
    else
        memset(c->sum, 0, n * sizeof(*c->sum));
    *data = c->sum;
    return 0;
}
