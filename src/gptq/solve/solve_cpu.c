/* solve_cpu.c - see solve.h: the solver on the CPU, tiles of rows over threads.
 *
 * Blocks of columns are walked from the last to the first.  The error feedback
 * onto a block is one product of the tile's displacements d = w - q with the
 * factor, in pieces that stay in the caches. */
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "gptq/solve/cpu_tile.h"
#include "gptq/solve/round_nearest.h"
#include "gptq/solve/split.h"

enum {
    ROWS = SOLVE_ROWS,
    COLS = FACTOR_PANEL,
    DEPTH = 128 /* earlier inputs in one piece of the error feedback */
};

/* ---- products with the factor ---- */

/* See solve_backend.build. */
static int build(struct factor **f, const struct factor_params *p,
                 const float *h, struct err *e)
{
    int rc = factor_build(f, p, h, e);

    if (rc || !split_is_there() || (*f)->padded % SPLIT_DEPTH)
        return rc;
    factor_split(*f, CPU_BLOCK);
    return 0;
}

/* Software prefetch: while column c of panel q is multiplied, request a share
 * of the next panel's displacements and of the factor's next piece.  These
 * streams are too short for the hardware prefetcher. */
static void prefetch(const struct cpu_tile *t, uint64_t q, uint64_t k,
                     uint64_t i, uint64_t n, const float *l)
{
    uint64_t d_lines = DEPTH * ROWS / 16, l_lines = DEPTH * COLS / 16;
    bool last = q + 1 == t->panels;
    uint64_t next = last ? k + DEPTH : k;
    const float *d = cpu_tile_at(t, last ? 0 : q + 1, next);

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
static void finish_columns(struct cpu_tile *t, uint64_t q, uint64_t c0,
                           uint64_t c1)
{
    float x[SPLIT_DEPTH * ROWS];

    for (uint64_t c = c0; t->j->f->split && c < c1; c += SPLIT_DEPTH) {
        memcpy(x, cpu_tile_at(t, q, c), sizeof(x));
        split_left((uint16_t *)(void *)cpu_tile_at(t, q, c), x, SPLIT_DEPTH,
                   false);
    }
}

static void push_split(struct cpu_tile *t, uint64_t c0, uint64_t c1)
{
    struct split_sum sum[CPU_TILE_PANELS];
    struct split_part part = { .at = factor_at_row,
                               .of = t->j->f,
                               .c0 = c0,
                               .c1 = c1,
                               .k0 = c1,
                               .k1 = t->padded };

    for (uint64_t q = 0; q < t->panels; q++)
        sum[q] = (struct split_sum){ t->acc + q * CPU_BLOCK * ROWS,
                                     (const void *)cpu_tile_at(t, q, 0),
                                     t->work + q * SPLIT_WORK };
    split_add(sum, (int)t->panels, &part);
}

/* acc = d L, the error feedback from columns c1 and later (quantized before) onto
 * columns c0..c1-1, for all panels of the tile. */
static void push(struct cpu_tile *t, uint64_t c0, uint64_t c1)
{
    const struct factor *f = t->j->f;

    memset(t->acc, 0, t->panels * CPU_BLOCK * ROWS * sizeof(float));
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
                t->j->k->product(t->acc + (q * CPU_BLOCK + c - c0) * ROWS,
                                 cpu_tile_at(t, q, k), l, n);
            }
    }
}

static void solve_panel(struct cpu_tile *t, uint64_t q, uint64_t c, float *acc)
{
    const struct factor *f = t->j->f;
    struct solve_panel s = {
        .acc = acc,
        .l = factor_at_row(f, c, c),
        .d = cpu_tile_at(t, q, c),
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

static void solve_block(struct cpu_tile *t, uint64_t c0, uint64_t c1)
{
    const struct factor *f = t->j->f;

    push(t, c0, c1);
    for (uint64_t q = 0; q < t->panels; q++) {
        for (uint64_t c = c1; c > c0;) {
            float *acc;

            c -= COLS;
            acc = t->acc + (q * CPU_BLOCK + c - c0) * ROWS;
            t->j->k->product(acc, cpu_tile_at(t, q, c + COLS),
                             factor_at_row(f, c, c + COLS), c1 - c - COLS);
            solve_panel(t, q, c, acc);
        }
        finish_columns(t, q, c0, c1);
    }
}

static void clear_losses(struct cpu_tile *t)
{
    memset(t->loss, 0, t->panels * ROWS * sizeof(float));
    memset(t->dist, 0, t->panels * ROWS * sizeof(float));
}

/* Add the f32 sums of a block of columns, less lambda |d|², to the double sums
 * of the rows in `to`, and clear them. */
static void gather_losses(struct cpu_tile *t, double *to)
{
    double lambda = t->j->f->lambda;

    for (uint64_t r = 0; r < t->rows; r++)
        to[t->first + r] += t->loss[r] - lambda * t->dist[r];
    clear_losses(t);
}

static void solve_tile(struct cpu_tile *t)
{
    for (uint64_t c1 = t->padded; c1 > 0;) {
        uint64_t c0 = (c1 - 1) / CPU_BLOCK * CPU_BLOCK;

        solve_block(t, c0, c1);
        gather_losses(t, t->j->loss);
        c1 = c0;
    }
}

/* ---- round to nearest ---- */

static void round_tile(struct cpu_tile *t)
{
    const struct factor *f = t->j->f;

    for (uint64_t q = 0; q < t->panels; q++)
        for (uint64_t c = 0; c < f->cols; c++) {
            uint64_t g = f->input[c] / t->j->p->group;

            t->j->k->nearest(cpu_tile_at(t, q, c),
                             t->scale + (q * t->groups + g) * ROWS,
                             t->zero + (q * t->groups + g) * ROWS,
                             (float)quant_top(t->j->p->bits),
                             t->codes + (q * t->padded + c) * ROWS);
        }
}

/* The loss |d R|² of the tile's current displacements. */
static void measure_tile(struct cpu_tile *t, double *to)
{
    for (uint64_t c1 = t->padded, c0; c1 > 0; c1 = c0) {
        c0 = (c1 - 1) / CPU_BLOCK * CPU_BLOCK;
        push(t, c0, c1);
        for (uint64_t q = 0; q < t->panels; q++) {
            for (uint64_t c = c0; c < c1; c++) {
                const float *d = cpu_tile_at(t, q, c);
                float *acc = t->acc + (q * CPU_BLOCK + c - c0) * ROWS;

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

static int load_tile(struct cpu_tile *t, struct err *e)
{
    cpu_tile_load_grids(t);
    clear_losses(t);
    return cpu_tile_load_weights(t, e);
}

/* Round the tile to nearest, and measure it. */
static int run_nearest(struct cpu_tile *t, struct err *e)
{
    if (load_tile(t, e) < 0)
        return e->code;
    round_tile(t);
    measure_tile(t, t->j->nearest);
    return 0;
}

/* The panels in the sample (solve_compare_step()), one by one, before all others
 * are solved: so none of them is the last one. */
static int run_compared(struct cpu_tile *t, struct cpu_job *j, struct err *e)
{
    bool wanted = j->p->compare && !j->p->nearest;
    uint64_t n = wanted ? solve_compared_tiles(j->p) : 0;

    for (size_t i; (i = atomic_fetch_add(&j->compared, 1)) < n;) {
        cpu_tile_take(t, solve_tile_order(j->p, i), 1);
        if (run_nearest(t, e) < 0)
            return e->code;
    }
    return 0;
}

/* ---- tiles over threads ---- */

static int run_tile(struct cpu_tile *t, struct err *e)
{
    bool nearest = t->j->p->nearest;

    if ((nearest ? run_nearest(t, e) : load_tile(t, e)) < 0)
        return e->code;
    if (!nearest)
        solve_tile(t);
    cpu_tile_store_codes(t);
    return 0;
}

/* A thread's part of the loop.  Rows are independent, so codes do not depend on the
 * tiling. */
static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct cpu_job *j = ctx;
    size_t first, n = threads_take(&j->panels, &first);
    struct cpu_tile t;
    struct err e;
    int rc;

    (void)begin, (void)end;
    if (!n)
        return;
    rc = cpu_tile_open(&t, j, &e);
    if (!rc)
        rc = run_compared(&t, j, &e);
    for (; !rc && n; n = threads_take(&j->panels, &first)) {
        cpu_tile_take(&t, first, n);
        rc = run_tile(&t, &e);
    }
    if (rc < 0)
        threads_error_add(&j->error, t.first, &e);
    cpu_tile_close(&t);
}

static int run_factor(struct cpu_job *j, struct solve_result *r, struct err *e)
{
    const struct solve_params *p = j->p;
    uint32_t *where = mem_alloc(p->cols * sizeof(*where), "solve", e);

    j->loss = where ? mem_zero(2 * p->rows, sizeof(double), "solve", e) : NULL;
    if (!j->loss) {
        free(where);
        return e->code;
    }
    j->nearest = j->loss + p->rows;
    j->where = where;
    for (uint64_t c = 0; c < p->cols; c++)
        where[j->f->input[c]] = (uint32_t)c;
    j->k = solve_kernels_best();
    j->transpose = lanes_transpose_best();
    j->panels.n = (p->rows + ROWS - 1) / ROWS;
    j->panels.most = CPU_TILE_PANELS;
    threads_for((size_t)threads_count(), 1, run_tiles, j);
    r->loss = solve_loss_sum(p->nearest ? j->nearest : j->loss, p->rows);
    r->loss_nearest =
        p->nearest ? r->loss : solve_compare_sum(p, j->loss, j->nearest);
    solve_tile_losses(p, LOSS_CODES, p->nearest ? j->nearest : j->loss);
    solve_tile_losses(p, LOSS_NEAREST, j->nearest);
    free(where);
    free(j->loss);
    return 0;
}

static int run(const struct solve_params *p, const void *w,
               const uint32_t *meta, const struct factor *f, uint8_t *codes,
               struct solve_result *r, struct err *e)
{
    struct cpu_job j = { .p = p, .f = f, .w = w, .meta = meta, .codes = codes };
    int rc;

    *r = (struct solve_result){ 0, 0 };
    if (!f)
        return round_nearest(p, w, meta, codes, e);
    threads_error_init(&j.error);
    rc = run_factor(&j, r, e);
    return threads_error_take(&j.error, e) < 0 ? e->code : rc;
}

const struct solve_backend solve_cpu = { .name = "cpu",
                                         .build = build,
                                         .run = run };
