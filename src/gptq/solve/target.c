/* target.c - see target.h. */
#include "gptq/solve/target.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "device/device.h"
#include "gptq/solve/solve_table.h"

enum { ROWS = SOLVE_ROWS, COLS = FACTOR_PANEL };

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
        int rc = solve_functions()->factors_drift(plan->f->gpu, drift, e);

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
        solve_functions()->factors_drift(t->plan->f->gpu, NULL, &e) < 0)
        warning("%s", e.msg);
    free(t->drift);
    free(t->transposed);
    *t = (struct target){ 0 };
}

/* d = alpha W E, in the factor's order. */
static void follow_drift(const struct target *t, struct tile *s, double alpha)
{
    uint64_t n = t->plan->f->padded;

    memset(s->d, 0, n * ROWS * sizeof(float));
    for (uint64_t c = 0; c < n; c += COLS)
        s->k->product(s->d + c * ROWS, s->w, t->drift + c * n, n);
    for (uint64_t i = 0; i < n * ROWS; i++)
        s->d[i] *= (float)alpha;
}

/* d = beta (G + lambda W), which is what W (1 - beta) lacks of the target times
 * H + lambda I, or beta F; in the factor's order. */
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

/* d = d (H + lambda I)⁻¹: z Lᵀ = d, columns upwards, and d L = z downwards. */
static void divide(const struct target *t, struct tile *s)
{
    uint64_t n = t->plan->f->padded;

    for (uint64_t c = 0; c < n; c += COLS) {
        const float *transposed = t->transposed + transposed_at(c / COLS);

        s->k->subtract(s->d + c * ROWS, s->d, transposed, c, COLS);
        s->k->divide(s->d + c * ROWS, transposed + c * COLS, COLS);
    }
    for (uint64_t c = n; c > 0;) {
        c -= COLS;
        s->k->subtract(s->d + c * ROWS, s->d + (c + COLS) * ROWS,
                       tile_factor(t->plan, c, c + COLS), n - c - COLS, COLS);
        s->k->back(s->d + c * ROWS, tile_factor(t->plan, c, c));
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
