/* solve_cpu.c - see solve.h: the solver on the CPU, tiles of rows over threads.
 *
 * A tile is up to TILE_PANELS panels of 48 rows, transposed: the 48 values of
 * an input lie together, inputs in the factor's order.  Blocks of columns are
 * walked from the last to the first.  The error feedback onto a block is one
 * product of the tile's displacements d = w - q with the factor, in pieces that
 * stay in the caches. */
#include "gptq/solve/solve.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/lanes.h"
#include "common/math/quant.h"
#include "common/math/row.h"
#include "common/math/threads.h"
#include "gptq/solve/round_nearest.h"
#include "gptq/solve/solve_kernel.h"
#include "gptq/solve/split.h"

enum {
    ROWS = SOLVE_ROWS,
    COLS = FACTOR_PANEL,
    TILE_PANELS = 8, /* at most */
    STRIP = LANES,   /* rows that are transposed together */
    BLOCK = 256,     /* columns that share one product of error feedback */
    DEPTH = 128      /* earlier inputs in one piece of that product */
};

struct job {
    const struct solve_params *p;
    const struct factor *f;
    const struct solve_kernels *k;
    lanes_transpose_fn *transpose;
    const void *w;
    const uint32_t *meta;
    uint8_t *codes;
    double *loss, *nearest; /* [rows] */
    const uint32_t *where;  /* [cols]: input -> column of the factor */
    uint64_t panels, tiles; /* numbers, of all rows */
    pthread_mutex_t lock;
    void **spare; /* [n_spare]: memory of finished tiles, to be used again */
    int n_spare;
    struct threads_error error; /* of the smallest row */
};

/* A tile; one allocation. */
struct tile {
    const struct job *j;
    uint64_t first, rows, panels, padded, groups;
    float *d;   /* [panels][padded][48]; split: of blocks that are solved
                          * the left side instead */
    float *acc; /* [panels][BLOCK][48] */
    float *scale, *zero; /* [panels][groups][48] */
    float *loss, *dist;  /* [panels][48] */
    float *work;         /* split: [panels][SPLIT_WORK] */
    float *strip;        /* [STRIP][ld] */
    float *transposed;   /* [ld][STRIP] */
    uint8_t *codes;      /* [panels][padded][48] */
    uint8_t *stored;     /* [ld][STRIP]: bytes of codes as they are stored */
    uint64_t ld;         /* row stride; never a power of two */
    void *memory;
};

/* Memory of a finished tile (its pages are resident), or new memory. */
static void *tile_memory(struct job *j, size_t bytes, struct err *e)
{
    void *m = NULL;

    pthread_mutex_lock(&j->lock);
    if (j->n_spare)
        m = j->spare[--j->n_spare];
    pthread_mutex_unlock(&j->lock);
    return m ? m : mem_pages(bytes, "solve", e);
}

static void tile_close(struct job *j, struct tile *t)
{
    if (!t->memory)
        return;
    pthread_mutex_lock(&j->lock);
    j->spare[j->n_spare++] = t->memory; /* at most one a thread */
    pthread_mutex_unlock(&j->lock);
}

static int tile_open(struct tile *t, struct job *j, uint64_t index,
                     struct err *e)
{
    uint64_t cols = j->p->cols, most = (j->panels + j->tiles - 1) / j->tiles;
    uint64_t begin = j->panels * index / j->tiles;
    uint64_t n_panel, n_grid, n_work = j->f->split ? SPLIT_WORK : 0;

    t->j = j;
    t->panels = j->panels * (index + 1) / j->tiles - begin;
    t->first = begin * ROWS;
    t->rows = t->panels * ROWS;
    if (t->first + t->rows > j->p->rows)
        t->rows = j->p->rows - t->first;
    t->padded = j->f->padded;
    t->groups = quant_groups(cols, j->p->group);
    t->ld = (cols + 31) / 16 * 16;
    n_panel = t->padded * ROWS;
    n_grid = t->groups * ROWS;
    t->memory = tile_memory(
        j,
        most * (n_panel * (sizeof(float) + 1) +
                ((BLOCK + 2) * ROWS + 2 * n_grid + n_work) * sizeof(float)) +
            STRIP * t->ld * (2 * sizeof(float) + 1),
        e);
    if (!t->memory)
        return e->code;
    t->d = t->memory;
    t->work = t->d + most * n_panel;
    t->acc = t->work + most * n_work;
    t->loss = t->acc + most * BLOCK * ROWS;
    t->dist = t->loss + most * ROWS;
    t->scale = t->dist + most * ROWS;
    t->zero = t->scale + most * n_grid;
    t->strip = t->zero + most * n_grid;
    t->transposed = t->strip + STRIP * t->ld;
    t->codes = (uint8_t *)(t->transposed + STRIP * t->ld);
    t->stored = t->codes + most * n_panel;
    return 0;
}

/* Address of panel q's displacements of column c. */
static float *at(const struct tile *t, uint64_t q, uint64_t c)
{
    return t->d + (q * t->padded + c) * ROWS;
}

/* ---- in and out of the transposed form ---- */

static void load_grids(struct tile *t)
{
    const struct job *j = t->j;

    for (uint64_t r = 0; r < t->panels * ROWS; r++)
        for (uint64_t g = 0; g < t->groups; g++) {
            uint64_t to = (r / ROWS * t->groups + g) * ROWS + r % ROWS;
            struct qgrid q = { 1, 8, 15 };

            if (r < t->rows)
                q = quant_grid(j->meta[(t->first + r) * t->groups + g],
                               j->p->scale_dtype);
            t->scale[to] = q.scale;
            t->zero[to] = (float)q.zero;
        }
}

/* x[t->ld] = row r of W as f32, padded by zeros; zeros beyond the last row. */
static int load_row(const struct tile *t, float *x, uint64_t r, struct err *e)
{
    const struct solve_params *p = t->j->p;

    if (r >= t->rows) {
        memset(x, 0, t->ld * sizeof(*x));
        return 0;
    }
    memset(x + p->cols, 0, (t->ld - p->cols) * sizeof(*x));
    return row_load(x, t->j->w, p->dtype, p->cols, t->first + r, 0, p->cols, e);
}

/* Transpose the strip's rows, and write the inputs in the factor's order. */
static void transpose_weights(const struct tile *t, float *to)
{
    const struct factor *f = t->j->f;
    static const float none[STRIP];

    for (uint64_t i = 0; i < f->cols; i += STRIP) {
        const float *row[STRIP];
        float *column[STRIP];

        for (uint64_t r = 0; r < STRIP; r++) {
            row[r] = t->strip + r * t->ld + i;
            column[r] = t->transposed + (i + r) * STRIP;
        }
        t->j->transpose(column, row);
    }
    for (uint64_t c = 0; c < f->cols; c++, to += ROWS)
        memcpy(to, f->dead[c] ? none : t->transposed + f->input[c] * STRIP,
               sizeof(none));
}

static int load_weights(struct tile *t, struct err *e)
{
    const struct factor *f = t->j->f;
    int rc;

    for (uint64_t q = 0; q < t->panels; q++)
        memset(at(t, q, f->cols), 0,
               (t->padded - f->cols) * ROWS * sizeof(float));
    for (uint64_t r0 = 0; r0 < t->panels * ROWS; r0 += STRIP) {
        for (uint64_t r = 0; r < STRIP; r++)
            if ((rc = load_row(t, t->strip + r * t->ld, r0 + r, e)) < 0)
                return rc;
        transpose_weights(t, at(t, r0 / ROWS, 0) + r0 % ROWS);
    }
    return 0;
}

/* stored[cols / 2][STRIP] = STRIP rows of transposed codes, inputs as stored,
 * two inputs a byte; eight: [cols][STRIP], one. */
static void order_codes(uint8_t *stored, const uint8_t *codes,
                        const uint32_t *where, uint64_t cols, bool eight)
{
    for (uint64_t i = 0; i < cols; i += eight ? 1 : 2, stored += STRIP) {
        const uint8_t *low = codes + where[i] * (uint64_t)ROWS;
        const uint8_t *high = codes + where[eight ? i : i + 1] * (uint64_t)ROWS;

        for (int k = 0; k < STRIP; k++)
            stored[k] = (uint8_t)(eight ? low[k] : low[k] | high[k] << 4);
    }
}

static void store_codes(struct tile *t)
{
    const struct solve_params *p = t->j->p;
    uint64_t width = quant_row_bytes(p->cols, p->bits);

    for (uint64_t r0 = 0; r0 < t->rows; r0 += STRIP) {
        const uint8_t *from = t->codes + r0 / ROWS * t->padded * ROWS;
        uint8_t *to = t->j->codes + (t->first + r0) * width;
        uint64_t n = t->rows - r0 < STRIP ? t->rows - r0 : STRIP;

        order_codes(t->stored, from + r0 % ROWS, t->j->where, p->cols,
                    p->bits == 8);
        for (uint64_t i = 0; i < width; i += STRIP) {
            uint64_t most = width - i < STRIP ? width - i : STRIP;
            uint8_t part[STRIP * STRIP];

            lanes_transpose_bytes(part, STRIP, t->stored + i * STRIP);
            for (uint64_t r = 0; r < n; r++)
                memcpy(to + r * width + i, part + r * STRIP, most);
        }
    }
}

/* ---- products with the factor ---- */

/* See solve_backend.build. */
static int build(struct factor **f, const struct factor_params *p,
                 const float *h, struct err *e)
{
    int rc = factor_build(f, p, h, e);

    if (rc || !split_is_there() || (*f)->padded % SPLIT_DEPTH)
        return rc;
    factor_split(*f, BLOCK);
    return 0;
}

/* Software prefetch: while column c of panel q is multiplied, request a share
 * of the next panel's displacements and of the factor's next piece.  These
 * streams are too short for the hardware prefetcher. */
static void prefetch(const struct tile *t, uint64_t q, uint64_t k, uint64_t i,
                     uint64_t n, const float *l)
{
    uint64_t d_lines = DEPTH * ROWS / 16, l_lines = DEPTH * COLS / 16;
    bool last = q + 1 == t->panels;
    uint64_t next = last ? k + DEPTH : k;
    const float *d = at(t, last ? 0 : q + 1, next);

    if (next + DEPTH <= t->padded)
        for (uint64_t j = d_lines * i / n; j < d_lines * (i + 1) / n; j++)
            __builtin_prefetch(d + 16 * j, 0, 2);
    if (k + 2 * DEPTH <= t->padded)
        for (uint64_t j = l_lines * q / t->panels;
             j < l_lines * (q + 1) / t->panels; j++)
            __builtin_prefetch(l + DEPTH * COLS + 16 * j, 0, 2);
}

/* Prefetch the start of a piece of the factor: the kernel prefetches only
 * within its piece. */
static void prefetch_start(const struct factor *f, uint64_t k, uint64_t c)
{
    const float *l = factor_at_row(f, c, k);

    for (uint64_t j = 0; j < 24; j++)
        __builtin_prefetch(l + 16 * j);
}

/* Columns c0..c1-1 of panel q are quantized: from now on their displacements are
 * only multiplied, so where the factor is split they become its left side. */
static void finish_columns(struct tile *t, uint64_t q, uint64_t c0, uint64_t c1)
{
    float x[SPLIT_DEPTH * ROWS];

    for (uint64_t c = c0; t->j->f->split && c < c1; c += SPLIT_DEPTH) {
        memcpy(x, at(t, q, c), sizeof(x));
        split_left((uint16_t *)(void *)at(t, q, c), x, SPLIT_DEPTH, false);
    }
}

static void push_split(struct tile *t, uint64_t c0, uint64_t c1)
{
    struct split_sum sum[TILE_PANELS];
    struct split_part part = { .at = factor_at_row,
                               .of = t->j->f,
                               .c0 = c0,
                               .c1 = c1,
                               .k0 = c1,
                               .k1 = t->padded };

    for (uint64_t q = 0; q < t->panels; q++)
        sum[q] = (struct split_sum){ t->acc + q * BLOCK * ROWS,
                                     (const void *)at(t, q, 0),
                                     t->work + q * SPLIT_WORK };
    split_add(sum, (int)t->panels, &part);
}

/* acc = d L, the error feedback from columns c1 and later (quantized before) onto
 * columns c0..c1-1, for all panels of the tile. */
static void push(struct tile *t, uint64_t c0, uint64_t c1)
{
    const struct factor *f = t->j->f;

    memset(t->acc, 0, t->panels * BLOCK * ROWS * sizeof(float));
    if (t->j->f->split) {
        push_split(t, c0, c1);
        return;
    }
    for (uint64_t k = c1; k < t->padded; k += DEPTH) {
        uint64_t n = t->padded - k < DEPTH ? t->padded - k : DEPTH;

        for (uint64_t q = 0; q < t->panels; q++)
            for (uint64_t c = c0; c < c1; c += COLS) {
                const float *l = factor_at_row(f, c, k);

                prefetch(t, q, k, (c - c0) / COLS, (c1 - c0) / COLS, l);
                prefetch_start(f, k, c + COLS < c1 ? c + COLS : c0);
                t->j->k->product(t->acc + (q * BLOCK + c - c0) * ROWS,
                                 at(t, q, k), l, n);
            }
    }
}

static void solve_panel(struct tile *t, uint64_t q, uint64_t c, float *acc)
{
    const struct factor *f = t->j->f;
    struct solve_panel s = {
        .acc = acc,
        .l = factor_at_row(f, c, c),
        .d = at(t, q, c),
        .codes = t->codes + (q * t->padded + c) * ROWS,
        .loss = t->loss + q * ROWS,
        .dist = t->dist + q * ROWS,
        .top = (float)quant_top(t->j->p->bits),
    };

    for (uint64_t i = 0; i < COLS; i++) {
        uint64_t input = c + i < f->cols ? f->input[c + i] : 0;
        uint64_t g = (q * t->groups + input / t->j->p->group) * ROWS;

        s.scale[i] = t->scale + g;
        s.zero[i] = t->zero + g;
    }
    t->j->k->panel(&s);
}

static void solve_block(struct tile *t, uint64_t c0, uint64_t c1)
{
    const struct factor *f = t->j->f;

    push(t, c0, c1);
    for (uint64_t q = 0; q < t->panels; q++) {
        for (uint64_t c = c1; c > c0;) {
            float *acc;

            c -= COLS;
            acc = t->acc + (q * BLOCK + c - c0) * ROWS;
            t->j->k->product(acc, at(t, q, c + COLS),
                             factor_at_row(f, c, c + COLS), c1 - c - COLS);
            solve_panel(t, q, c, acc);
        }
        finish_columns(t, q, c0, c1);
    }
}

static void clear_losses(struct tile *t)
{
    memset(t->loss, 0, t->panels * ROWS * sizeof(float));
    memset(t->dist, 0, t->panels * ROWS * sizeof(float));
}

/* Add the f32 sums of a block of columns, less lambda |d|², to the double sums
 * of the rows in `to`, and clear them. */
static void gather_losses(struct tile *t, double *to)
{
    double lambda = t->j->f->lambda;

    for (uint64_t r = 0; r < t->rows; r++)
        to[t->first + r] += t->loss[r] - lambda * t->dist[r];
    clear_losses(t);
}

static void solve_tile(struct tile *t)
{
    for (uint64_t c1 = t->padded; c1 > 0;) {
        uint64_t c0 = (c1 - 1) / BLOCK * BLOCK;

        solve_block(t, c0, c1);
        gather_losses(t, t->j->loss);
        c1 = c0;
    }
}

/* ---- round to nearest ---- */

static void round_tile(struct tile *t)
{
    const struct factor *f = t->j->f;

    for (uint64_t q = 0; q < t->panels; q++)
        for (uint64_t c = 0; c < f->cols; c++) {
            uint64_t g = f->input[c] / t->j->p->group;

            t->j->k->nearest(at(t, q, c), t->scale + (q * t->groups + g) * ROWS,
                             t->zero + (q * t->groups + g) * ROWS,
                             (float)quant_top(t->j->p->bits),
                             t->codes + (q * t->padded + c) * ROWS);
        }
}

/* The loss |d R|² of the tile's current displacements. */
static void measure_tile(struct tile *t, double *to)
{
    for (uint64_t c1 = t->padded, c0; c1 > 0; c1 = c0) {
        c0 = (c1 - 1) / BLOCK * BLOCK;
        push(t, c0, c1);
        for (uint64_t q = 0; q < t->panels; q++) {
            for (uint64_t c = c0; c < c1; c++) {
                const float *d = at(t, q, c);
                float *acc = t->acc + (q * BLOCK + c - c0) * ROWS;

                if (c % COLS == 0)
                    t->j->k->product(acc, d, factor_at_row(t->j->f, c, c),
                                     c1 - c);
                for (int r = 0; r < ROWS; r++) {
                    t->loss[q * ROWS + r] += acc[r] * acc[r];
                    t->dist[q * ROWS + r] += d[r] * d[r];
                }
            }
            finish_columns(t, q, c0, c1);
        }
        gather_losses(t, to);
    }
}

/* A view of panel q as a tile of one panel. */
static struct tile panel_of(const struct tile *t, uint64_t q)
{
    struct tile one = *t;

    one.first += q * ROWS;
    one.rows = t->rows - q * ROWS < ROWS ? t->rows - q * ROWS : ROWS;
    one.panels = 1;
    one.d = at(t, q, 0);
    one.scale += q * t->groups * ROWS;
    one.zero += q * t->groups * ROWS;
    one.codes += q * t->padded * ROWS;
    return one;
}

/* Round to nearest those panels of the tile that are in the sample
 * (solve_compare_step()); true when there are any. */
static bool compare_panels(const struct tile *t)
{
    uint64_t step = solve_compare_step(t->j->p->rows);
    bool any = false;

    for (uint64_t q = 0; q < t->panels; q++) {
        struct tile one = panel_of(t, q);

        if ((t->first / ROWS + q) % step)
            continue;
        round_tile(&one);
        measure_tile(&one, t->j->nearest);
        any = true;
    }
    return any;
}

/* ---- tiles over threads ---- */

static int run_tile(struct tile *t, struct err *e)
{
    const struct solve_params *p = t->j->p;
    int rc;

    load_grids(t);
    clear_losses(t);
    if ((rc = load_weights(t, e)) < 0)
        return rc;
    if (p->nearest) {
        round_tile(t);
        measure_tile(t, t->j->nearest);
    } else {
        if (p->compare && compare_panels(t) && (rc = load_weights(t, e)) < 0)
            return rc;
        solve_tile(t);
    }
    store_codes(t);
    return 0;
}

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;

    for (size_t i = begin; i < end; i++) {
        struct tile t = { 0 };
        struct err e;
        int rc = tile_open(&t, j, i, &e);

        if (!rc)
            rc = run_tile(&t, &e);
        tile_close(j, &t);
        if (rc < 0)
            threads_error_add(&j->error, t.first, &e);
    }
}

/* Choose the number of tiles: of nearly equal size, a multiple of the threads.
 * Rows are independent, so codes do not depend on the tiling. */
static void choose_tiles(struct job *j)
{
    uint64_t threads = (uint64_t)threads_count(), n;

    j->panels = (j->p->rows + ROWS - 1) / ROWS;
    n = (j->panels + TILE_PANELS - 1) / TILE_PANELS;
    n = (n + threads - 1) / threads * threads;
    j->tiles = n < j->panels ? n : j->panels;
}

static int run_factor(struct job *j, struct solve_result *r, struct err *e)
{
    const struct solve_params *p = j->p;
    uint32_t *where = mem_alloc(p->cols * sizeof(*where), "solve", e);

    j->loss = where ? mem_zero(2 * p->rows, sizeof(double), "solve", e) : NULL;
    j->spare = j->loss ? mem_zero((size_t)threads_count(), sizeof(*j->spare),
                                  "solve", e) :
                         NULL;
    if (!j->spare) {
        free(where);
        free(j->loss);
        return e->code;
    }
    j->nearest = j->loss + p->rows;
    j->where = where;
    for (uint64_t c = 0; c < p->cols; c++)
        where[j->f->input[c]] = (uint32_t)c;
    j->k = solve_kernels_best();
    j->transpose = lanes_transpose_best();
    choose_tiles(j);
    threads_for(j->tiles, 1, run_tiles, j);
    for (uint64_t i = 0; i < p->rows; i++)
        r->loss += p->nearest ? j->nearest[i] : j->loss[i];
    r->loss_nearest =
        p->nearest ? r->loss : solve_compare_sum(j->loss, j->nearest, p->rows);
    while (j->n_spare)
        free(j->spare[--j->n_spare]);
    free(j->spare);
    free(where);
    free(j->loss);
    return 0;
}

static int run(const struct solve_params *p, const void *w,
               const uint32_t *meta, const struct factor *f, uint8_t *codes,
               struct solve_result *r, struct err *e)
{
    struct job j = { .p = p, .f = f, .w = w, .meta = meta, .codes = codes };
    int rc;

    *r = (struct solve_result){ 0, 0 };
    if (!f)
        return round_nearest(p, w, meta, codes, e);
    pthread_mutex_init(&j.lock, NULL);
    threads_error_init(&j.error);
    rc = run_factor(&j, r, e);
    pthread_mutex_destroy(&j.lock);
    return threads_error_take(&j.error, e) < 0 ? e->code : rc;
}

const struct solve_backend solve_cpu = { .name = "cpu",
                                         .build = build,
                                         .run = run };
