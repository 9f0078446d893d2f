/* cross.c - see cross.h.
 *
 * y and x of a token are laid side by side; C is then the off-diagonal part of
 * the Hessian of both, which syrk.h makes tile by tile. */
#include "hessian/cross.h"

#include <stdlib.h>
#include <string.h>

#include "common/blas.h"
#include "common/lanes.h"
#include "common/threads.h"
#include "hessian/hessian.h"
#include "hessian/syrk.h"

enum { TILE = SYRK_TILE, STRIP = 256 /* tokens that are laid out at a time */ };

struct cross {
    struct cross_shape shape;
    uint64_t x_at, wide; /* where x begins beside y; both together */
    uint64_t tokens, pending;
    void *strip; /* [STRIP, wide] */
    /* One of the two: */
    float *chunk;     /* [HESSIAN_CHUNK, wide] */
    uint16_t *packed; /* the chunk as syrk.h wants it */
    float *sum;       /* [rows, cols] */
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
    c->sum = mem_pages(bytes, "cross", e);
    c->strip =
        c->sum ? mem_zero(STRIP * c->wide, sizeof(float), "cross", e) : NULL;
    if (!c->strip)
        return e->code;
    memset(c->sum, 0, bytes);
    if (s->dtype == DT_BF16 && syrk_usable()) {
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
    free(c->strip);
    free(c->chunk);
    free(c->packed);
    free(c->sum);
    free(c);
}

/* ---- a chunk is full ---- */

static void add_tiles(void *ctx, size_t begin, size_t end)
{
    static _Thread_local float p[TILE * TILE];
    struct cross *c = ctx;
    uint64_t rows = c->shape.rows, cols = c->shape.cols;
    uint64_t across = (cols + TILE - 1) / TILE;

    for (size_t t = begin; t < end; t++) {
        uint64_t i = t / across * TILE, j = t % across * TILE;
        uint64_t n = rows - i < TILE ? rows - i : TILE;
        uint64_t m = cols - j < TILE ? cols - j : TILE;

        if (c->packed)
            syrk_tile(p, c->packed, HESSIAN_CHUNK, c->pending, i, c->x_at + j,
                      n, m);
        else
            blas_sgemm(true, false, (int)n, (int)m, (int)c->pending, 1,
                       c->chunk + i, (int)c->wide, c->chunk + c->x_at + j,
                       (int)c->wide, 0, p, TILE);
        for (uint64_t r = 0; r < n; r++)
            for (uint64_t k = 0; k < m; k++)
                c->sum[(i + r) * cols + j + k] += p[r * TILE + k];
    }
}

static void flush(struct cross *c)
{
    uint64_t down = (c->shape.rows + TILE - 1) / TILE;
    uint64_t across = (c->shape.cols + TILE - 1) / TILE;

    threads_for(down * across, 1, add_tiles, c);
    c->pending = 0;
}

/* ---- tokens into the chunk ---- */

struct pack {
    struct cross *c;
    uint64_t tokens;
};

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    const struct pack *j = ctx;

    /* what is not finite was seen before */
    (void)!syrk_pack(j->c->packed, HESSIAN_CHUNK, j->c->pending, j->c->strip,
                     j->tokens, j->c->wide, begin, end);
}

/* One row of either, converted.  False: no float type. */
static bool convert(void *to, bool bf16, const char *from, enum dtype t,
                    uint64_t n)
{
    if (!bf16)
        return to_f32(to, from, t, n);
    if (t == DT_BF16)
        memcpy(to, from, n * sizeof(uint16_t));
    return t == DT_BF16;
}

static bool row_finite(const void *row, bool bf16, uint64_t n)
{
    const uint16_t *b = row;
    uint16_t bad = 0;

    if (!bf16)
        return lanes_finite(row, n);
    for (uint64_t i = 0; i < n; i++)
        bad |= (b[i] & 0x7f80) == 0x7f80;
    return !bad;
}

static int lay_out(struct cross *c, const char *y, enum dtype ty, const char *x,
                   enum dtype tx, uint64_t tokens, struct err *e)
{
    bool bf16 = c->packed != NULL;
    size_t item = bf16 ? sizeof(uint16_t) : sizeof(float);

    for (uint64_t t = 0; t < tokens; t++) {
        char *row = (bf16 ? (char *)c->strip :
                            (char *)(c->chunk + c->pending * c->wide)) +
                    t * c->wide * item;

        if (!convert(row, bf16, y + t * c->shape.rows * dtype_bits(ty) / 8, ty,
                     c->shape.rows) ||
            !convert(row + c->x_at * item, bf16,
                     x + t * c->shape.cols * dtype_bits(tx) / 8, tx,
                     c->shape.cols))
            return err_set(e, E_DATA, "not of one float type");
        if (!row_finite(row, bf16, c->shape.rows))
            return err_set(e, E_DATA, "token %llu: not finite",
                           (unsigned long long)(c->tokens + t));
    }
    return 0;
}

int cross_add(struct cross *c, const void *y, enum dtype y_dtype, const void *x,
              enum dtype x_dtype, uint64_t tokens, struct err *e)
{
    const char *from_y = y, *from_x = x;

    while (tokens) {
        uint64_t room = HESSIAN_CHUNK - c->pending;
        uint64_t n = tokens < STRIP ? tokens : STRIP;
        struct pack pack = { c, n = n < room ? n : room };

        if (lay_out(c, from_y, y_dtype, from_x, x_dtype, n, e) < 0)
            return e->code;
        if (c->packed)
            threads_for(syrk_panels(c->wide), 4, pack_panels, &pack);
        from_y += n * c->shape.rows * dtype_bits(y_dtype) / 8;
        from_x += n * c->shape.cols * dtype_bits(x_dtype) / 8;
        c->tokens += n;
        c->pending += n;
        tokens -= n;
        if (c->pending == HESSIAN_CHUNK)
            flush(c);
    }
    return 0;
}

const float *cross_finish(struct cross *c)
{
    uint64_t n = c->shape.rows * c->shape.cols;

    if (c->pending)
        flush(c);
    for (uint64_t i = 0; c->tokens && i < n; i++)
        c->sum[i] = (float)(2 * (double)c->sum[i] / (double)c->tokens);
    return c->sum;
}
