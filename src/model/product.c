/* product.c - y = x W^T, and what follows it while the sums are in cache.
 *
 * Tiles go over threads.  In bf16, where the CPU multiplies it, sums of a few
 * rows are made by bf16_gemm.h from weights packed when they were loaded, else
 * those of a tile by oneDNN; from the thread's scratch they are rounded, added
 * or gated, so that f32 results never travel through memory. */
#include <stdatomic.h>
#include <stdlib.h>

#include "common/bf16_gemm.h"
#include "common/onednn.h"
#include "common/threads.h"
#include "model/internal.h"
#include "model/scratch.h"

enum {
    TILE_ROWS = 240,  /* whole parts */
    PART_ROWS = 48,   /* whole steps of our kernel: what a thread takes */
    TILE_STEPS = 256, /* oneDNN's: x has whole steps of ROW_STEP behind it */
    TILE_COLS = 512,  /* at most */
    TILE_WEIGHTS = 1 << 18 /* elements that stay in the second-level cache */
};

_Static_assert(TILE_STEPS % ROW_STEP == 0, "tiles begin at whole steps");
_Static_assert(PART_ROWS % GEMM_ROWS == 0, "parts begin at whole steps");

struct job {
    const struct product *p;
    int64_t rows, cols; /* of a tile */
    int64_t across;     /* tiles beside each other */
    int64_t parts;      /* of a tile, one below the other */
    bool packed;
    struct threads_error error; /* by tile */
};

/* ---- weights ---- */

bool product_packs(const struct model *m, int64_t cols)
{
    return m->bf16 && bf16_gemm_usable(cols);
}

struct packing {
    uint16_t *w;
    int64_t rows, cols;
    atomic_bool failed;
};

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    struct packing *j = ctx;
    struct err e;
    size_t bytes = (size_t)(GEMM_COLS * j->cols) * sizeof(uint16_t);
    uint16_t *room = scratch_thread(bytes, &e);

    if (room)
        bf16_gemm_pack(j->w, j->rows, j->cols, (int64_t)begin, (int64_t)end,
                       room);
    else
        atomic_store(&j->failed, true);
}

int product_pack(const struct model *m, int64_t rows, int64_t cols, void **w,
                 struct err *e)
{
    struct packing j = { .rows = rows, .cols = cols };
    size_t bytes = bf16_gemm_packed(rows, cols) * sizeof(uint16_t);

    if (!product_packs(m, cols))
        return 0;
    if (rows % GEMM_COLS && mem_grow(w, bytes, "weights", e) < 0)
        return e->code;
    j.w = *w;
    threads_for((size_t)((rows + GEMM_COLS - 1) / GEMM_COLS), 2, pack_panels,
                &j);
    return j.failed ? err_set(e, E_TEMP, "weights: out of memory") : 0;
}

/* ---- tiles ---- */

/* sums[m, ld] = x[i.., k] * w[o.., k]^T, n columns */
static int multiply(const struct job *j, const struct loaded *l, int64_t i,
                    int64_t m, int64_t o, int64_t n, float *sums, int64_t ld,
                    struct err *e)
{
    const struct product *p = j->p;
    int64_t k = l->of.cols;

    if (!p->m->bf16)
        return onednn_f32_nt(m, n, k, (const float *)p->x + i * k, k,
                             (const float *)l->w + o * k, sums, ld, e);
    if (!j->packed)
        return onednn_bf16_nt(m, n, k, (const uint16_t *)p->x + i * k, k,
                              (const uint16_t *)l->w + o * k, sums, ld, e);
    bf16_gemm(&(struct bf16_gemm){ .x = (const uint16_t *)p->x + i * k,
                                   .ldx = k,
                                   .m = m,
                                   .k = k,
                                   .packed = l->w,
                                   .first = o,
                                   .n = n,
                                   .y = sums,
                                   .ldy = ld });
    return 0;
}

static const float *bias_at(const struct loaded *l, int64_t o)
{
    return l->bias ? l->bias + o : NULL;
}

/* Row r of the tile, from column o on, out of its sums. */
static void finish_row(const struct product *p, int64_t r, int64_t o, int64_t n,
                       const float *y, const float *u)
{
    const struct kernels *k = p->m->k;
    const float *b = bias_at(p->first, o);
    int64_t at = r * p->first->of.rows + o;
    uint16_t *h = (uint16_t *)p->out + at;
    float *f = (float *)p->out + at;

    if (p->second && p->m->bf16)
        k->gate_bf16(y, u, b, bias_at(p->second, o), n, h);
    else if (p->second)
        k->gate_f32(y, u, b, bias_at(p->second, o), n, f);
    else if (p->add && p->m->bf16)
        k->add_bf16(y, b, n, h);
    else if (p->add)
        k->add_f32(y, b, n, f);
    else if (p->m->bf16)
        k->store_bf16(y, b, n, h);
    else
        k->store_f32(y, b, n, f);
}

/* m rows from i on, n columns from o on; y: room for their sums. */
static int run_rows(const struct job *j, int64_t i, int64_t m, int64_t o,
                    int64_t n, float *y, struct err *e)
{
    const struct product *p = j->p;
    int64_t ld = p->second ? 2 * n : n, all = j->packed ? m : model_rows(m);

    if (multiply(j, p->first, i, all, o, n, y, ld, e) < 0)
        return e->code;
    if (p->second && multiply(j, p->second, i, all, o, n, y + n, ld, e) < 0)
        return e->code;
    for (int64_t r = 0; r < m; r++)
        finish_row(p, i + r, o, n, y + r * ld, y + r * ld + n);
    return 0;
}

static int run_tile(const struct job *j, int64_t i, int64_t o, struct err *e)
{
    const struct product *p = j->p;
    int64_t rows = j->rows / j->parts, m;
    int64_t end = i + rows < p->rows ? i + rows : p->rows;
    int64_t n = p->first->of.rows - o, step = j->packed ? GEMM_ROWS : j->rows;
    float *y = scratch_thread(sizeof(float) * TILE_STEPS * TILE_COLS, e);

    if (!y)
        return e->code;
    n = n < j->cols ? n : j->cols;
    for (; i < end; i += m) {
        m = end - i < step ? end - i : step;
        if (run_rows(j, i, m, o, n, y, e) < 0)
            return e->code;
    }
    return 0;
}

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;

    for (size_t t = begin; t < end; t++) {
        int64_t tile = (int64_t)t / j->parts, part = (int64_t)t % j->parts;
        int64_t i = tile / j->across * j->rows + part * (j->rows / j->parts);
        int64_t o = tile % j->across * j->cols;
        struct err e;

        if (run_tile(j, i, o, &e) < 0)
            threads_error_add(&j->error, t, &e);
    }
}

/* Equal tiles as wide as the caches allow, and enough of them. */
static void choose_tiles(struct job *j, int64_t down)
{
    const struct linear *l = &j->p->first->of;
    int64_t most = TILE_WEIGHTS / l->cols, threads = threads_count();

    most = most < TILE_COLS ? most : TILE_COLS;
    if (j->p->second)
        most /= 2;
    j->across = most > GEMM_COLS ? (l->rows + most - 1) / most :
                                   (l->rows + GEMM_COLS - 1) / GEMM_COLS;
    if (down * j->across < 2 * threads)
        j->across = (2 * threads + down - 1) / down;
    j->cols = (l->rows + j->across - 1) / j->across;
    j->cols = (j->cols + GEMM_COLS - 1) / GEMM_COLS * GEMM_COLS;
    j->across = (l->rows + j->cols - 1) / j->cols;
}

int product_run(const struct product *p, struct err *e)
{
    struct job j = { .p = p, .packed = product_packs(p->m, p->first->of.cols) };
    int64_t down;

    j.rows = j.packed ? TILE_ROWS : TILE_STEPS;
    j.parts = j.packed ? TILE_ROWS / PART_ROWS : 1;
    down = (p->rows + j.rows - 1) / j.rows;
    choose_tiles(&j, down);
    threads_error_init(&j.error);
    threads_for((size_t)(down * j.across * j.parts), 1, run_tiles, &j);
    return threads_error_take(&j.error, e);
}

/* ---- sums alone ---- */

static void run_sums(void *ctx, size_t begin, size_t end)
{
    const struct bf16_gemm *g = ctx;

    for (size_t t = begin; t < end; t++) {
        struct bf16_gemm part = *g;
        int64_t o = (int64_t)t * TILE_COLS;

        part.first += o;
        part.n = g->n - o < TILE_COLS ? g->n - o : TILE_COLS;
        part.y += o;
        bf16_gemm(&part);
    }
}

int product_sums(const struct model *m, const void *x, int64_t rows,
                 const void *w, int64_t first, int64_t n, int64_t k, float *y,
                 int64_t ld, struct err *e)
{
    struct bf16_gemm g = { x, k, rows, k, w, first, n, y, ld };

    if (!m->bf16)
        return onednn_f32_nt(rows, n, k, x, k, (const float *)w + first * k, y,
                             ld, e);
    if (!product_packs(m, k))
        return onednn_bf16_nt(rows, n, k, x, k, (const uint16_t *)w + first * k,
                              y, ld, e);
    threads_for((size_t)((n + TILE_COLS - 1) / TILE_COLS), 1, run_sums, &g);
    return 0;
}
