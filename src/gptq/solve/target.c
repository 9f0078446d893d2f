/* target.c - see target.h. */
#include "gptq/solve/target.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "device/device.h"
#include "gptq/solve/solve_table.h"

enum {
    ROWS = SOLVE_ROWS,
    COLS = FACTOR_PANEL,
    BLOCK = 128 /* columns of a block of the products and triangular solves */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t transposed_at(uint64_t p)
{
    return COLS * COLS * (p * (p + 1) / 2);
}

struct fill {
    struct target *t;
    const float *drift;
};

static float *at_drift(const void *of, uint64_t c, uint64_t r)
{
    const struct target *t = of;

    return t->drift + (c / COLS * t->plan->f->padded + r) * COLS;
}

static float *at_transposed(const void *of, uint64_t c, uint64_t r)
{
    const struct target *t = of;

    return t->transposed + transposed_at(c / COLS) + r * COLS;
}

static uint64_t end_of(const struct tile_group *g)
{
    return (g->c1 + COLS - 1) / COLS * COLS;
}

/* Element (r, c) of L, r in group g; between groups it may be split. */
static float factor_value(const struct tile_plan *plan,
                          const struct tile_group *g, uint64_t r, uint64_t c)
{
    struct split_part p = { .at = tile_at_factor, .of = plan };

    return plan->split && c < g->c0 ? split_element(&p, c, r) :
                                      tile_factor(plan, c, r)[c % COLS];
}

/* Columns of group g of E, and rows of it of L. */
static void fill_group(const struct fill *j, const struct tile_group *g)
{
    const struct tile_plan *plan = j->t->plan;
    const struct factor *f = plan->f;
    uint64_t n = f->cols;

    for (uint64_t p = g->c0; p < end_of(g); p += COLS) {
        float *to = at_transposed(j->t, p, 0);

        for (uint64_t c = 0; c < p + COLS; c++)
            for (uint64_t r = p; r < p + COLS; r++)
                *to++ = r < c ? 0 : factor_value(plan, g, r, c);
        to = j->drift ? at_drift(j->t, p, 0) : NULL;
        for (uint64_t r = 0; to && r < f->padded; r++)
            for (uint64_t c = p; c < p + COLS; c++)
                *to++ = r < n && c < n ?
                            j->drift[f->input[r] * n + f->input[c]] :
                            0;
    }
}

static void fill_groups(void *ctx, size_t begin, size_t end)
{
    const struct fill *j = ctx;
    const struct tile_plan *plan = j->t->plan;

    for (size_t i = begin; i < end; i++) {
        struct split_part p = { .at = at_transposed,
                                .of = j->t,
                                .c0 = plan->group[i].c0,
                                .c1 = plan->group[i].c1,
                                .k1 = plan->group[i].c0 };

        fill_group(j, &plan->group[i]);
        if (!plan->split)
            continue;
        split_right(&p);
        p.at = at_drift;
        p.k1 = j->drift ? plan->f->padded : 0;
        split_right(&p);
    }
}

int target_open(struct target *t, const struct tile_plan *plan,
                const float *drift, struct err *e)
{
    uint64_t n = plan->f->cols, panels = plan->f->padded / COLS;
    struct fill fill = { t, drift };

    *t = (struct target){ 0 };
    if (drift && !lanes_finite(drift, n * n))
        return err_set(e, E_DATA, "not finite");
    t->plan = plan;
    if (plan->f->gpu) {
        int rc = solve_functions()->factors_drift(plan->f->gpu, 0, drift, e);

        if (rc < 0)
            target_close(t);
        return rc;
    }
    t->transposed =
        mem_pages(transposed_at(panels) * sizeof(float), "target", e);
    if (t->transposed && drift)
        t->drift = mem_pages(panels * plan->f->padded * COLS * sizeof(float),
                             "target", e);
    if (!t->transposed || (drift && !t->drift)) {
        target_close(t);
        return e->code;
    }
    threads_for(plan->groups, 1, fill_groups, &fill);
    return 0;
}

void target_close(struct target *t)
{
    struct err e;

    if (t->plan && t->plan->f->gpu &&
        solve_functions()->factors_drift(t->plan->f->gpu, 0, NULL, &e) < 0)
        warning("%s", e.msg);
    free(t->drift);
    free(t->transposed);
    *t = (struct target){ 0 };
}

/* d = alpha W E, in the factor's order. */
static void follow_drift(const struct target *t, struct tile *s, int n,
                         const struct target_way *way)
{
    uint64_t cols = t->plan->f->padded;
    struct tile_product p = {
        .part = { .at = at_drift, .of = t, .k1 = cols, .bf16 = way->bf16 },
        .of_target = true,
        .in_place = true,
    };

    for (int i = 0; i < n; i++) {
        memset(s[i].d, 0, cols * ROWS * sizeof(float));
        tile_set_left(&s[i], s[i].w, 0, cols, false);
    }
    for (; p.part.c0 < cols; p.part.c0 = p.part.c1) {
        p.part.c1 = least(p.part.c0 + BLOCK, cols);
        tile_multiply(s, n, &p);
    }
    for (int i = 0; i < n; i++)
        for (uint64_t j = 0; j < cols * ROWS; j++)
            s[i].d[j] *= (float)way[i].alpha;
}

/* d = beta (G + lambda W), or beta F with `gap`; in the factor's order.  With
 * G:
 *     W* = (1 - beta) W + beta (G + lambda W) (H + lambda I)⁻¹ */
static void mend_output(struct tile *s, const struct target_way *way)
{
    const struct factor *f = s->plan->f;
    float keep = way->gap ? 0 : (float)f->lambda;

    memset(s->d, 0, f->padded * ROWS * sizeof(float));
    for (uint64_t c = 0; c < f->cols; c++)
        for (uint64_t r = 0; r < way->rows; r++) {
            uint64_t i = c * ROWS + r;

            s->d[i] = (float)way->beta *
                      (way->output[r * f->cols + f->input[c]] + keep * s->w[i]);
        }
}

/* Columns c0..c1-1 of the solution z of z Lᵀ = d; the product of the columns to
 * their left has been subtracted from d. */
static void divide_up(const struct target *t, struct tile *s, uint64_t c0,
                      uint64_t c1)
{
    for (uint64_t c = c0; c < c1; c += COLS) {
        const float *l = at_transposed(t, c, c0);

        s->k->subtract(s->d + c * ROWS, s->d + c0 * ROWS, l, c - c0, COLS);
        s->k->divide(s->d + c * ROWS, l + (c - c0) * COLS, COLS);
    }
}

/* The same of d L = z; there the columns to the right have been subtracted. */
static void divide_down(const struct target *t, struct tile *s, uint64_t c0,
                        uint64_t c1)
{
    for (uint64_t c = c1; c > c0;) {
        c -= COLS;
        s->k->subtract(s->d + c * ROWS, s->d + (c + COLS) * ROWS,
                       tile_factor(t->plan, c, c + COLS), c1 - c - COLS, COLS);
        s->k->back(s->d + c * ROWS, tile_factor(t->plan, c, c));
    }
}

/* Subtract from a block of columns the products with rows k0..k1-1, of other groups,
 * and with rows i0..i1-1, of the block's own group. */
static void take_off(struct tile *s, int n, struct tile_product *p, uint64_t k0,
                     uint64_t k1, uint64_t i0, uint64_t i1)
{
    p->part.k0 = k0;
    p->part.k1 = k1;
    tile_multiply(s, n, p);
    p->part.k0 = i0;
    p->part.k1 = i1;
    p->inside = true;
    tile_multiply(s, n, p);
    p->inside = false;
}

static void divide_group_up(const struct target *t, struct tile *s, int n,
                            const struct tile_group *g)
{
    struct tile_product p = { .part = { .at = at_transposed, .of = t },
                              .in_place = true,
                              .minus = true };
    uint64_t end = end_of(g);

    for (uint64_t c = g->c0; c < end; c = p.part.c1) {
        p.part.c0 = c;
        p.part.c1 = least(c + BLOCK, end);
        take_off(s, n, &p, 0, g->c0, g->c0, c);
        for (int i = 0; i < n; i++)
            divide_up(t, &s[i], c, p.part.c1);
    }
    for (int i = 0; i < n; i++)
        tile_set_left(&s[i], s[i].d, g->c0, end, true);
}

static void divide_group_down(const struct target *t, struct tile *s, int n,
                              const struct tile_group *g)
{
    struct tile_product p = { .part = { .at = tile_at_factor, .of = t->plan },
                              .in_place = true,
                              .minus = true };
    uint64_t end = end_of(g);

    for (uint64_t c = end; c > g->c0; c = p.part.c0) {
        p.part.c1 = c;
        p.part.c0 = c - g->c0 > BLOCK ? c - BLOCK : g->c0;
        take_off(s, n, &p, end, t->plan->f->padded, c, end);
        for (int i = 0; i < n; i++)
            divide_down(t, &s[i], p.part.c0, c);
    }
    for (int i = 0; i < n; i++)
        tile_set_left(&s[i], s[i].d, g->c0, end, true);
}

/* d <- d (H + lambda I)⁻¹ = d L⁻ᵀ L⁻¹: solve z Lᵀ = d by ascending columns,
 * then d L = z by descending ones. */
static void divide(const struct target *t, struct tile *s, int n)
{
    const struct tile_plan *plan = t->plan;

    for (uint64_t i = plan->groups; i-- > 0;)
        divide_group_up(t, s, n, &plan->group[i]);
    for (uint64_t i = 0; i < plan->groups; i++)
        divide_group_down(t, s, n, &plan->group[i]);
}

/* w = rest w + d, but for rows which that would move too far, whose number is
 * returned. */
static uint64_t move_rows(struct tile *s, float rest)
{
    const struct factor *f = s->plan->f;
    double moved[ROWS] = { 0 }, norm[ROWS] = { 0 };
    uint64_t kept = 0;

    for (uint64_t c = 0; c < f->cols; c++)
        for (uint64_t r = 0; r < ROWS && !f->dead[c]; r++) {
            double w = (double)s->w[c * ROWS + r];
            double by = (double)s->d[c * ROWS + r] - (1 - (double)rest) * w;

            moved[r] += by * by;
            norm[r] += w * w;
        }
    for (uint64_t c = 0; c < f->cols; c++)
        for (uint64_t r = 0; r < ROWS && !f->dead[c]; r++) {
            float *w = &s->w[c * ROWS + r];

            if (!TARGET_TOO_FAR(moved[r], norm[r]))
                *w = rest * *w + s->d[c * ROWS + r];
        }
    for (uint64_t r = 0; r < ROWS; r++)
        kept += TARGET_TOO_FAR(moved[r], norm[r]);
    return kept;
}

uint64_t target_move(const struct target *t, struct tile *s, int n,
                     const struct target_way *way)
{
    const struct factor *f = t->plan->f;
    float rest = way->output && !way->gap ? (float)(1 - way->beta) : 1;
    uint64_t kept = 0;

    for (int i = 0; i < n && way->output; i++)
        mend_output(&s[i], &way[i]);
    if (!way->output)
        follow_drift(t, s, n, way);
    divide(t, s, n);
    for (int i = 0; i < n; i++) {
        kept += move_rows(&s[i], rest);
        memcpy(s[i].d, s[i].w, f->padded * ROWS * sizeof(float));
    }
    return kept;
}
