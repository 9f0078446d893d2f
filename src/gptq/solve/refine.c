/* refine.c - see refine.h.
 *
 * The gradient g = d H is computed anew for every group: the product of the
 * other groups' d with H, once per group, plus that of the group's own d, once
 * per panel of eight inputs.  This costs as many operations as updating a
 * stored g would, accumulates no rounding errors, and uses the solver's product
 * kernel. */
#include "gptq/solve/refine.h"

#include <string.h>

#include "common/math/quant.h"
#include "gptq/solve/refine_kernel.h"

enum { ROWS = SOLVE_ROWS, COLS = FACTOR_PANEL };

static uint64_t end_of(const struct tile_group *g)
{
    return (g->c1 + COLS - 1) / COLS * COLS;
}

/* acc = the other groups' part of the group's gradient. */
static void gather(struct tile *s, int n, const struct tile_group *g)
{
    struct tile_product p = { .part = { .at = tile_at_hessian,
                                        .of = s->plan,
                                        .c0 = g->c0,
                                        .c1 = end_of(g),
                                        .k1 = g->c0 } };

    for (int i = 0; i < n; i++)
        memset(s[i].acc, 0, (p.part.c1 - p.part.c0) * ROWS * sizeof(float));
    tile_multiply(s, n, &p);
    p.part.k0 = p.part.c1;
    p.part.k1 = s->plan->f->padded;
    tile_multiply(s, n, &p);
}

/* Move the codes of the group, one panel after another.  moved: the changes of
 * d.  True when a code moved. */
static bool move_codes(struct tile *s, const struct tile_group *g, float *moved,
                       double *loss)
{
    uint64_t n = end_of(g) - g->c0;
    float change[ROWS] = { 0 };
    bool any = false;

    for (uint64_t c = g->c0; c < end_of(g); c += COLS) {
        float *acc = s->acc + (c - g->c0) * ROWS;
        struct refine_panel p = {
            .acc = acc,
            .h = tile_hessian(s->plan, c, c),
            .scale = s->scale + g->group * ROWS,
            .zero = s->zero + g->group * ROWS,
            .top = s->top,
            .w = s->w + c * ROWS,
            .d = s->d + c * ROWS,
            .codes = s->codes + c * ROWS,
            .moved = moved + (c - g->c0) * ROWS,
            .change = change,
        };

        s->k->product(acc, s->d + g->c0 * ROWS, tile_hessian(s->plan, c, g->c0),
                      n);
        any |= refine_kernel_best()(&p);
    }
    for (int r = 0; r < ROWS; r++)
        loss[r] += (double)change[r];
    return any;
}

/* a[n][48] = codes - zero */
static void centre(float *restrict a, const uint8_t *restrict codes,
                   const float *restrict zero, uint64_t n)
{
    for (uint64_t c = 0; c < n; c++, a += ROWS, codes += ROWS)
        for (int r = 0; r < ROWS; r++)
            a[r] = (float)codes[r] - zero[r];
}

/* d[n][48] = w - scale a */
static void take_off(float *restrict d, const float *restrict w,
                     const float *restrict a, const float *restrict scale,
                     uint64_t n)
{
    for (uint64_t c = 0; c < n; c++, d += ROWS, w += ROWS, a += ROWS)
        for (int r = 0; r < ROWS; r++)
            d[r] = w[r] - a[r] * scale[r];
}

/* num = g a, den = a H a of each row, a = codes - zero.  acc holds each panel's
 * gradient as of the visit to that panel.  It already contains the moves of the
 * panels visited before; those of the panel itself and of later ones (`moved`)
 * are added here. */
static void moments(struct tile *s, const struct tile_group *g,
                    const float *moved, float *a, float *num, float *den)
{
    uint64_t n = end_of(g) - g->c0, inputs = g->c1 - g->c0;

    memset(num, 0, ROWS * sizeof(*num));
    memset(den, 0, ROWS * sizeof(*den));
    centre(a, s->codes + g->c0 * ROWS, s->zero + g->group * ROWS, inputs);
    memset(a + inputs * ROWS, 0, (n - inputs) * ROWS * sizeof(*a));
    for (uint64_t c = 0; c < n; c += COLS) {
        float grad[COLS * ROWS], curve[COLS * ROWS] = { 0 };

        memcpy(grad, s->acc + c * ROWS, sizeof(grad));
        s->k->product(grad, moved + c * ROWS,
                      tile_hessian(s->plan, g->c0 + c, g->c0 + c), n - c);
        s->k->product(curve, a, tile_hessian(s->plan, g->c0 + c, g->c0), n);
        tile_products(num, grad, a + c * ROWS);
        tile_products(den, curve, a + c * ROWS);
    }
}

/* Refit the group's scale in row r; true when it changed. */
static bool refit(struct tile *s, const struct tile_group *g, uint64_t r,
                  double num, double den, enum dtype scale_dtype, double *loss)
{
    uint64_t at = g->group * ROWS + r;
    uint32_t old = s->meta[at], meta;
    float sign = old >> 24 & QUANT_NEGATIVE ? -1 : 1;
    double step, scale = den > 0 ? sign * (s->scale[at] + num / den) : 0;

    if (!(scale > 0))
        return false;
    meta = quant_meta((float)scale, (int)s->zero[at], quant_is_symmetric(old),
                      quant_bits(old), scale_dtype);
    if (sign < 0)
        meta = quant_negative(meta);
    step = (double)quant_grid(meta, scale_dtype).scale - s->scale[at];
    if (meta == old || !(step * step * den < 2 * step * num))
        return false;
    loss[r] += step * (step * den - 2 * num);
    tile_set_grid(s, g->group, r, meta, scale_dtype);
    return true;
}

static bool refit_group(struct tile *s, const struct tile_group *g,
                        const float *moved, enum dtype scale_dtype,
                        double *loss)
{
    float *a = s->scratch + 2 * s->plan->widest * ROWS;
    float num[ROWS], den[ROWS];
    bool any = false;

    moments(s, g, moved, a, num, den);
    for (uint64_t r = 0; r < ROWS; r++)
        any |= refit(s, g, r, num[r], den[r], scale_dtype, loss);
    if (!any)
        return false;
    take_off(s->d + g->c0 * ROWS, s->w + g->c0 * ROWS, a,
             s->scale + g->group * ROWS, g->c1 - g->c0);
    return true;
}

void refine(struct tile *s, int n, int sweeps, enum dtype scale_dtype,
            double (*loss)[SOLVE_ROWS])
{
    bool any = true;

    while (any && sweeps-- > 0) {
        any = false;
        for (uint64_t i = 0; i < s->plan->groups; i++) {
            const struct tile_group *g = &s->plan->group[i];

            gather(s, n, g);
            for (int j = 0; j < n; j++) {
                float *moved = s[j].scratch;
                bool now = move_codes(&s[j], g, moved, loss[j]);

                now |= refit_group(&s[j], g, moved, scale_dtype, loss[j]);
                if (now)
                    tile_set_left(&s[j], s[j].d, g->c0, end_of(g), false);
                any |= now;
            }
        }
    }
}
