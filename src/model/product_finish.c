/* product_finish.c - see internal.h: from the sums of products to their outputs: bias, addition,
 * gating. */
#include "common/math/threads.h"
#include "model/internal.h"
#include "model/kernels.h"

static const float *bias_at(const struct loaded *l, int64_t o)
{
    return l->bias ? l->bias + o : NULL;
}

/* out[n] = act(g + gb) * (u + ub), elements; gb, ub NULL: no bias. */
static void gate(const struct model *m, const float *g, const float *u,
                 const float *gb, const float *ub, int64_t n, void *out)
{
    const struct model_config *c = &m->config;
    const struct kernels *k = m->k;
    bool gelu = c->family->act == ACT_GELU;
    float alpha = (float)c->gate_alpha, limit = (float)c->gate_limit;

    if (c->family->act == ACT_CLAMPED && m->bf16)
        k->clamped_bf16(g, u, gb, ub, alpha, limit, n, out);
    else if (c->family->act == ACT_CLAMPED)
        k->clamped_f32(g, u, gb, ub, alpha, limit, n, out);
    else if (m->bf16)
        (gelu ? k->gelu_bf16 : k->gate_bf16)(g, u, gb, ub, n, out);
    else
        (gelu ? k->gelu_f32 : k->gate_f32)(g, u, gb, ub, n, out);
}

void product_finish(const struct product *p, int64_t r, int64_t o, int64_t n,
                    const float *y, const float *u)
{
    const struct kernels *k = p->m->k;
    const float *b = bias_at(p->first, o);
    int64_t at = r * p->first->of.rows + o;
    uint16_t *h = (uint16_t *)p->out + at;
    float *f = (float *)p->out + at;

    if (p->second)
        gate(p->m, y, u, b, bias_at(p->second, o), n,
             p->m->bf16 ? (void *)h : f);
    else if (p->add && p->m->bf16)
        k->add_bf16(y, b, n, h);
    else if (p->add)
        k->add_f32(y, b, n, f);
    else if (p->m->bf16)
        k->store_bf16(y, b, n, h);
    else
        k->store_f32(y, b, n, f);
}

/* ---- gate and up that are there already ---- */

struct pair_job {
    const struct model *m;
    const struct gate_pair *of;
};

static void gate_pair_rows(void *ctx, size_t begin, size_t end)
{
    enum { PIECE = 256 };
    const struct pair_job *j = ctx;
    const struct gate_pair *p = j->of;
    enum dtype t = j->m->dtype;
    size_t size = j->m->size;
    float g[PIECE], u[PIECE];

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        for (int64_t i = 0; i < p->n; i += PIECE) {
            int64_t n = p->n - i < PIECE ? p->n - i : PIECE;

            if (!to_f32(g, (const char *)p->g + (size_t)(r * p->ldg + i) * size,
                        t, (size_t)n) ||
                !to_f32(u, (const char *)p->u + (size_t)(r * p->ldu + i) * size,
                        t, (size_t)n))
                return; /* not with a float's dtype */
            gate(j->m, g, u, NULL, NULL, n,
                 (char *)p->out + (size_t)(r * p->n + i) * size);
        }
}

int gate_pair(const struct model *m, const struct gate_pair *p, struct err *e)
{
    struct pair_job j = { m, p };

    if (m->on)
        return device_pair(m, p, e);
    threads_for((size_t)p->rows, 8, gate_pair_rows, &j);
    return 0;
}
