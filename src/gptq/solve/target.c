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
    BLOCK = 128 /* columns of a block of the triangular solves */
};

static uint64_t transposed_at(uint64_t p)
{
    return COLS * COLS * (p * (p + 1) / 2);
}

struct fill {
    struct target *t;
    const float *drift;
};

static void fill_panels(void *ctx, size_t begin, size_t end)
{
    const struct fill *j = ctx;
    const struct factor *f = j->t->plan->f;
    uint64_t n = f->cols;

    for (size_t p = begin; p < end; p++) {
        float *to = j->t->transposed + transposed_at(p);

        for (uint64_t c = 0; c < (p + 1) * COLS; c++)
            for (uint64_t r = p * COLS; r < (p + 1) * COLS; r++)
                *to++ = r < c ? 0 :
                                tile_factor(j->t->plan, c / COLS * COLS,
                                            r)[c % COLS];
        to = j->t->drift + p * f->padded * COLS;
        for (uint64_t r = 0; j->drift && r < f->padded; r++)
            for (uint64_t c = p * COLS; c < (p + 1) * COLS; c++)
                *to++ = r < n && c < n ?
                            j->drift[f->input[r] * n + f->input[c]] :
                            0;
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
    threads_for(panels, 4, fill_panels, &fill);
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

static const float *at_drift(const void *of, uint64_t c, uint64_t r)
{
    const struct target *t = of;

    return t->drift + (c / COLS * t->plan->f->padded + r) * COLS;
}

static const float *at_transposed(const void *of, uint64_t c, uint64_t r)
{
    const struct target *t = of;

    return t->transposed + transposed_at(c / COLS) + r * COLS;
}

/* d = alpha W E, in the factor's order. */
static void follow_drift(const struct target *t, struct tile *s, double alpha)
{
    uint64_t n = t->plan->f->padded;
    struct tile_part part = { .at = at_drift, .of = t, .k1 = n };

    memset(s->d, 0, n * ROWS * sizeof(float));
    for (; part.c0 < n; part.c0 = part.c1) {
        part.c1 = part.c0 + BLOCK < n ? part.c0 + BLOCK : n;
        tile_add(s, s->d + part.c0 * ROWS, s->w, &part);
    }
    for (uint64_t i = 0; i < n * ROWS; i++)
        s->d[i] *= (float)alpha;
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

/* d <- d (H + lambda I)⁻¹ = d L⁻ᵀ L⁻¹: solve z Lᵀ = d by ascending columns,
 * then d L = z by descending ones. */
static void divide(const struct target *t, struct tile *s)
{
    uint64_t n = t->plan->f->padded;
    struct tile_part left = { .at = at_transposed, .of = t };
    struct tile_part right = { .at = tile_at_factor, .of = t->plan, .k1 = n };

    for (; left.c0 < n; left.c0 = left.k1 = left.c1) {
        left.c1 = left.c0 + BLOCK < n ? left.c0 + BLOCK : n;
        tile_subtract(s, s->d + left.c0 * ROWS, s->d, &left);
        divide_up(t, s, left.c0, left.c1);
    }
    for (right.c1 = n; right.c1 > 0; right.c1 = right.c0) {
        right.c0 = (right.c1 - 1) / BLOCK * BLOCK;
        right.k0 = right.c1;
        tile_subtract(s, s->d + right.c0 * ROWS, s->d, &right);
        divide_down(t, s, right.c0, right.c1);
    }
}

void target_move(const struct target *t, struct tile *s,
                 const struct target_way *way)
{
    const struct factor *f = t->plan->f;
    float rest = way->output && !way->gap ? (float)(1 - way->beta) : 1;

    if (way->output)
        mend_output(s, way);
    else
        follow_drift(t, s, way->alpha);
    divide(t, s);
    for (uint64_t c = 0; c < f->cols; c++)
        for (uint64_t r = 0; r < ROWS && !f->dead[c]; r++)
            s->w[c * ROWS + r] = rest * s->w[c * ROWS + r] + s->d[c * ROWS + r];
    memcpy(s->d, s->w, f->padded * ROWS * sizeof(float));
}
