/* solve_refined.c - see solve_refined.h: tiles of 48 rows over threads. */
#include "gptq/solve/solve_refined.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
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
        [EFFORT_BEST] = { 2, 24, 7, 12 },
    };

    return plans[e];
}

/* ---- Hessians ---- */

int refined_open(struct refined_hessian *b, const struct factor_params *p,
                 int starts, const float *h, bool gpu, struct err *e)
{
    static const enum factor_order orders[REFINED_STARTS] = { ORDER_GROUP,
                                                              ORDER_INSIDE };
    int rc = 0;

    *b = (struct refined_hessian){ .starts = starts };
    for (int i = 0; i < starts && !rc; i++) {
        struct factor_params q = *p;

        q.order = orders[i];
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
    struct threads_error error;     /* by row */
};

/* A thread's working memory, used for one tile of rows after the other. */
struct bench {
    struct tile tile[REFINED_STARTS];
    float *x;      /* [48][cols] */
    uint8_t *code; /* [cols] */
};

static int bench_open(struct bench *t, const struct job *j, struct err *e)
{
    uint64_t cols = j->p->solve.cols;
    int rc = 0;

    *t = (struct bench){ .x = mem_pages(cols * (ROWS * sizeof(float) + 1),
                                        "solve", e) };
    if (!t->x)
        return e->code;
    t->code = (uint8_t *)(t->x + cols * ROWS);
    for (int i = 0; i < j->b->starts && !rc; i++)
        rc = tile_open(&t->tile[i], &j->b->plan[i], e);
    return rc;
}

static void bench_close(struct bench *t)
{
    for (int i = 0; i < REFINED_STARTS; i++)
        tile_close(&t->tile[i]);
    free(t->x);
}

static int load(const struct job *j, float *x, uint64_t row, uint64_t n,
                uint64_t *bad, struct err *e)
{
    const struct solve_params *p = &j->p->solve;
    uint64_t stride = p->cols * dtype_bits(p->dtype) / 8;

    for (uint64_t r = 0; r < n; r++, x += p->cols) {
        *bad = row + r;
        if (!to_f32(x, j->w + (row + r) * stride, p->dtype, p->cols))
            return err_set(e, E_DATA, "%s is no float type",
                           dtype_name(p->dtype));
        if (lanes_finite(x, p->cols))
            continue;
        for (uint64_t i = 0; i < p->cols; i++)
            if (!isfinite(x[i]))
                return err_set(e, E_DATA, "row %llu: input %llu is not finite",
                               (unsigned long long)(row + r),
                               (unsigned long long)i);
    }
    return 0;
}

/* GPTQ over all groups; grids NULL: on the grids that are set, else each
 * group's grid is chosen by block_solve().  loss[48]: the groups' costs less
 * lambda |d|². */
static void solve_groups(struct tile *s, const struct block_params *grids,
                         double *loss)
{
    double lambda = s->plan->f->lambda;

    memset(loss, 0, ROWS * sizeof(*loss));
    for (uint64_t i = 0; i < s->plan->groups; i++) {
        float cost[ROWS] = { 0 };

        if (grids)
            block_solve(s, &s->plan->group[i], grids, cost);
        else
            block_quantize(s, &s->plan->group[i], cost);
        for (uint64_t r = 0; r < ROWS; r++)
            loss[r] += cost[r];
    }
    for (uint64_t c = 0; c < s->plan->f->cols; c++)
        for (uint64_t r = 0; r < ROWS; r++) {
            double d = s->d[c * ROWS + r];

            loss[r] -= lambda * d * d;
        }
}

/* Losses of round to nearest and of plain GPTQ on the grids that came with
 * W. */
static void measure_others(struct job *j, struct tile *s, uint64_t row,
                           uint64_t n)
{
    double loss[ROWS];

    for (uint64_t g = 0; g < s->plan->groups; g++)
        for (uint64_t r = 0; r < ROWS; r++)
            tile_set_grid(
                s, g, r, j->meta[(row + (r < n ? r : 0)) * s->plan->groups + g],
                j->p->solve.scale_dtype);
    tile_round(s);
    tile_loss(s, loss);
    memcpy(j->nearest + row, loss, n * sizeof(*loss));
    tile_restart(s);
    solve_groups(s, NULL, loss);
    memcpy(j->plain + row, loss, n * sizeof(*loss));
    tile_restart(s);
}

/* Move the targets of tile[0] (target.h), and copy them to x when another start
 * or p->target needs them. */
static void move_target(struct job *j, struct bench *t, uint64_t row,
                        uint64_t n)
{
    const struct refined_params *p = j->p;
    const struct factor *f = j->b->factor[0];
    const struct tile *s = &t->tile[0];
    uint64_t cols = p->solve.cols;
    struct target_way way = { .alpha = p->alpha,
                              .beta = p->beta,
                              .gap = p->gap,
                              .output =
                                  p->output ? p->output + row * cols : NULL,
                              .rows = n };

    target_move(&j->b->target, &t->tile[0], &way);
    for (uint64_t c = 0; (j->b->starts > 1 || p->target) && c < cols; c++)
        for (uint64_t r = 0; r < n; r++)
            t->x[r * cols + f->input[c]] = s->w[c * ROWS + r];
}

static void keep_row(struct job *j, const struct tile *s, uint64_t row,
                     uint64_t r, uint8_t *code)
{
    uint64_t cols = j->p->solve.cols, groups = s->plan->groups;

    tile_codes(s, r, code);
    quant_pack_row(j->codes + (row + r) * (cols / 2), code, cols);
    for (uint64_t g = 0; g < groups; g++)
        j->meta[(row + r) * groups + g] = s->meta[g * ROWS + r];
}

static void solve_tile(struct job *j, struct bench *t, uint64_t row, uint64_t n)
{
    double loss[REFINED_STARTS][ROWS];

    for (int i = 0; i < j->b->starts; i++) {
        struct tile *s = &t->tile[i];

        tile_load(s, t->x, n, j->p->solve.cols);
        if (i == 0 && j->b->target.plan)
            move_target(j, t, row, n);
        if (i == 0 && j->p->target)
            memcpy(j->p->target + row * j->p->solve.cols, t->x,
                   n * j->p->solve.cols * sizeof(*t->x));
        if (i == 0 && row / ROWS % solve_compare_step(j->p->solve.rows) == 0)
            measure_others(j, s, row, n);
        solve_groups(s, &j->p->block, loss[i]);
        refine(s, j->p->sweeps, j->p->solve.scale_dtype, loss[i]);
    }
    for (uint64_t r = 0; r < n; r++) {
        int best = 0;

        for (int i = 1; i < j->b->starts; i++)
            best = loss[i][r] < loss[best][r] ? i : best;
        keep_row(j, &t->tile[best], row, r, t->code);
        j->loss[row + r] = loss[best][r];
    }
}

static void solve_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    uint64_t rows = j->p->solve.rows, bad = begin * ROWS;
    struct bench t;
    struct err e;
    int rc = bench_open(&t, j, &e);

    for (size_t i = begin; i < end && !rc; i++) {
        uint64_t row = i * ROWS, n = rows - row < ROWS ? rows - row : ROWS;

        rc = load(j, t.x, row, n, &bad, &e);
        if (!rc)
            solve_tile(j, &t, row, n);
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
                              .target = p->target };
    int rc = solve_functions()->solve_refined(device_gpu(), p, b, &m, 1, e);

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
    threads_for((rows + ROWS - 1) / ROWS, 1, solve_tiles, &j);
    for (uint64_t i = 0; i < rows; i++)
        r->solve.loss += j.loss[i];
    r->solve.loss_nearest = solve_compare_sum(j.loss, j.nearest, rows);
    r->loss_plain = solve_compare_sum(j.loss, j.plain, rows);
    free(j.loss);
    return threads_error_take(&j.error, e);
}
