/* product.c - see internal.h: y = x W^T with bias, addition or gating.
 *
 * Tiles are distributed to threads, column by column, so that concurrent tiles
 * share their part of W and it is read from memory once.  The f32 sums of a
 * tile are computed by bf16_gemm.h from packed weights, by blas.h in f32 mode,
 * or by w4a16.h for 4-bit linears, into the thread's scratch memory; there
 * they are rounded, added or gated, so that f32 sums stay in the cache. */
#include <stdlib.h>
#include <string.h>

#include "arch/device_bytes.h"
#include "common/math/bf16_gemm.h"
#include "common/math/blas.h"
#include "common/math/rounded.h"
#include "common/math/threads.h"
#include "model/internal.h"
#include "model/scratch.h"
#include "w4a16/w4a16.h"

enum {
    PART = 96, /* rows of a low tile: a multiple of all kernels' strips */
    F32_TILE = 256,
    SPARE = 32 /* padding of the rows of sums, which map to different sets of
                * the cache then */
};

struct job {
    const struct product *p;
    int64_t rows, cols; /* of a tile */
    int64_t down;       /* number of tiles along the rows */
    /* Tiles from number `late` on are lower, so that all threads finish at about
     * the same time: late_rows, late_down. */
    int64_t late, late_rows, late_down;
    int64_t step; /* rows whose sums are computed, then finished, at a time */
    struct w4_x x[2];           /* x for the 4-bit linears first and second */
    uint16_t *strips;           /* x packed; NULL: it is read as it is */
    size_t room;                /* work memory of a 4-bit tile */
    struct threads_error error; /* by tile */
};

/* ---- weights ---- */

/* Packing of a group of rows of W. */
struct packing {
    uint16_t *from, *to;
    uint16_t *room; /* copy of the group, to pack in place; NULL: to and from
                     * differ */
    int64_t rows, cols;
};

static void copy_panels(void *ctx, size_t begin, size_t end)
{
    const struct packing *j = ctx;
    int64_t at = (int64_t)begin * GEMM_COLS, n = (int64_t)end * GEMM_COLS - at;

    n = j->rows - at < n ? j->rows - at : n;
    memcpy(j->room + at * j->cols, j->from + at * j->cols,
           (size_t)(n * j->cols) * sizeof(*j->room));
}

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    const struct packing *j = ctx;

    bf16_gemm_pack(j->to, j->room ? j->room : j->from, j->rows, j->cols,
                   (int64_t)begin, (int64_t)end);
}

static void pack_groups(uint16_t *to, uint16_t *from, uint16_t *room,
                        int64_t rows, int64_t cols)
{
    int64_t group = bf16_gemm_group(), depth = bf16_gemm_depth(cols);

    for (int64_t o = 0; o < rows; o += group) {
        struct packing j = { from + o * cols, to + o * depth, room,
                             rows - o < group ? rows - o : group, cols };
        size_t panels = (size_t)((j.rows + GEMM_COLS - 1) / GEMM_COLS);

        if (room)
            threads_for(panels, 2, copy_panels, &j);
        threads_for(panels, 2, pack_panels, &j);
    }
}

int product_pack(const struct model *m, int64_t rows, int64_t cols, void **w,
                 struct err *e)
{
    size_t bytes = bf16_gemm_packed(rows, cols) * sizeof(uint16_t);
    bool apart = bf16_gemm_depth(cols) != cols;
    int64_t group = bf16_gemm_group() < rows ? bf16_gemm_group() : rows;
    uint16_t *room;

    if (!m->bf16)
        return blas_open(e);
    if (!apart && rows % GEMM_COLS && mem_grow(w, bytes, "weights", e) < 0)
        return e->code;
    room = mem_pages(apart ? bytes : (size_t)(group * cols) * sizeof(*room),
                     "weights", e);
    if (!room)
        return e->code;
    pack_groups(apart ? room : *w, *w, apart ? NULL : room, rows, cols);
    free(apart ? *w : room);
    *w = apart ? room : *w;
    return 0;
}

void loaded_release_fp8(struct loaded *l)
{
    free((void *)(uintptr_t)l->fp8.data);
    free((void *)(uintptr_t)l->fp8.scale);
    l->fp8.data = NULL;
    l->fp8.scale = NULL;
}

/* Move the weights to device memory, in the form that they have. */
static int place_weights(struct model *m, struct loaded *l, struct err *e)
{
    void *host = l->w;
    int rc;

    l->w = NULL;
    if (l->words.codes)
        rc = m->on->linear(m->context, &l->words.of, &l->on_device, e);
    else if (l->codes.nibbles)
        rc = m->on->codes(m->context, &l->codes, &l->w, e);
    else if (l->fp8.data)
        rc = m->on->fp8(m->context, &l->fp8, &l->w, e);
    else
        rc = m->on->weight(m->context, m->dtype, l->of.rows, l->of.cols, host,
                           &l->w, e);
    if (rc < 0 && l->words.codes)
        err_prefix(e, "'%.200s'", l->of.module);
    ck_words_release(&l->words);
    loaded_release_fp8(l);
    l->codes.nibbles = NULL;
    free(host);
    return rc;
}

int loaded_place(struct model *m, struct loaded *l, struct err *e)
{
    int rc;

    if (!m->on && l->q)
        return 0;
    if (!m->on)
        return product_pack(m, l->of.rows, l->of.cols, &l->w, e);
    if (l->placed)
        return 0;
    rc = l->borrowed ? 0 : place_weights(m, l, e);
    if (rc < 0)
        return rc;
    l->placed = m; /* model_place() below moves the bias, or frees it on
                    * error */
    return model_place(m, (void **)&l->bias,
                       (size_t)l->of.rows * sizeof(*l->bias), e);
}

/* ---- tiles ---- */

/* Rows i..i+m-1 of x by columns o..o+n-1 of the output. */
struct tile {
    int64_t i, m, o, n;
    float *sums; /* [m, ld] */
    int64_t ld;
    void *room; /* work memory for 4-bit weights */
};

static void multiply_f32(const struct product *p, const struct loaded *l,
                         const struct tile *t)
{
    int64_t k = l->of.cols;

    blas_sgemm(&(struct sgemm){ .tb = true,
                                .m = t->m,
                                .n = t->n,
                                .k = k,
                                .a = (const float *)p->x + t->i * k,
                                .b = (const float *)l->w + t->o * k,
                                .c = t->sums,
                                .ldc = t->ld });
}

/* both: with the sums of `second`, which follow the first's. */
static void multiply_bf16(const struct job *j, const struct loaded *l,
                          bool both, const struct tile *t)
{
    const struct product *p = j->p;
    int64_t k = l->of.cols;
    const uint16_t *strips =
        j->strips ? j->strips + t->i * bf16_gemm_depth(k) : NULL;

    bf16_gemm(&(struct bf16_gemm){ .x = (const uint16_t *)p->x + t->i * k,
                                   .ldx = k,
                                   .m = t->m,
                                   .k = k,
                                   .packed = l->w,
                                   .second = both ? p->second->w : NULL,
                                   .all = l->of.rows,
                                   .first = t->o,
                                   .n = t->n,
                                   .y = t->sums,
                                   .ldy = t->ld,
                                   .strips = strips });
}

/* Sums of first (which = 0) or second (1). */
static void multiply(const struct job *j, int which, const struct tile *t)
{
    const struct product *p = j->p;
    const struct loaded *l = which ? p->second : p->first;

    if (l->q)
        w4_tile(&j->x[which], t->i, t->m, t->o, t->n, t->sums, t->ld, t->room);
    else if (p->m->bf16)
        multiply_bf16(j, l, false, t);
    else
        multiply_f32(p, l, t);
}

static const float *bias_at(const struct loaded *l, int64_t o)
{
    return l->bias ? l->bias + o : NULL;
}

/* out[n] = act(g + gb) * (u + ub), elements; gb, ub NULL: no bias. */
static void gate(const struct model *m, const float *g, const float *u,
                 const float *gb, const float *ub, int64_t n, void *out)
{
    const struct model_config *c = &m->config;
    const struct kernels *k = m->k;
    bool gelu = c->family->act == ACT_GELU;
    float alpha = (float)c->gate_alpha, limit = (float)c->gate_limit;

    if (c->family->act == ACT_CLAMPED && m->bf16)
        k->clamped_bf16(g, u, gb, ub, alpha, limit, n, out);
    else if (c->family->act == ACT_CLAMPED)
        k->clamped_f32(g, u, gb, ub, alpha, limit, n, out);
    else if (m->bf16)
        (gelu ? k->gelu_bf16 : k->gate_bf16)(g, u, gb, ub, n, out);
    else
        (gelu ? k->gelu_f32 : k->gate_f32)(g, u, gb, ub, n, out);
}

/* Row r of the tile, columns o..o+n-1: from sums to output. */
static void finish_row(const struct product *p, int64_t r, int64_t o, int64_t n,
                       const float *y, const float *u)
{
    const struct kernels *k = p->m->k;
    const float *b = bias_at(p->first, o);
    int64_t at = r * p->first->of.rows + o;
    uint16_t *h = (uint16_t *)p->out + at;
    float *f = (float *)p->out + at;

    if (p->second)
        gate(p->m, y, u, b, bias_at(p->second, o), n,
             p->m->bf16 ? (void *)h : f);
    else if (p->add && p->m->bf16)
        k->add_bf16(y, b, n, h);
    else if (p->add)
        k->add_f32(y, b, n, f);
    else if (p->m->bf16)
        k->store_bf16(y, b, n, h);
    else
        k->store_f32(y, b, n, f);
}

static void run_rows(const struct job *j, struct tile t)
{
    const struct product *p = j->p;
    float *y = t.sums;

    t.ld = (p->second ? 2 * t.n : t.n) + SPARE;
    if (p->second && p->m->bf16 && !p->first->q && !p->second->q) {
        multiply_bf16(j, p->first, true, &t);
    } else {
        multiply(j, 0, &t);
        t.sums += t.n;
        if (p->second)
            multiply(j, 1, &t);
    }
    for (int64_t r = 0; r < t.m; r++)
        finish_row(p, t.i + r, t.o, t.n, y + r * t.ld, y + r * t.ld + t.n);
}

/* Rows i..i+rows-1, columns o.. of a tile. */
static int run_tile(const struct job *j, int64_t i, int64_t rows, int64_t o,
                    struct err *e)
{
    const struct product *p = j->p;
    int64_t end = i + rows < p->rows ? i + rows : p->rows;
    int64_t n = p->first->of.rows - o, m;
    char *room;

    n = n < j->cols ? n : j->cols;
    room = scratch_thread(
        j->room + sizeof(float) * (size_t)(j->step * (2 * n + SPARE)), e);
    if (!room)
        return e->code;
    for (; i < end; i += m) {
        m = end - i < j->step ? end - i : j->step;
        run_rows(j, (struct tile){ .i = i,
                                   .m = m,
                                   .o = o,
                                   .n = n,
                                   .sums = (float *)(void *)(room + j->room),
                                   .room = room });
    }
    return 0;
}

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;

    for (size_t t = begin; t < end; t++) {
        int64_t n = (int64_t)t, down = j->down, rows = j->rows, o = 0;
        struct err e;

        if (j->late && n >= j->late) {
            o = j->late / down * j->cols;
            n -= j->late;
            down = j->late_down;
            rows = j->late_rows;
        }
        o += n / down * j->cols;
        if (run_tile(j, n % down * rows, rows, o, &e) < 0)
            threads_error_add(&j->error, t, &e);
    }
}

/* Halve the tiles of a thread's last round: columns of them, where there are rounds
 * enough; the number of all tiles, `across` columns. */
static int64_t cut_last(struct job *j, int64_t across, int64_t threads)
{
    int64_t last = (threads + j->down - 1) / j->down;
    int64_t step = bf16_kernel()->rows;
    int64_t tall = (j->rows / 2 + step - 1) / step * step;

    if (threads == 1 || j->rows < 2 * PART || across < 2 * last)
        return across * j->down;
    j->late = (across - last) * j->down;
    j->late_rows = tall;
    j->late_down = (j->p->rows + tall - 1) / tall;
    return j->late + last * j->late_down;
}

/* Choose equal tiles as wide as the caches allow, but enough for all threads;
 * returns their number.  If all inputs are one block, sums are finished while
 * they are in the first-level cache, and tiles may be low.  f32 tiles have a
 * fixed size for any number of threads, since OpenBLAS sums at a tile's edge
 * in another order. */
static int64_t choose_tiles(struct job *j)
{
    const struct linear *l = &j->p->first->of;
    const struct bf16_kernel *k = bf16_kernel();
    bool f32 = !j->p->m->bf16, deep = l->cols > k->depth;
    int64_t most = k->tile_cols, threads = threads_count(), across;

    j->step = f32 ? F32_TILE : deep ? k->tile_rows : k->rows;
    j->rows = f32 ? F32_TILE : deep ? k->tile_rows : PART;
    j->cols = F32_TILE;
    j->down = (j->p->rows + j->rows - 1) / j->rows;
    if (f32)
        return j->down * ((l->rows + F32_TILE - 1) / F32_TILE);
    if (j->p->second)
        most /= 2;
    across = (l->rows + most - 1) / most;
    if (j->down * across < 2 * threads)
        across = (2 * threads + j->down - 1) / j->down;
    j->cols = (l->rows + across - 1) / across;
    j->cols = (j->cols + GEMM_COLS - 1) / GEMM_COLS * GEMM_COLS;
    across = (l->rows + j->cols - 1) / j->cols;
    return cut_last(j, across, threads);
}

/* ---- 4-bit linears ---- */

/* Whether a linear of the product is in 4 bits. */
static bool few_bits(const struct product *p)
{
    return p->first->q || (p->second && p->second->q);
}

/* x in the form of 4-bit products. */
static int prepare_x(struct job *j, struct err *e)
{
    const struct product *p = j->p;
    const struct loaded *l[2] = { p->first, p->second };

    for (int i = 0; i < 2; i++)
        if (l[i] && l[i]->q &&
            w4_x_prepare(&j->x[i], l[i]->q, p->x, p->m->dtype, l[i]->of.cols,
                         p->rows, e) < 0)
            return e->code;
    return 0;
}

static int64_t choose_w4_tiles(struct job *j)
{
    const struct product *p = j->p;
    struct w4_tiles t = w4_tiles(&j->x[p->first->q ? 0 : 1]);
    int64_t rows = p->first->of.rows, across;
    bool f32 = p->rows > W4_FEW && !p->m->bf16; /* tiles of fixed size */

    if (p->second && t.cols > W4_BLOCK && !f32)
        t.cols /= 2;
    j->room = t.room;
    j->rows = j->step = t.rows;
    j->cols = t.cols;
    j->down = (p->rows + j->rows - 1) / j->rows;
    across = (rows + j->cols - 1) / j->cols;
    while (!f32 && j->cols > W4_BLOCK &&
           across * j->down < 2 * threads_count()) {
        j->cols = j->cols / 2 / W4_BLOCK * W4_BLOCK;
        across = (rows + j->cols - 1) / j->cols;
    }
    return across * j->down;
}

/* ---- x in strips ---- */

static void pack_strips(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    int64_t k = j->p->first->of.cols;

    bf16_gemm_pack_strips(j->strips, j->p->x, k, j->p->rows, k, (int64_t)begin,
                          (int64_t)end);
}

/* Whether tiles would else copy rows of x more than once. */
static bool takes_strips(const struct product *p)
{
    int64_t cols = p->first->of.rows * (p->second ? 2 : 1);

    return p->m->bf16 && !few_bits(p) && bf16_gemm_strips() &&
           cols > bf16_kernel()->tile_cols;
}

static int prepare_strips(struct job *j, struct err *e)
{
    const struct product *p = j->p;

    j->strips =
        scratch_strips(bf16_gemm_strips_packed(p->rows, p->first->of.cols) *
                           sizeof(*j->strips),
                       e);
    if (!j->strips)
        return e->code;
    threads_for((size_t)((p->rows + GEMM_STRIP - 1) / GEMM_STRIP), 1,
                pack_strips, j);
    return 0;
}

static int run_part(const struct product *p, bool strips, struct err *e)
{
    struct job j = { .p = p };
    bool w4 = few_bits(p);
    int rc = w4 ? prepare_x(&j, e) : strips ? prepare_strips(&j, e) : 0;

    if (rc >= 0) {
        int64_t tiles = w4 ? choose_w4_tiles(&j) : choose_tiles(&j);

        threads_error_init(&j.error);
        threads_for((size_t)tiles, 1, run_tiles, &j);
        rc = threads_error_take(&j.error, e);
    }
    w4_x_release(&j.x[0]);
    w4_x_release(&j.x[1]);
    return rc;
}

/* ---- f32 rounded to bf16 ---- */

/* Sums of first and second, of all rows. */
struct sums {
    const struct product *p;
    float *y, *u; /* [rows, outputs] */
};

static void finish_rows(void *ctx, size_t begin, size_t end)
{
    const struct sums *s = ctx;
    int64_t n = s->p->first->of.rows;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        finish_row(s->p, r, 0, n, s->y + r * n, s->u ? s->u + r * n : NULL);
}

static int run_rounded(const struct product *p, struct err *e)
{
    int64_t n = p->first->of.rows;
    size_t each = (size_t)(p->rows * n);
    struct sums s = { .p = p };
    int rc = 0;

    s.y = mem_pages((p->second ? 2 : 1) * each * sizeof(*s.y), "products", e);
    if (!s.y)
        return e->code;
    s.u = p->second ? s.y + each : NULL;
    for (int i = 0; i < (p->second ? 2 : 1) && rc >= 0; i++)
        rc = rounded_gemm(&(struct sgemm){ .tb = true,
                                           .m = p->rows,
                                           .n = n,
                                           .k = p->first->of.cols,
                                           .a = p->x,
                                           .b = (i ? p->second : p->first)->w,
                                           .c = i ? s.u : s.y },
                          e);
    if (rc >= 0)
        threads_for((size_t)p->rows, 16, finish_rows, &s);
    free(s.y);
    return rc;
}

int product_run(const struct product *p, struct err *e)
{
    struct product part = *p;
    bool strips = !p->m->on && takes_strips(p);
    int64_t most = strips ? PACKED_ROWS : p->rows;

    if (p->m->on)
        return device_product(p, e);
    if (!p->m->bf16 && !few_bits(p) && rounded(p->rows))
        return run_rounded(p, e);
    for (int64_t r = 0; r < p->rows; r += part.rows) {
        part.x =
            (const char *)p->x + (size_t)(r * p->first->of.cols) * p->m->size;
        part.out =
            (char *)p->out + (size_t)(r * p->first->of.rows) * p->m->size;
        part.rows = p->rows - r < most ? p->rows - r : most;
        if (run_part(&part, strips, e) < 0)
            return e->code;
    }
    return 0;
}

int product_into(struct buffer *to, const struct model *m,
                 const struct loaded *w, const void *x, int64_t rows,
                 const char *what, struct err *e)
{
    struct product p = { .m = m, .first = w, .x = x, .rows = rows };

    if (model_reserve(m, to, rows, w->of.rows, m->size, what, e) < 0)
        return e->code;
    p.out = to->p;
    return product_run(&p, e);
}

/* ---- gate and up that are there already ---- */

struct pair_job {
    const struct model *m;
    const struct gate_pair *of;
};

static void gate_pair_rows(void *ctx, size_t begin, size_t end)
{
    enum { PIECE = 256 };
    const struct pair_job *j = ctx;
    const struct gate_pair *p = j->of;
    enum dtype t = j->m->dtype;
    size_t size = j->m->size;
    float g[PIECE], u[PIECE];

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        for (int64_t i = 0; i < p->n; i += PIECE) {
            int64_t n = p->n - i < PIECE ? p->n - i : PIECE;

            if (!to_f32(g, (const char *)p->g + (size_t)(r * p->ldg + i) * size,
                        t, (size_t)n) ||
                !to_f32(u, (const char *)p->u + (size_t)(r * p->ldu + i) * size,
                        t, (size_t)n))
                return; /* not with a float's dtype */
            gate(j->m, g, u, NULL, NULL, n,
                 (char *)p->out + (size_t)(r * p->n + i) * size);
        }
}

int gate_pair(const struct model *m, const struct gate_pair *p, struct err *e)
{
    struct pair_job j = { m, p };

    if (m->on)
        return device_pair(m, p, e);
    threads_for((size_t)p->rows, 8, gate_pair_rows, &j);
    return 0;
}
