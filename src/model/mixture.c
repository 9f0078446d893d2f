/* mixture.c - see moe.h: the routed part of a layer, over all tokens. */
#include <stdlib.h>
#include <string.h>

#include "model/internal.h"
#include "model/moe.h"

int mixture_open(struct mixture *x, struct model *m, int64_t layer,
                 int64_t tokens, const char *dir, struct err *e)
{
    const struct model_config *c = &m->config;
    size_t n;

    *x = (struct mixture){ .m = m, .layer = layer, .dir = dir };
    region_init(&x->in, dir);
    region_init(&x->sum, dir);
    if (size_mul((size_t)tokens, (size_t)c->hidden_size * sizeof(float), &n))
        return err_set(e, E_TEMP, "hidden states: too many tokens");
    if (router_load(m, layer, &x->router, e) < 0 ||
        routing_create(&x->routing, tokens, c->moe.top_k, e) < 0 ||
        routing_weigh(&x->routing, c->moe.n_experts, e) < 0 ||
        region_reserve(&x->in, n / sizeof(float) * m->size, e) < 0 ||
        region_reserve(&x->sum, n, e) < 0) {
        mixture_close(x);
        return e->code;
    }
    return 0;
}

void mixture_close(struct mixture *x)
{
    router_release(x->router);
    routing_release(&x->routing);
    region_release(&x->in);
    region_release(&x->sum);
    *x = (struct mixture){ 0 };
}

int mixture_take(struct mixture *x, const struct state *s, int64_t at,
                 struct err *e)
{
    size_t row = (size_t)x->m->config.hidden_size * x->m->size;

    memcpy((char *)x->in.p + (size_t)at * row, s->act, (size_t)s->rows * row);
    return router_run(x->router, s->act, s->rows, &x->routing, at, e);
}

int mixture_run(struct mixture *x, const struct quantized *codes,
                const struct expert_hooks *hooks, double *stats, struct err *e)
{
    struct experts_pass p = { .m = x->m,
                              .layer = x->layer,
                              .routing = &x->routing,
                              .in = x->in.p,
                              .sum = x->sum.p,
                              .codes = codes,
                              .hooks = hooks,
                              .dir = x->dir,
                              .reference = x->reference,
                              .stats = stats };

    return experts_run(&p, e);
}

void mixture_add(const struct mixture *x, void *rows, int64_t at, int64_t n)
{
    const float *sum = x->sum.p;

    model_add(x->m, rows, sum + at * x->m->config.hidden_size, n);
}
