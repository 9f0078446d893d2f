/* experts_together.c - see expert_weights.h. */
#include <stdlib.h>
#include <string.h>

#include "model/expert_weights.h"

static bool fits(const struct expert *w)
{
    for (int i = 0; i < THREE; i++)
        if (!w->of[i].w || w->of[i].bias)
            return false;
    return true;
}

bool pass_runs_together(const struct pass *x)
{
    const struct experts_pass *p = x->p;

    if (!x->m->on || !x->m->bf16 || !p->kept || p->stats || p->outputs ||
        p->of.shares || !p->sum || x->h % 8 || x->width % 8)
        return false;
    for (int64_t i = 0; i < x->n_experts; i++)
        if (!fits(&p->kept->expert[i]))
            return false;
    return true;
}

int experts_place_rows(const struct model *m, const int64_t *choice,
                       int64_t rows, int64_t choices, int64_t **to,
                       struct err *e)
{
    size_t n = (size_t)choices * sizeof(**to);
    int64_t *row = mem_alloc(n + 1, "experts", e);
    void *p = NULL;
    int rc = row ? model_alloc(m, &p, n, false, NULL, e) : e->code;

    if (rc >= 0) {
        memset(row, -1, n);
        for (int64_t i = 0; i < rows; i++)
            row[choice[i]] = i;
        rc = model_put(m, p, row, n, e);
    }
    free(row);
    *to = p;
    return rc;
}

/* of[3, experts]: their weights. */
static void list_weights(const struct pass *x, const void **of)
{
    for (int i = 0; i < THREE; i++)
        for (int64_t k = 0; k < x->n_experts; k++)
            of[i * x->n_experts + k] = x->p->kept->expert[k].of[i].w;
}

int pass_run_together(struct pass *x, struct err *e)
{
    const struct routing *r = x->p->routing;
    struct model *m = x->m;
    struct forward_experts a = { .experts = x->n_experts,
                                 .tokens = r->n,
                                 .top_k = r->top_k,
                                 .h = x->h,
                                 .width = x->width,
                                 .first = x->first,
                                 .slot = x->device_slot,
                                 .gating = model_gating(m),
                                 .in = x->p->in,
                                 .by = x->device_score,
                                 .weight = x->device_weight,
                                 .sum = x->p->sum };
    const void **w =
        mem_alloc((size_t)(THREE * x->n_experts) * sizeof(*w), "experts", e);
    int64_t *row = NULL;
    int rc = w ? experts_place_rows(m, x->slot, x->first[x->n_experts],
                                    r->n * r->top_k, &row, e) :
                 e->code;

    if (rc >= 0) {
        list_weights(x, w);
        for (int i = 0; i < THREE; i++)
            a.w[i] = w + i * x->n_experts;
        a.row = row;
        rc = m->on->experts(m->context, &a, e);
    }
    model_free(m, row);
    free(w);
    return rc;
}
