/* product.c - see internal.h: y = x W^T with bias, addition or gating, of up to
 * PRODUCTS_MOST weights at a time.
 *
 * Tiles are distributed to threads, column by column, so that concurrent tiles
 * share their part of W and it is read from memory once.  The f32 sums of a
 * tile are computed by bf16_gemm.h from packed weights, by blas.h in f32 mode,
 * or by w4a16.h for 4-bit linears, into the thread's scratch memory; there
 * they are rounded, added or gated, so that f32 sums stay in the cache. */
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
    int64_t tiles; /* number of tiles of the jobs before it */
    int64_t step;  /* rows whose sums are computed, then finished, at a time */
    struct w4_x x[2];       /* x for the 4-bit linears first and second */
    const uint16_t *strips; /* x packed; NULL: it is read as it is */
    size_t room;            /* work memory of a 4-bit tile */
};

/* Products of the same x. */
struct jobs {
    struct job of[PRODUCTS_MOST];
    int n;
    struct threads_error error; /* by tile */
};

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
        product_finish(p, t.i + r, t.o, t.n, y + r * t.ld, y + r * t.ld + t.n);
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

/* Tile number n of the job. */
static int run_number(const struct job *j, int64_t n, struct err *e)
{
    int64_t down = j->down, rows = j->rows, o = 0;

    if (j->late && n >= j->late) {
        o = j->late / down * j->cols;
        n -= j->late;
        down = j->late_down;
        rows = j->late_rows;
    }
    o += n / down * j->cols;
    return run_tile(j, n % down * rows, rows, o, e);
}

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct jobs *all = ctx;
    int i = 0;

    for (size_t t = begin; t < end; t++) {
        struct err e;

        while (i + 1 < all->n && all->of[i + 1].tiles <= (int64_t)t)
            i++;
        if (run_number(&all->of[i], (int64_t)t - all->of[i].tiles, &e) < 0)
            threads_error_add(&all->error, t, &e);
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

/* x in the form of 4-bit products; *is: one that has it already, or NULL. */
static int prepare_x(struct job *j, const struct w4_x **is, struct err *e)
{
    const struct product *p = j->p;
    const struct loaded *l[2] = { p->first, p->second };

    for (int i = 0; i < 2; i++) {
        if (!l[i] || !l[i]->q)
            continue;
        if (!(*is && w4_x_share(&j->x[i], *is, l[i]->q)) &&
            w4_x_prepare(&j->x[i], l[i]->q, p->x, p->m->dtype, l[i]->of.cols,
                         p->rows, e) < 0)
            return e->code;
        *is = &j->x[i];
    }
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

/* Whether tiles would else copy rows of x more than once. */
static bool takes_strips(const struct product *p)
{
    int64_t cols = p->first->of.rows * (p->second ? 2 : 1);

    return p->m->bf16 && !few_bits(p) && bf16_gemm_strips() &&
           cols > bf16_kernel()->tile_cols;
}

/* In memory of scratch_strips(). */
static int make_strips(const struct product *p, const uint16_t **strips,
                       struct err *e)
{
    int64_t k = p->first->of.cols;
    size_t n = bf16_gemm_strips_packed(p->rows, k);
    uint16_t *to = scratch_strips(n * sizeof(*to), e);

    if (!to)
        return e->code;
    bf16_gemm_pack_strips(to, p->x, k, p->rows, k);
    *strips = to;
    return 0;
}

/* Add a job; returns the number of its tiles.  is: see prepare_x(). */
static int64_t add_job(struct jobs *all, const struct product *p,
                       const uint16_t *strips, const struct w4_x **is,
                       struct err *e)
{
    struct job *j = &all->of[all->n++];

    j->p = p;
    if (!few_bits(p)) {
        j->strips = strips;
        return choose_tiles(j);
    }
    return prepare_x(j, is, e) < 0 ? e->code : choose_w4_tiles(j);
}

static int run_part(const struct product *p, int n, bool packs, struct err *e)
{
    struct jobs all = { .n = 0 };
    const uint16_t *strips = NULL;
    const struct w4_x *is = NULL;
    int64_t tiles = 0, more = 0;
    int rc = packs ? make_strips(p, &strips, e) : 0;

    for (int i = 0; i < n && rc == 0; i++) {
        all.of[i].tiles = tiles;
        more = add_job(&all, p + i, strips, &is, e);
        rc = more < 0 ? e->code : 0;
        tiles += more;
    }
    if (rc == 0) {
        threads_error_init(&all.error);
        threads_for((size_t)tiles, 1, run_tiles, &all);
        rc = threads_error_take(&all.error, e);
    }
    for (int i = 0; i < all.n; i++) {
        w4_x_release(&all.of[i].x[0]);
        w4_x_release(&all.of[i].x[1]);
    }
    return rc;
}

/* ---- all rows ---- */

/* All rows, PACKED_ROWS at a time if x is packed. */
static int run_host(const struct product *p, int n, struct err *e)
{
    struct product part[PRODUCTS_MOST];
    bool packs = false;
    int64_t most;

    for (int i = 0; i < n; i++)
        packs = takes_strips(p + i) || packs;
    most = packs ? PACKED_ROWS : p->rows;
    for (int64_t r = 0; r < p->rows; r += most) {
        for (int i = 0; i < n; i++) {
            const struct linear *l = &p[i].first->of;
            size_t size = (size_t)r * p->m->size;

            part[i] = p[i];
            part[i].x = (const char *)p->x + size * (size_t)l->cols;
            part[i].out = (char *)p[i].out + size * (size_t)l->rows;
            part[i].rows = p->rows - r < most ? p->rows - r : most;
        }
        if (run_part(part, n, packs, e) < 0)
            return e->code;
    }
    return 0;
}

int products_run(const struct product *p, int n, struct err *e)
{
    const struct model *m = p->m;
    bool apart = m->on || (!m->bf16 && rounded(p->rows)), words = true;
    int rc = 0;

    for (int i = 0; i < n; i++)
        words = words && p[i].first->q && (!p[i].second || p[i].second->q);
    if (apart && n > 1)
        for (int i = 0; i < n && rc == 0; i++)
            rc = product_run(p + i, e);
    else if (m->on)
        rc = device_product(p, e);
    else if (apart && !few_bits(p))
        rc = product_rounded(p, e);
    else if (words && p->rows > 0 && p->rows <= W4_FEW)
        rc = product_few(p, n, e);
    else
        rc = run_host(p, n, e);
    return rc;
}

int product_run(const struct product *p, struct err *e)
{
    return products_run(p, 1, e);
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
