/* fake_tune.c - weights that are tuned, and the divergence of the head, in the fake
 * plug-in: plain loops on memory that must be the device's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "fake_cuda.h"
#include "model/backward_table.h"
#include "model/internal.h"
#include "tune/tune_table.h"

/* Weights that values() made, row-major: fake_product() packs them. */
static const void *made[256];
static size_t made_count;

static bool is_tuned(const void *w)
{
    for (size_t i = 0; i < made_count; i++)
        if (made[i] == w)
            return true;
    return false;
}

int fake_pack_tuned(const struct model *m, struct loaded *l, void **copy,
                    struct err *e)
{
    size_t n = (size_t)(l->of.rows * l->of.cols) * m->size;

    *copy = NULL;
    if (m->dtype != DT_BF16 || !l->w || !is_tuned(l->w))
        return 0;
    *copy = mem_pages(n, "fake", e);
    if (!*copy)
        return e->code;
    memcpy(*copy, l->w, n);
    if (product_pack(m, l->of.rows, l->of.cols, copy, e) < 0)
        return e->code;
    l->w = *copy;
    return 0;
}

static size_t numbers(const struct tune_module *m)
{
    return (size_t)(m->rows * m->cols) * sizeof(float);
}

static int own(const struct tune_module *m, struct err *e)
{
    size_t groups =
        (size_t)m->rows * quant_groups((uint64_t)m->cols, (uint64_t)m->group);
    size_t w = (size_t)(m->rows * m->cols) * dtype_bits(m->dtype) / 8;

    return fake_must_own(m->meta, groups * 4, "tune", e) < 0 ||
                   fake_must_own(m->v, numbers(m), "tune", e) < 0 ||
                   fake_must_own(m->w, w, "tune", e) < 0 ?
               e->code :
               0;
}

static struct qgrid grid_at(const struct tune_module *m, int64_t i)
{
    int64_t groups =
        (int64_t)quant_groups((uint64_t)m->cols, (uint64_t)m->group);

    return quant_grid(m->meta[i / m->cols * groups + i % m->cols / m->group],
                      m->scale_dtype);
}

static int fake_values(struct cuda_context *c, const struct tune_module *m,
                       struct err *e)
{
    (void)c;
    if (own(m, e) < 0)
        return e->code;
    if (!is_tuned(m->w)) {
        if (made_count == ARRAY_LEN(made))
            return err_set(e, E_BUG, "the fake plug-in tunes 256 linears");
        made[made_count++] = m->w;
    }
    for (int64_t i = 0; i < m->rows * m->cols; i++) {
        struct qgrid g = grid_at(m, i);
        float code = fminf(fmaxf(rintf(m->v[i]), 0), (float)g.top);
        float w = quant_value((int)code, g);

        (void)!from_f32((char *)m->w + (size_t)i * dtype_bits(m->dtype) / 8,
                        m->dtype, &w, 1);
    }
    return 0;
}

static int step_one(struct cuda_context *c, const struct tune_module *m,
                    float rate, const float back[2], struct err *e)
{
    if (own(m, e) < 0 || fake_must_own(m->g, numbers(m), "step", e) < 0 ||
        fake_must_own(m->first, numbers(m), "step", e) < 0 ||
        fake_must_own(m->second, numbers(m), "step", e) < 0)
        return e->code;
    for (int64_t i = 0; i < m->rows * m->cols; i++) {
        float g = m->g[i] * grid_at(m, i).scale;

        m->first[i] = 0.9F * m->first[i] + 0.1F * g;
        m->second[i] = 0.98F * m->second[i] + 0.02F * g * g;
        m->v[i] -= rate * (m->first[i] / back[0]) /
                   (sqrtf(m->second[i] / back[1]) + 1e-12F);
    }
    return fake_values(c, m, e);
}

static int fake_step(struct cuda_context *c, const struct tune_module *m,
                     int64_t n, float rate, const float back[2], struct err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (step_one(c, &m[i], rate, back, e) < 0)
            return e->code;
    return 0;
}

__attribute__((visibility("default")))
const struct tune_table forge_tune_table = { TUNE_TABLE_VERSION, fake_values,
                                             fake_step };

/* ---- the divergence ---- */

/* Logits z[vocab] of y[h], their derivatives, and the logarithm of the sum of their
 * exponentials. */
static double logits(const struct backward_divergence *a, const float *y,
                     double *z, double *slope)
{
    double most = -INFINITY, sum = 0, cap = (double)a->cap;

    for (int64_t v = 0; v < a->vocab; v++) {
        double x = 0, t;

        for (int64_t k = 0; k < a->h; k++)
            x += (double)y[k] * (double)f32_from_bf16(a->w[v * a->h + k]);
        x *= (double)a->scale;
        t = cap > 0 ? tanh(x / cap) : 0;
        z[v] = cap > 0 ? cap * t : x;
        slope[v] = (double)a->scale * (1 - t * t);
        most = fmax(most, z[v]);
    }
    for (int64_t v = 0; v < a->vocab; v++)
        sum += exp(z[v] - most);
    return most + log(sum);
}

static void diverge_row(const struct backward_divergence *a, int64_t row,
                        double *p, double *q, double *slope)
{
    double of_p = logits(a, a->ref + row * a->h, p, slope);
    double of_q = logits(a, a->y + row * a->h, q, slope);
    float *g = a->g + row * a->h;

    for (int64_t k = 0; k < a->h; k++)
        g[k] = 0;
    for (int64_t v = 0; v < a->vocab; v++) {
        double x = exp(p[v] - of_p), d = exp(q[v] - of_q) - x;

        *a->kl += x * (p[v] - of_p - q[v] + of_q);
        for (int64_t k = 0; k < a->h; k++)
            g[k] += (float)((double)a->by * d * slope[v] *
                            (double)f32_from_bf16(a->w[v * a->h + k]));
    }
}

int fake_divergence(struct cuda_context *c, const struct backward_divergence *a,
                    struct err *e)
{
    size_t rows = (size_t)(a->rows * a->h) * sizeof(float);
    double *p;

    (void)c;
    if (fake_must_own(a->w, (size_t)(a->vocab * a->h) * 2, "KL", e) < 0 ||
        fake_must_own(a->ref, rows, "KL", e) < 0 ||
        fake_must_own(a->y, rows, "KL", e) < 0 ||
        fake_must_own(a->g, rows, "KL", e) < 0)
        return e->code;
    p = mem_alloc((size_t)a->vocab * 3 * sizeof(*p), "KL", e);
    if (!p)
        return e->code;
    *a->kl = 0;
    for (int64_t i = 0; i < a->rows; i++)
        diverge_row(a, i, p, p + a->vocab, p + 2 * a->vocab);
    free(p);
    return 0;
}
