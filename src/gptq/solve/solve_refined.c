/* solve_refined.c - see solve_refined.h: tiles of 48 rows over threads. */
#include "gptq/solve/solve_refined.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "common/math/row.h"
#include "common/math/threads.h"
#include "device/device.h"
#include "gptq/solve/refine.h"
#include "gptq/solve/solve_table.h"

enum { ROWS = SOLVE_ROWS };

struct effort_plan effort_plan(enum effort e)
{
    static const struct effort_plan plans[] = {
        [EFFORT_FAST] = { 0 },
        [EFFORT_DEFAULT] = { 1, 8, 5, 1 },
        [EFFORT_BEST] = { 2, 24, 7, 5 },
    };

    return plans[e];
}

/* ---- Hessians ---- */

int refined_open(struct refined_hessian *b, const struct factor_params *p,
                 int starts, const float *h, bool gpu, struct err *e)
{
    int rc = 0;

    *b = (struct refined_hessian){ .starts = starts };
    for (int i = 0; i < starts && !rc; i++) {
        struct factor_params q = *p;

        q.order = refined_order(i);
        rc = gpu ? solve_gpu_whole(&b->factor[i], &q, h, e) :
                   factor_build(&b->factor[i], &q, h, e);
        if (!rc)
            rc = tile_plan_open(&b->plan[i], b->factor[i], &q, h, e);
    }
    if (rc < 0)
        refined_close(b);
    return rc;
}

void refined_close(struct refined_hessian *b)
{
    target_close(&b->target);
    for (int i = 0; i < REFINED_STARTS; i++) {
        tile_plan_close(&b->plan[i]);
        factor_free(b->factor[i]);
    }
    *b = (struct refined_hessian){ .starts = 0 };
}

/* ---- rows ---- */

struct job {
    const struct refined_params *p;
    const struct refined_hessian *b;
    const char *w;
    uint32_t *meta;
    uint8_t *codes;
    double *loss, *nearest, *plain; /* [rows] */
    _Atomic uint64_t kept;          /* rows whose targets stay */
    struct threads_shares tiles;    /* of rows */
    struct threads_error error;     /* by row */
};

/* A thread's working memory, used for one batch of tiles of rows after the other. */
struct bench {
    int n; /* tiles */
    struct tile tile[REFINED_STARTS][TILE_BATCH];
    float *x;        /* [48][cols] */
    uint32_t *where; /* [cols]: the first plan's column of an input */
    uint8_t *code;   /* [cols] */
};

static int bench_open(struct bench *t, const struct job *j, struct err *e)
{
    uint64_t cols = j->p->solve.cols;
    int rc = 0;

    *t = (struct bench){ .n = (int)threads_longest(&j->tiles) };
    t->x = mem_pages(cols * (ROWS * sizeof(float) + sizeof(*t->where) + 1),
                     "solve", e);
    if (!t->x)
        return e->code;
    t->where = (uint32_t *)(t->x + cols * ROWS);
    t->code = (uint8_t *)(t->where + cols);
    for (uint64_t c = 0; c < cols; c++)
        t->where[j->b->factor[0]->input[c]] = (uint32_t)c;
    for (int i = 0; i < j->b->starts; i++)
        for (int k = 0; k < t->n && !rc; k++)
            rc = tile_open(&t->tile[i][k], &j->b->plan[i], e);
    return rc;
}

static void bench_close(struct bench *t)
{
    for (int i = 0; i < REFINED_STARTS; i++)
        for (int k = 0; k < t->n; k++)
            tile_close(&t->tile[i][k]);
    free(t->x);
}

static int load(const struct job *j, float *x, uint64_t row, uint64_t n,
                uint64_t *bad, struct err *e)
{
    const struct solve_params *p = &j->p->solve;

    for (uint64_t r = 0; r < n; r++, x += p->cols) {
        *bad = row + r;
        if (row_load(x, j->w, p->dtype, p->cols, row + r, 0, p->cols, e) < 0)
            return e->code;
    }
    return 0;
}

/* GPTQ over all groups of n tiles; grids NULL: on the grids that are set, else each
 * group's grid is chosen by block_solve().  loss[n][48]: the groups' costs less
 * lambda |d|². */
static void solve_groups(struct tile *s, int n,
                         const struct block_params *grids, double (*loss)[ROWS])
{
    const struct tile_plan *plan = s->plan;

    memset(loss, 0, (size_t)n * sizeof(*loss));
    for (uint64_t i = 0; i < plan->groups; i++) {
        block_push(s, n, &plan->group[i]);
        for (int k = 0; k < n; k++) {
            float cost[ROWS] = { 0 };

            if (grids)
                block_solve(&s[k], &plan->group[i], grids, cost);
            else
                block_quantize(&s[k], &plan->group[i], cost);
            for (uint64_t r = 0; r < ROWS; r++)
                loss[k][r] += cost[r];
        }
    }
    for (int k = 0; k < n; k++)
        for (uint64_t c = 0; c < plan->f->cols; c++)
            for (uint64_t r = 0; r < ROWS; r++) {
                double d = s[k].d[c * ROWS + r];

                loss[k][r] -= plan->f->lambda * d * d;
            }
}

/* Losses of round to nearest and of plain GPTQ on the grids that came with
 * W. */
static void measure_others(struct job *j, struct tile *s, uint64_t row,
                           uint64_t n)
{
    double loss[1][ROWS];

    for (uint64_t g = 0; g < s->plan->groups; g++)
        for (uint64_t r = 0; r < ROWS; r++)
            tile_set_grid(
                s, g, r, j->meta[(row + (r < n ? r : 0)) * s->plan->groups + g],
                j->p->solve.scale_dtype);
    tile_round(s);
    tile_loss(s, loss[0]);
    memcpy(j->nearest + row, loss[0], n * sizeof(**loss));
    tile_restart(s);
    solve_groups(s, 1, NULL, loss);
    memcpy(j->plain + row, loss[0], n * sizeof(**loss));
    tile_restart(s);
}

/* The first row of the tile that is solved i-th. */
static uint64_t row_of(const struct job *j, uint64_t i)
{
    return solve_tile_order(&j->p->solve, i) * ROWS;
}

/* Rows of a tile. */
static uint64_t rows_from(const struct job *j, uint64_t row)
{
    uint64_t left = j->p->solve.rows - row;

    return left < ROWS ? left : ROWS;
}

/* Move the targets of n tiles, from the `first` in order on (target.h). */
static void move_targets(struct job *j, struct tile *s, int n, uint64_t first)
{
    const struct refined_params *p = j->p;
    struct target_way way[TILE_BATCH];
    uint64_t cols = p->solve.cols;

    for (int k = 0; k < n; k++) {
        uint64_t row = row_of(j, first + (uint64_t)k);

        way[k] = (struct target_way){
            .alpha = p->alpha,
            .beta = p->beta,
            .gap = p->gap,
            .bf16 = p->solve.dtype == DT_BF16,
            .output = p->output ? p->output + row * cols : NULL,
            .rows = rows_from(j, row),
        };
    }
    j->kept += target_move(&j->b->target, s, n, way);
}

/* p->target of a tile's rows. */
static void give_targets(struct job *j, const struct tile *s, uint64_t row)
{
    const uint32_t *input = j->b->factor[0]->input;
    uint64_t cols = j->p->solve.cols, n = rows_from(j, row);

    for (uint64_t c = 0; c < cols; c++)
        for (uint64_t r = 0; r < n; r++)
            j->p->target[(row + r) * cols + input[c]] = s->w[c * ROWS + r];
}

/* The same targets in another plan's order. */
static void copy_targets(struct tile *to, const struct tile *from,
                         const uint32_t *where)
{
    const struct factor *f = to->plan->f;

    for (uint64_t c = 0; c < f->cols; c++)
        memcpy(to->w + c * ROWS, from->w + where[f->input[c]] * (uint64_t)ROWS,
               ROWS * sizeof(float));
    memset(to->w + f->cols * ROWS, 0,
           (f->padded - f->cols) * ROWS * sizeof(float));
    to->top = from->top;
    tile_restart(to);
}

static void keep_row(struct job *j, const struct tile *s, uint64_t row,
                     uint64_t r, uint8_t *code)
{
    uint64_t cols = j->p->solve.cols, groups = s->plan->groups;
    int bits = j->p->solve.bits;

    tile_codes(s, r, code);
    quant_pack_row(j->codes + (row + r) * quant_row_bytes(cols, bits), code,
                   cols, bits);
    for (uint64_t g = 0; g < groups; g++)
        j->meta[(row + r) * groups + g] = s->meta[g * ROWS + r];
}

/* n loaded tiles, from the `first` in order on. */
static void solve_batch(struct job *j, struct bench *t, uint64_t first, int n)
{
    double loss[REFINED_STARTS][TILE_BATCH][ROWS];

    if (j->b->target.plan)
        move_targets(j, t->tile[0], n, first);
    for (int k = 0; k < n; k++) {
        struct tile *s = &t->tile[0][k];
        uint64_t row = row_of(j, first + (uint64_t)k);

        if (j->p->target)
            give_targets(j, s, row);
        for (int i = 1; i < j->b->starts; i++)
            copy_targets(&t->tile[i][k], s, t->where);
        if (solve_compared(&j->p->solve, row))
            measure_others(j, s, row, rows_from(j, row));
    }
    for (int i = 0; i < j->b->starts; i++) {
        solve_groups(t->tile[i], n, &j->p->block, loss[i]);
        refine(t->tile[i], n, j->p->sweeps, j->p->solve.scale_dtype, loss[i]);
    }
    for (int k = 0; k < n; k++) {
        uint64_t row = row_of(j, first + (uint64_t)k);

        for (uint64_t r = 0; r < rows_from(j, row); r++) {
            int best = 0;

            for (int i = 1; i < j->b->starts; i++)
                best = loss[i][k][r] < loss[best][k][r] ? i : best;
            keep_row(j, &t->tile[best][k], row, r, t->code);
            j->loss[row + r] = loss[best][k][r];
        }
    }
}

/* A thread's part of the loop. */
static void solve_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    size_t first, n = threads_take(&j->tiles, &first);
    uint64_t bad = 0;
    struct bench t;
    struct err e;
    int rc;

    (void)begin, (void)end;
    if (!n)
        return;
    rc = bench_open(&t, j, &e);
    for (; !rc && n; n = threads_take(&j->tiles, &first)) {
        for (size_t k = 0; k < n && !rc; k++) {
            uint64_t at = row_of(j, first + k), count = rows_from(j, at);

            rc = load(j, t.x, at, count, &bad, &e);
            if (!rc)
                tile_load(&t.tile[0][k], t.x, count, j->p->solve.cols,
                          j->p->solve.bits);
        }
        if (!rc)
            solve_batch(j, &t, first, (int)n);
    }
    if (rc < 0)
        threads_error_add(&j->error, bad, &e);
    bench_close(&t);
}

static int solve_on_gpu(const struct refined_params *p,
                        const struct refined_hessian *b, const void *w,
                        uint32_t *meta, uint8_t *codes,
                        struct refined_result *r, struct err *e)
{
    struct cuda_refined m = { .w = w,
                              .meta = meta,
                              .codes = codes,
                              .output = b->target.plan ? p->output : NULL,
                              .target = p->target,
                              .fisher = p->fisher };
    int rc;

    if (p->solve.bits == 8)
        return err_set(e, E_CONFIG, "the GPU solves codes of 4 bits");
    if (p->solve.of)
        return err_set(e, E_CONFIG, "the GPU solves all rows of a linear");
    rc = solve_functions()->solve_refined(device_gpu(), p, b, &m, 1, e);
    *r = m.result;
    return rc;
}

int refined_solve(const struct refined_params *p,
                  const struct refined_hessian *b, const void *w,
                  uint32_t *meta, uint8_t *codes, struct refined_result *r,
                  struct err *e)
{
    struct job j = { .p = p, .b = b, .w = w, .meta = meta, .codes = codes };
    uint64_t rows = p->solve.rows;

    if (refined_on_gpu(b))
        return solve_on_gpu(p, b, w, meta, codes, r, e);
    *r = (struct refined_result){ .loss_plain = 0 };
    j.loss = mem_zero(3 * rows, sizeof(*j.loss), "solve", e);
    if (!j.loss)
        return e->code;
    j.nearest = j.loss + rows;
    j.plain = j.nearest + rows;
    threads_error_init(&j.error);
    j.tiles.n = (rows + ROWS - 1) / ROWS;
    j.tiles.most = (size_t)tile_batch(&b->plan[0]);
    threads_for((size_t)threads_count(), 1, solve_tiles, &j);
    r->solve.loss = solve_loss_sum(j.loss, rows);
    r->solve.loss_nearest = solve_compare_sum(&p->solve, j.loss, j.nearest);
    r->loss_plain = solve_compare_sum(&p->solve, j.loss, j.plain);
    r->kept = j.kept;
    solve_tile_losses(&p->solve, LOSS_CODES, j.loss);
    solve_tile_losses(&p->solve, LOSS_NEAREST, j.nearest);
    solve_tile_losses(&p->solve, LOSS_PLAIN, j.plain);
    free(j.loss);
    return threads_error_take(&j.error, e);
}
