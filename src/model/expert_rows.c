/* expert_rows.c - see expert_rows.h, and moe.h. */
#include "model/expert_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"

/* ---- which tokens ---- */

/* Whether a choice is real: in a --mode remap checkpoint a pruned expert's
 * choice is replaced by expert 0 with weight 0, and must not count as one of
 * expert 0. */
static bool counts(const struct routing *r, bool remapped, int64_t choice)
{
    return !remapped || r->weights[choice] != 0;
}

int pass_sort_tokens(struct pass *x, struct err *e)
{
    const struct routing *r = x->p->routing;
    bool remapped = x->m->expert_map;
    int64_t n = r->n * r->top_k;

    x->first =
        mem_zero((size_t)x->n_experts + 2, sizeof(*x->first), "experts", e);
    x->slot = mem_zero((size_t)n + 1, sizeof(*x->slot), "experts", e);
    if (!x->first || !x->slot)
        return e->code;
    for (int64_t i = 0; i < n; i++) {
        if (r->experts[i] < 0 || r->experts[i] >= x->n_experts)
            return err_set(e, E_BUG, "no expert %d", r->experts[i]);
        x->first[r->experts[i] + 2] += counts(r, remapped, i);
    }
    for (int64_t i = 1; i <= x->n_experts; i++)
        x->first[i + 1] += x->first[i];
    for (int64_t i = 0; i < n; i++)
        if (counts(r, remapped, i))
            x->slot[x->first[r->experts[i] + 1]++] = i;
    return 0;
}

int64_t pass_tokens_of(const struct pass *x, int64_t expert)
{
    return x->first[expert + 1] - x->first[expert];
}

int64_t pass_most_tokens(const struct pass *x)
{
    int64_t most = 0;

    for (int64_t i = 0; i < x->n_experts; i++)
        if (pass_tokens_of(x, i) > most)
            most = pass_tokens_of(x, i);
    return most;
}

int pass_count_tokens(struct pass *x, struct err *e)
{
    if (!x->p->stats)
        return 0;
    x->counts =
        mem_alloc((size_t)(x->n_experts * EXPERT_STATS) * sizeof(*x->counts),
                  "experts", e);
    if (!x->counts)
        return e->code;
    experts_count(x->p->routing, x->m->expert_map, x->n_experts, x->counts);
    return 0;
}

/* ---- a part of an expert's rows ---- */

void multiply_row(enum dtype type, void *row, int64_t n, float by)
{
    enum { PIECE = 256 };
    float t[PIECE];

    for (int64_t c = 0; c < n; c += PIECE) {
        size_t k = n - c < PIECE ? (size_t)(n - c) : PIECE;
        char *at = (char *)row + (size_t)c * (dtype_bits(type) / 8);

        (void)!to_f32(t, at, type, k);
        for (size_t i = 0; i < k; i++)
            t[i] *= by;
        (void)!from_f32(at, type, t, k);
    }
}

static void gather_rows(void *ctx, size_t begin, size_t end)
{
    const struct part *j = ctx;
    const struct pass *x = j->x;
    size_t row = (size_t)x->h * x->m->size;

    for (size_t i = begin; i < end; i++) {
        int64_t s = x->slot[j->first + (int64_t)i];

        memcpy((char *)j->to + i * row,
               (const char *)j->from + (size_t)(s / x->p->routing->top_k) * row,
               row);
        if (x->m->config.moe.weigh_inputs)
            multiply_row(x->m->dtype, (char *)j->to + i * row, x->h,
                         x->p->routing->scores[s]);
    }
}

static struct forward_rows rows_of(const struct part *j)
{
    const struct pass *x = j->x;

    return (struct forward_rows){ .dtype = x->m->dtype,
                                  .rows = j->n,
                                  .n = x->h,
                                  .top_k = x->p->routing->top_k,
                                  .slot = x->device_slot + j->first };
}

static int gather_from(struct part *j, const void *from, void *to,
                       struct err *e)
{
    const struct model *m = j->x->m;
    struct forward_rows r;

    if (m->on) {
        r = rows_of(j);
        r.by = j->x->device_score;
        return m->on->gather(m->context, &r, to, from, e);
    }
    j->from = from;
    j->to = to;
    threads_for((size_t)j->n, 64, gather_rows, j);
    return 0;
}

int part_gather(struct part *j, void *reference, struct err *e)
{
    const struct experts_pass *p = j->x->p;

    if (gather_from(j, p->in, j->x->in.p, e) < 0)
        return e->code;
    return reference ? gather_from(j, p->reference, reference, e) : 0;
}

/* sum += weight * out, if there is a sum, and weight * ||out||. */
static void scatter_rows(void *ctx, size_t begin, size_t end)
{
    const struct part *j = ctx;
    struct pass *x = j->x;
    const struct routing *r = x->p->routing;
    enum { PIECE = 256 };

    for (size_t i = begin; i < end; i++) {
        int64_t s = x->slot[j->first + (int64_t)i];
        float *to = x->p->sum ? x->p->sum + s / r->top_k * x->h : NULL;
        float w = r->weights[s];
        const char *y = (const char *)x->out.p + i * (size_t)x->h * x->m->size;
        double squares = 0;
        float t[PIECE];

        for (int64_t c = 0; c < x->h; c += PIECE) {
            int64_t n = x->h - c < PIECE ? x->h - c : PIECE;

            if (!to_f32(t, y + (size_t)c * x->m->size, x->m->dtype, (size_t)n))
                return; /* not with a float's dtype */
            for (int64_t k = 0; k < n; k++)
                squares += (double)t[k] * (double)t[k];
            for (int64_t k = 0; to && k < n; k++)
                to[c + k] += w * t[k];
        }
        x->norm[i] = (double)w * sqrt(squares);
    }
}

int part_scatter(struct part *j, struct err *e)
{
    struct pass *x = j->x;
    const struct model *m = x->m;
    struct forward_rows r;

    if (m->on) {
        r = rows_of(j);
        return m->on->scatter(m->context, &r, x->p->sum, x->device_weight,
                              x->out.p, x->squares + j->first, e);
    }
    threads_for((size_t)j->n, 16, scatter_rows, j);
    for (int64_t i = 0; i < j->n; i++)
        x->norms += x->norm[i];
    return 0;
}

/* ---- on a device ---- */

int pass_place_slots(struct pass *x, struct err *e)
{
    const struct routing *r = x->p->routing;
    const struct model *m = x->m;
    size_t n = (size_t)x->first[x->n_experts], all = (size_t)(r->n * r->top_k);

    if (model_alloc(m, (void **)&x->device_slot, n * sizeof(*x->slot), true,
                    NULL, e) < 0 ||
        (m->config.moe.weigh_inputs &&
         (model_alloc(m, (void **)&x->device_score, all * sizeof(*r->scores),
                      true, NULL, e) < 0 ||
          model_put(m, x->device_score, r->scores, all * sizeof(*r->scores),
                    e) < 0)) ||
        model_alloc(m, (void **)&x->device_weight, all * sizeof(*r->weights),
                    true, NULL, e) < 0 ||
        model_alloc(m, (void **)&x->squares, n * sizeof(*x->squares), true,
                    NULL, e) < 0 ||
        model_put(m, x->device_slot, x->slot, n * sizeof(*x->slot), e) < 0)
        return e->code;
    return model_put(m, x->device_weight, r->weights, all * sizeof(*r->weights),
                     e);
}

/* The norms of the weighted outputs, from the device's sums of squares. */
int pass_add_norms(struct pass *x, struct err *e)
{
    const struct routing *r = x->p->routing;
    size_t n = (size_t)x->first[x->n_experts];
    double *squares;

    if (!x->p->stats)
        return 0;
    squares = mem_alloc((n + 1) * sizeof(*squares), "experts", e);
    if (!squares ||
        model_get(x->m, squares, x->squares, n * sizeof(*squares), e) < 0) {
        free(squares);
        return e->code;
    }
    for (int64_t t = 0; t < x->turns; t++) {
        int64_t i = pass_expert(x, t);

        for (int64_t k = x->first[i]; k < x->first[i + 1]; k++)
            x->p->stats[i * EXPERT_STATS + EXPERT_NORMS] +=
                (double)r->weights[x->slot[k]] * sqrt(squares[k]);
    }
    free(squares);
    return 0;
}

void pass_release_slots(struct pass *x)
{
    if (x->m->on) {
        model_free(x->m, x->mids);
        model_free(x->m, x->references);
        model_free(x->m, x->device_slot);
        model_free(x->m, x->device_weight);
        model_free(x->m, x->device_score);
        model_free(x->m, x->squares);
    }
    region_release(&x->mid_rows);
}

/* ---- reference + share * difference of the streams ---- */

struct share_job {
    const struct model *m;
    const struct expert_rows *r;
    int64_t top_k;
    const float *share;
    const char *reference, *here;
    char *to;
};

static void add_share_rows(void *ctx, size_t begin, size_t end)
{
    const struct share_job *j = ctx;
    size_t h = (size_t)j->m->config.hidden_size, row = h * j->m->size;
    enum { PIECE = 256 };

    for (size_t i = begin; i < end; i++) {
        int64_t slot = j->r->slot[i];
        size_t token = (size_t)(slot / j->top_k);
        const char *from[] = { (const char *)j->r->reference + i * row,
                               j->reference + token * row,
                               j->here + token * row };
        float s = j->share[slot], v[3][PIECE];

        for (size_t c = 0; c < h; c += PIECE) {
            size_t n = h - c < PIECE ? h - c : PIECE;

            for (int k = 0; k < 3; k++)
                (void)!to_f32(v[k], from[k] + c * j->m->size, j->m->dtype, n);
            for (size_t k = 0; k < n; k++)
                v[0][k] += s * (v[1][k] - v[2][k]);
            (void)!from_f32(j->to + i * row + c * j->m->size, j->m->dtype, v[0],
                            n);
        }
    }
}

int experts_add_share(struct model *m, const struct expert_rows *r,
                      int64_t top_k, const float *share, const void *reference,
                      const void *here, void *to, struct err *e)
{
    struct share_job j = { m, r, top_k, share, reference, here, to };
    struct forward_rows rows = { .dtype = m->dtype,
                                 .rows = r->n,
                                 .n = m->config.hidden_size,
                                 .top_k = top_k,
                                 .slot = r->device_slot };

    if (m->on)
        return m->on->add_share(m->context, &rows, to, r->reference, share,
                                reference, here, e);
    threads_for((size_t)r->n, 64, add_share_rows, &j);
    return 0;
}

void experts_count(const struct routing *r, bool remapped, int64_t experts,
                   double *stats)
{
    memset(stats, 0, (size_t)(experts * EXPERT_STATS) * sizeof(*stats));
    for (int64_t i = 0; i < r->n * r->top_k; i++) {
        double *to = stats + r->experts[i] * EXPERT_STATS;
        double w = (double)r->weights[i];

        if (!counts(r, remapped, i))
            continue;
        to[EXPERT_TOKENS] += 1;
        to[EXPERT_SCORES] += (double)r->scores[i];
        to[EXPERT_WEIGHTS] += w;
        to[EXPERT_SQUARES] += w * w;
    }
    for (int64_t i = 0; r->mass && i < experts; i++)
        stats[i * EXPERT_STATS + EXPERT_MASS] = r->mass[i];
}

/* ---- into the residual stream ---- */

struct add_job {
    const struct model *m;
    void *x;
    const float *sum;
};

static void add_rows(void *ctx, size_t begin, size_t end)
{
    const struct add_job *j = ctx;
    int64_t h = j->m->config.hidden_size;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        if (j->m->bf16)
            j->m->k->add_bf16(j->sum + r * h, NULL, h,
                              (uint16_t *)j->x + r * h);
        else
            j->m->k->add_f32(j->sum + r * h, NULL, h, (float *)j->x + r * h);
}

int model_add(const struct model *m, void *x, const float *sum, int64_t n,
              struct err *e)
{
    struct add_job j = { .m = m, .x = x, .sum = sum };

    if (m->on)
        return m->on->add(m->context, m->dtype, x, sum,
                          n * m->config.hidden_size, e);
    threads_for((size_t)n, 32, add_rows, &j);
    return 0;
}
