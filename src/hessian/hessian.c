/* hessian.c - see hessian.h. */
#include "hessian/hessian.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/lanes.h"
#include "common/math/threads.h"
#include "hessian/hessian_gpu.h"
#include "hessian/syrk.h"

enum {
    TILE = SYRK_TILE,
    CONVERT = 256, /* tokens converted at a time */
    PIECE = 256    /* tokens of a partial sum: shorter f32 sums round less */
};

struct hessian {
    struct hessian_shape shape;
    uint64_t tokens;          /* added in all */
    uint64_t pending;         /* of them in the current chunk */
    uint64_t elements;        /* of sum */
    struct cuda_hessian *gpu; /* the accumulator; NULL: on the CPU, by: */
    void *chunk;              /* DT_F32: [HESSIAN_CHUNK, cols] */
    uint16_t *packed; /* DT_BF16: the chunk packed as in syrk.h: `own`, or
                         hessian_part.packed */
    uint16_t *own;
    bool packs;   /* the products are of bf16 */
    float *sum;   /* laid out as the result, not yet divided */
    bool started; /* sum has been written */
    bool given;   /* sum is the result: hessian_given() */
};

/* A tile of the lower triangle: rows i.., columns j.. of H. */
struct tile {
    uint64_t i, j, rows, cols;
    uint64_t origin; /* first input of its block; 0 of the whole matrix */
};

int hessian_elements(uint64_t cols, uint64_t block, uint64_t *n, struct err *e)
{
    uint64_t bytes;

    if (block ? size_mul((cols + block - 1) / block, block, n) ||
                    size_mul(*n, block, n) :
                size_mul(cols, cols + 1, n))
        return err_set(e, E_DATA, "%llu inputs are too many for a hessian",
                       (unsigned long long)cols);
    if (!block)
        *n /= 2;
    if (size_mul(*n, sizeof(double), &bytes) || bytes > SIZE_MAX / 2)
        return err_set(e, E_DATA, "%llu inputs are too many for a hessian",
                       (unsigned long long)cols);
    return 0;
}

uint64_t hessian_cols(uint64_t n)
{
    uint64_t c = (uint64_t)((sqrt(8 * (double)n + 1) - 1) / 2);

    for (uint64_t k = c ? c - 1 : 0; k <= c + 1; k++)
        if (k && k <= UINT32_MAX && k * (k + 1) / 2 == n)
            return k;
    return 0;
}

static size_t item(const struct hessian *h)
{
    return h->shape.dtype == DT_BF16 ? sizeof(uint16_t) : sizeof(float);
}

static int open_chunk(struct hessian *h, struct err *e)
{
    struct hessian_shape *s = &h->shape;
    uint64_t bytes;

    if (s->block % SYRK_PANEL) /* tiles of bf16 can only begin at panels */
        s->dtype = DT_F32;
    if (s->dtype == DT_F32 && blas_open(e) < 0)
        return e->code;
    if (size_mul((uint64_t)HESSIAN_CHUNK * 2 * item(h), s->cols, &bytes))
        return err_set(e, E_DATA, "too many inputs");
    h->packs = s->dtype == DT_BF16; /* memory: take_room() */
    if (h->packs)
        return 0;
    h->chunk = mem_pages(bytes / 2, "hessian", e);
    return h->chunk ? 0 : e->code;
}

int hessian_open(struct hessian **out, const struct hessian_shape *s,
                 struct err *e)
{
    struct hessian *h = mem_zero(1, sizeof(*h), "hessian", e);
    int rc;

    if (!h)
        return e->code;
    h->shape = *s;
    if ((rc = hessian_elements(s->cols, s->block, &h->elements, e)) < 0 ||
        (rc = hessian_gpu_open(&h->gpu, s, e)) < 0)
        goto fail;
    if (h->gpu) {
        *out = h;
        return 0;
    }
    if ((rc = open_chunk(h, e)) < 0)
        goto fail;
    h->sum = mem_pages(h->elements * sizeof(float), "hessian", e);
    if (!h->sum) {
        rc = e->code;
        goto fail;
    }
    if (s->block) /* the padding of the last block is written by no tile */
        memset(h->sum, 0, h->elements * sizeof(float));
    *out = h;
    return 0;
fail:
    hessian_close(h);
    return rc;
}

int hessian_given(struct hessian **out, const struct hessian_shape *s,
                  uint64_t tokens, float *data, struct err *e)
{
    struct hessian *h = mem_zero(1, sizeof(*h), "hessian", e);

    if (!h)
        return e->code;
    h->shape = *s;
    h->tokens = tokens;
    h->sum = data;
    h->given = true;
    *out = h;
    return 0;
}

/* ---- tiles ---- */

static uint64_t tiles_of(uint64_t cols)
{
    uint64_t n = (cols + TILE - 1) / TILE;

    return n * (n + 1) / 2;
}

/* Tile number t of the lower triangle over `cols` inputs. */
static struct tile tile_at(uint64_t t, uint64_t cols)
{
    struct tile r = { 0 };
    uint64_t i = 0;

    while (t > i)
        t -= ++i;
    r.i = i * TILE;
    r.j = t * TILE;
    r.rows = cols - r.i < TILE ? cols - r.i : TILE;
    r.cols = cols - r.j < TILE ? cols - r.j : TILE;
    return r;
}

/* Tile number t of the block-diagonal form; every block has as many tiles as a
 * full one.  False: it lies beyond the short last block. */
static bool block_tile(const struct hessian_shape *s, uint64_t t,
                       struct tile *r)
{
    uint64_t each = tiles_of(s->block), origin = t / each * s->block;
    uint64_t cols = s->cols - origin < s->block ? s->cols - origin : s->block;

    if (t % each >= tiles_of(cols))
        return false;
    *r = tile_at(t % each, cols);
    r->origin = origin;
    return true;
}

static void multiply(const struct hessian *h, const struct tile *t, float *p)
{
    uint64_t i = t->origin + t->i, j = t->origin + t->j;
    int ld = (int)h->shape.cols, k = (int)h->pending;
    const float *x = h->chunk;

    if (h->packs) {
        syrk_tile(p, h->packed, HESSIAN_CHUNK, h->pending, i, j, t->rows,
                  t->cols);
        return;
    }
    for (int t0 = 0; t0 < k; t0 += PIECE)
        blas_sgemm(&(struct sgemm){ .ta = true,
                                    .m = t->rows,
                                    .n = t->cols,
                                    .k = k - t0 < PIECE ? k - t0 : PIECE,
                                    .a = x + (uint64_t)t0 * h->shape.cols + i,
                                    .lda = ld,
                                    .b = x + (uint64_t)t0 * h->shape.cols + j,
                                    .ldb = ld,
                                    .beta = t0 > 0,
                                    .c = p,
                                    .ldc = TILE });
}

static void add_tile(struct hessian *h, const struct tile *t, const float *p)
{
    for (uint64_t r = 0; r < t->rows; r++) {
        uint64_t i = t->i + r;
        uint64_t n = i - t->j + 1 < t->cols ? i - t->j + 1 : t->cols;
        float *to = h->shape.block ?
                        h->sum + (t->origin + i) * h->shape.block + t->j :
                        h->sum + i * (i + 1) / 2 + t->j;

        if (h->started)
            lanes_add(to, p + r * TILE, n,
                      to + (h->shape.block ? 2 * h->shape.block : 2 * i + 3));
        else
            memcpy(to, p + r * TILE, n * sizeof(*to));
    }
}

struct flush {
    struct hessian *h;
    atomic_bool failed;
};

static void flush_tiles(void *ctx, size_t begin, size_t end)
{
    struct flush *f = ctx;
    struct hessian *h = f->h;
    struct err e;
    float *p = mem_pages(TILE * TILE * sizeof(float), "hessian", &e);

    if (!p)
        atomic_store(&f->failed, true);
    for (size_t t = begin; t < end && p; t++) {
        struct tile at;

        if (!h->shape.block)
            at = tile_at(t, h->shape.cols);
        else if (!block_tile(&h->shape, t, &at))
            continue;
        multiply(h, &at, p);
        add_tile(h, &at, p);
    }
    free(p);
}

/* Add the products of the chunk to the total. */
static int flush(struct hessian *h, struct err *e)
{
    struct flush f = { .h = h };
    const struct hessian_shape *s = &h->shape;
    size_t n = s->block ?
                   (s->cols + s->block - 1) / s->block * tiles_of(s->block) :
                   tiles_of(s->cols);

    if (!h->pending)
        return 0;
    if (h->packs)
        syrk_prepare(h->packed, HESSIAN_CHUNK, h->pending,
                     syrk_panels(s->cols));
    threads_for(n, 1, flush_tiles, &f);
    h->pending = 0;
    h->started = true;
    return f.failed ? err_set(e, E_TEMP, "hessian: out of memory") : 0;
}

/* ---- tokens ---- */

/* The first element of x[n] that is not finite, or n. */
static uint64_t find_bad(const void *x, enum dtype t, uint64_t n)
{
    const uint16_t *b = x;
    const uint32_t *f = x;
    uint64_t i = 0;

    if (lanes_all_finite(x, t, n))
        return n;
    if (t == DT_BF16)
        while ((b[i] & 0x7f80) != 0x7f80)
            i++;
    else
        while ((f[i] & 0x7f800000) != 0x7f800000)
            i++;
    return i;
}

/* Convert n elements to h's type, by way of f32 where there is no direct
 * conversion. */
static int convert(struct hessian *h, void *dst, const void *src, enum dtype t,
                   uint64_t n, struct err *e)
{
    float part[1024];

    if (h->shape.dtype == DT_F32)
        return to_f32(dst, src, t, n) ?
                   0 :
                   err_set(e, E_DATA, "%s is no float type", dtype_name(t));
    for (uint64_t i = 0; i < n; i += ARRAY_LEN(part)) {
        uint64_t m = n - i < ARRAY_LEN(part) ? n - i : ARRAY_LEN(part);
        const char *from = (const char *)src + i * dtype_bits(t) / 8;

        if (!to_f32(part, from, t, m) ||
            !from_f32((uint16_t *)dst + i, DT_BF16, part, m))
            return err_set(e, E_DATA, "%s is no float type", dtype_name(t));
    }
    return 0;
}

/* Copy n tokens of h's own type into the chunk.  False: one is not finite. */
static bool copy(struct hessian *h, const char *from, uint64_t n)
{
    uint64_t cols = h->shape.cols;
    char *to = (char *)h->chunk + h->pending * cols * item(h);

    memcpy(to, from, n * cols * item(h));
    return find_bad(to, h->shape.dtype, n * cols) == n * cols;
}

struct packing {
    struct hessian *h;
    const uint16_t *x;
    uint64_t tokens;
    atomic_bool bad;
};

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    struct packing *j = ctx;
    struct hessian *h = j->h;

    if (!syrk_pack(h->own, HESSIAN_CHUNK, h->pending, j->x, j->tokens,
                   h->shape.cols, begin, end))
        atomic_store(&j->bad, true);
}

static bool pack(struct hessian *h, const char *from, uint64_t n)
{
    struct packing j = { .h = h, .x = (const void *)from, .tokens = n };

    threads_for(syrk_panels(h->shape.cols), syrk_pack_grain(n), pack_panels,
                &j);
    return !j.bad;
}

/* Put n tokens into the chunk, packed or copied.  False: one is not finite. */
static bool take(struct hessian *h, const struct hessian_part *p, const char *x,
                 uint64_t n)
{
    if (h->packs && p->packed)
        return true;
    return h->packs ? pack(h, x, n) : copy(h, x, n);
}

static int take_room(struct hessian *h, const struct hessian_part *p,
                     struct err *e)
{
    uint64_t n = syrk_packed(HESSIAN_CHUNK, h->shape.cols);

    if (h->packs && !p->packed && !h->own)
        h->own = mem_pages(n * sizeof(*h->own), "hessian", e);
    h->packed = p->packed ? p->packed : h->own;
    return h->packs && !h->packed ? e->code : 0;
}

static int not_finite(const struct hessian *h, const struct hessian_part *p,
                      uint64_t at, struct err *e)
{
    return err_set(e, E_DATA, "token %llu: input %llu is not finite",
                   (unsigned long long)(p->first + at / h->shape.cols),
                   (unsigned long long)(at % h->shape.cols));
}

static int add_gpu(struct hessian *h, const struct hessian_part *p,
                   struct err *e)
{
    uint64_t n = p->tokens * h->shape.cols, bad;

    if (!p->there)
        bad = find_bad(p->x, h->shape.dtype, n);
    else if (hessian_gpu_finite(h->shape.dtype, p->x, n, &bad, e) < 0)
        return e->code;
    if (bad < n)
        return not_finite(h, p, bad, e);
    h->tokens += p->tokens;
    return hessian_gpu_add(h->gpu, p->x, p->tokens, p->there, p->root, e);
}

/* hessian_add() of tokens of h's own type. */
static int add(struct hessian *h, const struct hessian_part *p, struct err *e)
{
    uint64_t cols = h->shape.cols, n;
    const char *x = p->x;

    if (h->gpu)
        return add_gpu(h, p, e);
    if (take_room(h, p, e) < 0)
        return e->code;
    for (uint64_t done = 0; done < p->tokens;
         done += n, x += n * cols * item(h)) {
        n = HESSIAN_CHUNK - h->pending;
        n = p->tokens - done < n ? p->tokens - done : n;
        if (!take(h, p, x, n)) {
            return not_finite(
                h, p, done * cols + find_bad(x, h->shape.dtype, n * cols), e);
        }
        h->pending += n;
        h->tokens += n;
        if (h->pending == HESSIAN_CHUNK && flush(h, e) < 0)
            return e->code;
    }
    return 0;
}

int hessian_add(struct hessian *h, const struct hessian_part *p, struct err *e)
{
    uint64_t cols = h->shape.cols, stride = cols * dtype_bits(p->dtype) / 8;
    struct hessian_part q = { .dtype = h->shape.dtype };
    void *part;
    int rc = 0;

    if (p->dtype == h->shape.dtype)
        return add(h, p, e);
    q.x = part = mem_pages(CONVERT * cols * item(h), "hessian", e);
    if (!part)
        return e->code;
    for (uint64_t done = 0; done < p->tokens && !rc; done += q.tokens) {
        q.tokens = p->tokens - done < CONVERT ? p->tokens - done : CONVERT;
        q.first = p->first + done;
        rc = convert(h, part, (const char *)p->x + done * stride, p->dtype,
                     q.tokens * cols, e);
        if (!rc)
            rc = add(h, &q, e);
    }
    free(part);
    return rc;
}

uint64_t hessian_room(const struct hessian *h)
{
    return HESSIAN_CHUNK - h->pending;
}

uint64_t hessian_tokens(const struct hessian *h)
{
    return h->tokens;
}

static void mirror(struct hessian *h)
{
    uint64_t g = h->shape.block;

    for (uint64_t b = 0; b < h->elements; b += g * g)
        for (uint64_t i = 0; i < g; i++)
            for (uint64_t j = 0; j < i; j++)
                h->sum[b + j * g + i] = h->sum[b + i * g + j];
}

struct scale {
    struct hessian *h;
    double factor;
};

static void scale_part(void *ctx, size_t begin, size_t end)
{
    const struct scale *j = ctx;

    for (size_t i = begin; i < end; i++)
        j->h->sum[i] = (float)(j->h->sum[i] * j->factor);
}

int hessian_finish(struct hessian *h, const float **data, struct err *e)
{
    struct scale scale = { .h = h };
    int rc = flush(h, e);

    if (rc < 0)
        return rc;
    if (!h->tokens)
        return err_set(e, E_DATA, "there are no tokens");
    if (h->given) {
        *data = h->sum;
        return 0;
    }
    if (h->gpu) {
        h->sum = mem_pages(h->elements * sizeof(float), "hessian", e);
        *data = h->sum;
        return h->sum ? hessian_gpu_finish(h->gpu, h->sum, false, e) : e->code;
    }
    scale.factor = 2 / (double)h->tokens;
    threads_for(h->elements, 1 << 16, scale_part, &scale);
    if (h->shape.block)
        mirror(h);
    *data = h->sum;
    return 0;
}

bool hessian_is_there(const struct hessian *h)
{
    return h->gpu && h->shape.dtype == DT_BF16 && !h->shape.block;
}

int hessian_finish_there(struct hessian *h, float *out, struct err *e)
{
    uint64_t bad, n;

    if ((!h->given && hessian_gpu_finish(h->gpu, out, true, e) < 0) ||
        hessian_elements(h->shape.cols, h->shape.block, &n, e) < 0 ||
        hessian_gpu_finite(DT_F32, out, n, &bad, e) < 0)
        return e->code;
    if (bad < n)
        return err_set(e, E_DATA, "element %llu is not finite",
                       (unsigned long long)bad);
    return 0;
}

void hessian_close(struct hessian *h)
{
    if (!h)
        return;
    hessian_gpu_close(h->gpu);
    free(h->chunk);
    free(h->own);
    free(h->sum);
    free(h);
}
