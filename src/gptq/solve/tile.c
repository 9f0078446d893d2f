/* tile.c - see tile.h. */
#include "gptq/solve/tile.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "common/math/threads.h"

enum {
    ROWS = SOLVE_ROWS,
    COLS = FACTOR_PANEL,
    DEPTH = 128, /* rows of a matrix at a time: 24 KiB of x */
    BATCH_BYTES = 24 << 20
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

/* Columns of group i: the factor's rows behind the group; of H those before it,
 * too. */
static void split_groups(void *ctx, size_t begin, size_t end)
{
    const struct tile_plan *plan = ctx;

    for (size_t i = begin; i < end; i++) {
        struct split_part p = { .at = tile_at_factor,
                                .of = plan,
                                .c0 = plan->group[i].c0,
                                .c1 = plan->group[i].c1,
                                .k0 = plan->group[i].c1,
                                .k1 = plan->f->padded };

        split_right(&p);
        p.at = tile_at_hessian;
        split_right(&p);
        p.k1 = p.c0;
        p.k0 = 0;
        split_right(&p);
    }
}

int tile_plan_open(struct tile_plan *plan, struct factor *f,
                   const struct factor_params *p, const float *h, struct err *e)
{
    struct fill fill = { .plan = plan, .p = p, .h = h };

    *plan = (struct tile_plan){
        .f = f,
        .split = !f->gpu && split_is_there() && f->cols % SPLIT_DEPTH == 0 &&
                 p->group % SPLIT_DEPTH == 0,
    };
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
    if (plan->split)
        threads_for(plan->groups, 1, split_groups, plan);
    return 0;
}

void tile_plan_close(struct tile_plan *plan)
{
    free(plan->h);
    free(plan->group);
    *plan = (struct tile_plan){ 0 };
}

/* ---- a tile ---- */

static uint64_t tile_bytes(const struct tile_plan *plan)
{
    uint64_t line = ROWS * sizeof(float), n = plan->f->padded;
    uint64_t g = plan->groups, w = plan->widest;
    uint64_t split = n * line + SPLIT_WORK * sizeof(float);

    return line * (2 * n + 3 * g + 4 * w) + ROWS * (n + w) +
           (plan->split ? split : 0);
}

int tile_batch(const struct tile_plan *plan)
{
    uint64_t n = BATCH_BYTES / tile_bytes(plan);

    return !plan->split || n < 1 ? 1 : n < TILE_BATCH ? (int)n : TILE_BATCH;
}

int tile_open(struct tile *s, const struct tile_plan *plan, struct err *e)
{
    uint64_t n = plan->f->padded, g = plan->groups, w = plan->widest;
    char *at = mem_pages(tile_bytes(plan), "solve", e);

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
    at = (char *)(s->scratch + 3 * w * ROWS);
    if (plan->split) {
        s->work = (float *)(void *)at;
        s->left = (uint16_t *)(s->work + SPLIT_WORK);
        at = (char *)(s->left + 2 * n * ROWS);
    }
    s->codes = (uint8_t *)at;
    s->trial = s->codes + n * ROWS;
    return 0;
}

void tile_close(struct tile *s)
{
    free(s->w);
    *s = (struct tile){ 0 };
}

void tile_load(struct tile *s, const float *x, uint64_t rows, uint64_t cols,
               int bits)
{
    const struct factor *f = s->plan->f;

    s->top = (float)quant_top(bits);
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
                          s->zero + g->group * ROWS, s->top,
                          s->codes + c * ROWS);
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

/* H is symmetric: twice what the groups behind a group add, and its own once.
 * Sums of a panel in f32, of a row in double. */
void tile_loss(struct tile *s, double *loss)
{
    uint64_t n = s->plan->f->padded;
    struct tile_product p = { .part = { .at = tile_at_hessian,
                                        .of = s->plan } };

    memset(loss, 0, ROWS * sizeof(*loss));
    tile_set_left(s, s->d, 0, n, false);
    for (uint64_t i = 0; i < s->plan->groups; i++) {
        uint64_t c0 = s->plan->group[i].c0;
        uint64_t c1 = (s->plan->group[i].c1 + COLS - 1) / COLS * COLS;

        p.part.c0 = c0;
        p.part.c1 = p.part.k0 = c1;
        p.part.k1 = n;
        memset(s->acc, 0, (c1 - c0) * ROWS * sizeof(float));
        tile_multiply(s, 1, &p);
        for (uint64_t j = 0; j < (c1 - c0) * ROWS; j++)
            s->acc[j] *= 2;
        p.part.k0 = c0;
        p.part.k1 = c1;
        p.inside = true;
        tile_multiply(s, 1, &p);
        p.inside = false;
        for (uint64_t c = c0; c < c1; c += COLS) {
            float sum[ROWS] = { 0 };

            tile_products(sum, s->acc + (c - c0) * ROWS, s->d + c * ROWS);
            for (uint64_t r = 0; r < ROWS; r++)
                loss[r] += (double)sum[r];
        }
    }
}

/* ---- products ---- */

float *tile_at_factor(const void *of, uint64_t c, uint64_t r)
{
    return factor_at_row(((const struct tile_plan *)of)->f, c, r);
}

float *tile_at_hessian(const void *of, uint64_t c, uint64_t r)
{
    const struct tile_plan *p = of;

    return p->h + (c / FACTOR_PANEL * p->f->padded + r) * FACTOR_PANEL;
}

static float *sum_of(const struct tile *s, const struct tile_product *p)
{
    return p->in_place ? s->d + p->part.c0 * ROWS : s->acc;
}

static void multiply(struct tile *s, const struct tile_product *p)
{
    const struct split_part *m = &p->part;
    const float *x = p->of_target ? s->w : s->d;

    for (uint64_t k = m->k0, n; k < m->k1; k += n) {
        n = m->k1 - k < DEPTH ? m->k1 - k : DEPTH;
        for (uint64_t c = m->c0; c < m->c1; c += COLS) {
            float *sum = sum_of(s, p) + (c - m->c0) * ROWS;

            if (p->minus)
                s->k->subtract(sum, x + k * ROWS, m->at(m->of, c, k), n, COLS);
            else
                s->k->product(sum, x + k * ROWS, m->at(m->of, c, k), n);
        }
    }
}

void tile_multiply(struct tile *s, int n, const struct tile_product *p)
{
    struct split_sum sums[TILE_BATCH];

    if (!s->plan->split || p->inside) {
        for (int i = 0; i < n; i++)
            multiply(&s[i], p);
        return;
    }
    for (int i = 0; i < n; i++)
        sums[i] = (struct split_sum){ sum_of(&s[i], p), s[i].left, s[i].work };
    split_add(sums, n, &p->part);
}

void tile_set_left(struct tile *s, const float *x, uint64_t k0, uint64_t k1,
                   bool minus)
{
    if (s->plan->split)
        split_left(s->left + 2 * k0 * ROWS, x + k0 * ROWS, k1 - k0, minus);
}
