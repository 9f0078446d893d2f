/* target.c - see target.h. */
#include "gptq/target.h"

#include <stdlib.h>
#include <string.h>

#include "common/device.h"
#include "common/threads.h"
#include "cuda/forge_cuda.h"

enum { ROWS = SOLVE_ROWS, COLS = FACTOR_PANEL };

static uint64_t turned_at(uint64_t p)
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
        float *to = j->t->turned + turned_at(p);

        for (uint64_t c = 0; c < (p + 1) * COLS; c++)
            for (uint64_t r = p * COLS; r < (p + 1) * COLS; r++)
                *to++ = r < c ? 0 :
                                slab_factor(j->t->plan, c / COLS * COLS,
                                            r)[c % COLS];
        to = j->t->drift + p * f->padded * COLS;
        for (uint64_t r = 0; j->drift && r < f->padded; r++)
            for (uint64_t c = p * COLS; c < (p + 1) * COLS; c++)
                *to++ = r < n && c < n ?
                            j->drift[f->input[r] * n + f->input[c]] :
                            0;
    }
}

int target_open(struct target *t, const struct slab_plan *plan,
                const float *drift, struct err *e)
{
    uint64_t n = plan->f->cols, panels = plan->f->padded / COLS;
    struct fill fill = { t, drift };

    *t = (struct target){ 0 };
    if (drift && !lanes_finite(drift, n * n))
        return err_set(e, E_DATA, "not finite");
    t->plan = plan;
    if (plan->f->gpu) {
        int rc = device_gpu()->cuda->factors_drift(plan->f->gpu, drift, e);

        if (rc < 0)
            target_close(t);
        return rc;
    }
    t->turned = mem_pages(turned_at(panels) * sizeof(float), "target", e);
    if (t->turned && drift)
        t->drift = mem_pages(panels * plan->f->padded * COLS * sizeof(float),
                             "target", e);
    if (!t->turned || (drift && !t->drift)) {
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
        device_gpu()->cuda->factors_drift(t->plan->f->gpu, NULL, &e) < 0)
        warning("%s", e.msg);
    free(t->drift);
    free(t->turned);
    *t = (struct target){ 0 };
}

/* d = alpha W E, in the factor's order. */
static void follow_drift(const struct target *t, struct slab *s, double alpha)
{
    uint64_t n = t->plan->f->padded;

    memset(s->d, 0, n * ROWS * sizeof(float));
    for (uint64_t c = 0; c < n; c += COLS)
        s->k->product(s->d + c * ROWS, s->w, t->drift + c * n, n);
    for (uint64_t i = 0; i < n * ROWS; i++)
        s->d[i] *= (float)alpha;
}

/* d = beta (G - W H) or beta F, in the factor's order. */
static void mend_output(const struct target *t, struct slab *s,
                        const struct target_way *way)
{
    const struct factor *f = t->plan->f;

    memset(s->d, 0, f->padded * ROWS * sizeof(float));
    for (uint64_t c = 0; !way->gap && c < f->padded; c += COLS)
        s->k->product(s->d + c * ROWS, s->w, slab_hessian(t->plan, c, 0),
                      f->padded);
    for (uint64_t c = 0; c < f->cols; c++)
        for (uint64_t r = 0; r < way->rows; r++) {
            float *d = &s->d[c * ROWS + r];

            *d = (float)way->beta *
                 (way->output[r * f->cols + f->input[c]] - *d);
        }
}

/* x = (x - acc) / the triangle, columns upwards: z Lᵀ = x. */
static void divide_up(float *x, const float *acc, const float *turned)
{
    for (int c = 0; c < COLS; c++)
        for (int r = 0; r < ROWS; r++) {
            float t = x[c * ROWS + r] - acc[c * ROWS + r];

            for (int k = 0; k < c; k++)
                t -= x[k * ROWS + r] * turned[k * COLS + c];
            x[c * ROWS + r] = t / turned[c * COLS + c];
        }
}

/* And downwards: z L = x. */
static void divide_down(float *x, const float *acc, const float *l)
{
    for (int c = COLS - 1; c >= 0; c--)
        for (int r = 0; r < ROWS; r++) {
            float t = x[c * ROWS + r] - acc[c * ROWS + r];

            for (int k = COLS - 1; k > c; k--)
                t -= x[k * ROWS + r] * l[k * COLS + c];
            x[c * ROWS + r] = t / l[c * COLS + c];
        }
}

void target_move(const struct target *t, struct slab *s,
                 const struct target_way *way)
{
    const struct factor *f = t->plan->f;
    uint64_t n = f->padded;
    float acc[COLS * ROWS];

    if (way->output)
        mend_output(t, s, way);
    else
        follow_drift(t, s, way->alpha);
    for (uint64_t c = 0; c < n; c += COLS) {
        const float *turned = t->turned + turned_at(c / COLS);

        memset(acc, 0, sizeof(acc));
        s->k->product(acc, s->d, turned, c);
        divide_up(s->d + c * ROWS, acc, turned + c * COLS);
    }
    for (uint64_t c = n; c > 0;) {
        c -= COLS;
        memset(acc, 0, sizeof(acc));
        s->k->product(acc, s->d + (c + COLS) * ROWS,
                      slab_factor(t->plan, c, c + COLS), n - c - COLS);
        divide_down(s->d + c * ROWS, acc, slab_factor(t->plan, c, c));
    }
    for (uint64_t c = 0; c < f->cols; c++)
        for (uint64_t r = 0; r < ROWS && !f->dead[c]; r++)
            s->w[c * ROWS + r] += s->d[c * ROWS + r];
    memcpy(s->d, s->w, n * ROWS * sizeof(float));
}
