/* tile.c - see tile.h. */
#include "gptq/solve/tile.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "common/math/threads.h"

enum {
    ROWS = SOLVE_ROWS,
    COLS = FACTOR_PANEL,
    DEPTH = 128 /* rows k of a product at a time: 24 KiB of x */
};

/* ---- the plan ---- */

struct fill {
    const struct tile_plan *plan;
    const struct factor_params *p;
    const float *h;
};

/* Fill panels begin..end-1 of plan->h: element (r, c) in the factor's order is
 * H[input[r]][input[c]]. */
static void fill_panels(void *ctx, size_t begin, size_t end)
{
    const struct fill *j = ctx;
    const struct factor *f = j->plan->f;
    uint64_t n = f->cols;

    for (size_t p = begin; p < end; p++) {
        float *to = j->plan->h + p * f->padded * COLS;

        for (uint64_t r = 0; r < f->padded; r++, to += COLS)
            for (uint64_t c = p * COLS; c < (p + 1) * COLS; c++)
                to[c % COLS] =
                    r < n && c < n ?
                        factor_element(j->p, j->h, f->input[r], f->input[c]) :
                        0;
    }
}

static void find_groups(struct tile_plan *plan, uint64_t group)
{
    const struct factor *f = plan->f;

    for (uint64_t c1 = f->cols; c1 > 0;) {
        uint64_t g = f->input[c1 - 1] / group, c0 = c1 - 1;

        while (c0 > 0 && f->input[c0 - 1] / group == g)
            c0--;
        plan->group[plan->groups++] =
            (struct tile_group){ .c0 = c0, .c1 = c1, .group = g };
        if (c1 - c0 > plan->widest)
            plan->widest = c1 - c0;
        c1 = c0;
    }
    plan->widest = (plan->widest + COLS - 1) / COLS * COLS;
}

int tile_plan_open(struct tile_plan *plan, const struct factor *f,
                   const struct factor_params *p, const float *h, struct err *e)
{
    struct fill fill = { .plan = plan, .p = p, .h = h };

    *plan = (struct tile_plan){ .f = f };
    plan->group = mem_zero(quant_groups(f->cols, p->group),
                           sizeof(*plan->group), "solve", e);
    if (!plan->group)
        return e->code;
    find_groups(plan, p->group);
    if (f->gpu) /* H is there too */
        return 0;
    plan->h = mem_pages(f->padded * f->padded * sizeof(float), "solve", e);
    if (!plan->h) {
        tile_plan_close(plan);
        return e->code;
    }
    threads_for(f->padded / COLS, 4, fill_panels, &fill);
    return 0;
}

void tile_plan_close(struct tile_plan *plan)
{
    free(plan->h);
    free(plan->group);
    *plan = (struct tile_plan){ 0 };
}

/* ---- a tile ---- */

int tile_open(struct tile *s, const struct tile_plan *plan, struct err *e)
{
    uint64_t line = ROWS * sizeof(float), n = plan->f->padded;
    uint64_t g = plan->groups, w = plan->widest;
    char *at =
        mem_pages(line * (2 * n + 3 * g + 4 * w) + ROWS * (n + w), "solve", e);

    if (!at)
        return e->code;
    *s = (struct tile){ .plan = plan, .k = solve_kernels_best() };
    s->w = (float *)(void *)at;
    s->d = s->w + n * ROWS;
    s->scale = s->d + n * ROWS;
    s->zero = s->scale + g * ROWS;
    s->meta = (uint32_t *)(void *)(s->zero + g * ROWS);
    s->acc = (float *)(void *)(s->meta + g * ROWS);
    s->scratch = s->acc + w * ROWS;
    s->codes = (uint8_t *)(s->scratch + 3 * w * ROWS);
    s->trial = s->codes + n * ROWS;
    return 0;
}

void tile_close(struct tile *s)
{
    free(s->w);
    *s = (struct tile){ 0 };
}

void tile_load(struct tile *s, const float *x, uint64_t rows, uint64_t cols)
{
    const struct factor *f = s->plan->f;

    memset(s->w, 0, f->padded * ROWS * sizeof(float));
    for (uint64_t c = 0; c < cols; c++)
        for (uint64_t r = 0; r < rows && !f->dead[c]; r++)
            s->w[c * ROWS + r] = x[r * cols + f->input[c]];
    tile_restart(s);
}

void tile_restart(struct tile *s)
{
    memcpy(s->d, s->w, s->plan->f->padded * ROWS * sizeof(float));
    memset(s->codes, 8, s->plan->f->padded * ROWS);
}

void tile_set_grid(struct tile *s, uint64_t group, uint64_t r, uint32_t meta,
                   enum dtype scale_dtype)
{
    struct qgrid g = quant_grid(meta, scale_dtype);

    s->meta[group * ROWS + r] = meta;
    s->scale[group * ROWS + r] = g.scale;
    s->zero[group * ROWS + r] = (float)g.zero;
}

void tile_codes(const struct tile *s, uint64_t r, uint8_t *code)
{
    const struct factor *f = s->plan->f;

    for (uint64_t c = 0; c < f->cols; c++)
        code[f->input[c]] = s->codes[c * ROWS + r];
}

void tile_round(struct tile *s)
{
    for (uint64_t i = 0; i < s->plan->groups; i++) {
        const struct tile_group *g = &s->plan->group[i];

        for (uint64_t c = g->c0; c < g->c1; c++) {
            memcpy(s->d + c * ROWS, s->w + c * ROWS, ROWS * sizeof(float));
            s->k->nearest(s->d + c * ROWS, s->scale + g->group * ROWS,
                          s->zero + g->group * ROWS, s->codes + c * ROWS);
        }
    }
}

void tile_products(float *restrict sum, const float *restrict x,
                   const float *restrict y)
{
    for (int c = 0; c < COLS; c++, x += ROWS, y += ROWS)
        for (int r = 0; r < ROWS; r++)
            sum[r] += x[r] * y[r];
}

/* H is symmetric: d H dᵀ is the sum of the diagonal panels plus twice that of
 * the panels below.  Sums of a panel in f32, of a row in double. */
void tile_loss(struct tile *s, double *loss)
{
    uint64_t n = s->plan->f->padded;
    float acc[COLS * ROWS];

    memset(loss, 0, ROWS * sizeof(*loss));
    for (uint64_t c = 0; c < n; c += COLS) {
        const float *d = s->d + c * ROWS;
        float sum[ROWS] = { 0 };

        memset(acc, 0, sizeof(acc));
        s->k->product(acc, d + COLS * ROWS, tile_hessian(s->plan, c, c + COLS),
                      n - c - COLS);
        for (uint64_t i = 0; i < COLS * ROWS; i++)
            acc[i] *= 2;
        s->k->product(acc, d, tile_hessian(s->plan, c, c), COLS);
        tile_products(sum, acc, d);
        for (uint64_t r = 0; r < ROWS; r++)
            loss[r] += (double)sum[r];
    }
}

/* ---- products ---- */

const float *tile_at_factor(const void *of, uint64_t c, uint64_t r)
{
    return tile_factor(of, c, r);
}

const float *tile_at_hessian(const void *of, uint64_t c, uint64_t r)
{
    return tile_hessian(of, c, r);
}

void tile_add(const struct tile *s, float *sum, const float *x,
              const struct tile_part *p)
{
    for (uint64_t k = p->k0, n; k < p->k1; k += n) {
        n = p->k1 - k < DEPTH ? p->k1 - k : DEPTH;
        for (uint64_t c = p->c0; c < p->c1; c += COLS)
            s->k->product(sum + (c - p->c0) * ROWS, x + k * ROWS,
                          p->at(p->of, c, k), n);
    }
}

void tile_subtract(const struct tile *s, float *sum, const float *x,
                   const struct tile_part *p)
{
    for (uint64_t k = p->k0, n; k < p->k1; k += n) {
        n = p->k1 - k < DEPTH ? p->k1 - k : DEPTH;
        for (uint64_t c = p->c0; c < p->c1; c += COLS)
            s->k->subtract(sum + (c - p->c0) * ROWS, x + k * ROWS,
                           p->at(p->of, c, k), n, COLS);
    }
}
