/* mixture.c - see moe.h: the routed experts of a layer, over all tokens. */
#include <stdlib.h>
#include <string.h>

#include "model/backward_parts.h"
#include "model/moe.h"

/* sum 0: none. */
static int reserve(struct mixture *x, size_t in, size_t sum, struct err *e)
{
    if (x->m->on) {
        if (model_alloc(x->m, &x->in, in, true, &x->spilled, e) < 0 ||
            (sum &&
             model_alloc(x->m, (void **)&x->sum, sum, true, NULL, e) < 0))
            return e->code;
        return 0;
    }
    if (region_reserve(&x->ins, in, e) < 0 ||
        (sum && region_reserve(&x->sums, sum, e) < 0))
        return e->code;
    x->in = x->ins.p;
    x->sum = x->sums.p;
    return 0;
}

static size_t sum_bytes(const struct mixture *x, int64_t tokens)
{
    return (size_t)(tokens * x->m->config.hidden_size) * sizeof(float);
}

int mixture_open(struct mixture *x, struct model *m, int64_t layer,
                 int64_t tokens, int64_t sums, const char *dir, struct err *e)
{
    const struct model_config *c = &m->config;
    size_t n;

    *x = (struct mixture){ .m = m, .layer = layer, .dir = dir, .summed = sums };
    region_init(&x->ins, dir);
    region_init(&x->sums, dir);
    if (size_mul((size_t)tokens, (size_t)c->hidden_size * sizeof(float), &n))
        return err_set(e, E_TEMP, "hidden states: too many tokens");
    if (router_load(m, layer, &x->router, e) < 0 ||
        routing_create(&x->routing, tokens, c->moe.top_k, e) < 0 ||
        routing_want_mass(&x->routing, c->moe.n_experts, e) < 0 ||
        reserve(x, n / sizeof(float) * m->size, sum_bytes(x, sums), e) < 0) {
        mixture_close(x);
        return e->code;
    }
    return 0;
}

void mixture_close(struct mixture *x)
{
    router_release(x->router);
    routing_release(&x->routing);
    if (x->m && x->m->on) {
        model_free(x->m, x->in);
        model_free(x->m, x->sum);
    }
    region_release(&x->ins);
    region_release(&x->sums);
    *x = (struct mixture){ 0 };
}

/* No outputs of so many tokens yet. */
static int clear_sums(struct mixture *x, int64_t tokens, struct err *e)
{
    if (x->m->on)
        return x->m->on->zero(x->m->context, x->sum, sum_bytes(x, tokens), e);
    memset(x->sum, 0, sum_bytes(x, tokens));
    return 0;
}

int mixture_restart(struct mixture *x, int64_t tokens, struct err *e)
{
    x->routing.n = tokens;
    memset(x->routing.mass, 0,
           (size_t)x->m->config.moe.n_experts * sizeof(*x->routing.mass));
    return clear_sums(x, tokens, e);
}

int mixture_keep(struct mixture *x, const struct state *s, int64_t at,
                 struct err *e)
{
    size_t row = (size_t)x->m->config.hidden_size * x->m->size;

    return model_copy(x->m, (char *)x->in + (size_t)at * row, s->act,
                      (size_t)s->rows * row, e);
}

int mixture_take(struct mixture *x, const struct state *s, int64_t at,
                 struct err *e)
{
    return mixture_keep(x, s, at, e) < 0 ?
               e->code :
               router_run(x->router, s->act, s->rows, &x->routing, at, e);
}

int mixture_logits(const struct mixture *x, const struct state *s,
                   float *logits, struct err *e)
{
    const struct model *m = x->m;
    struct buffer in = { 0 };
    int rc = model_reserve(m, &in, s->rows, m->config.hidden_size,
                           sizeof(float), "router", e);

    if (rc >= 0)
        rc = backward_of(m)->widen(m->context, m->dtype, s->act,
                                   s->rows * m->config.hidden_size, in.p, e);
    if (rc >= 0)
        rc = router_logits(x->router, in.p, s->rows, logits, e);
    model_buffer_release(m, &in);
    return rc;
}

int mixture_run(struct mixture *x, const struct quantized *codes,
                const struct expert_hooks *hooks, double *stats, struct err *e)
{
    struct experts_pass p = { .m = x->m,
                              .layer = x->layer,
                              .routing = &x->routing,
                              .in = x->in,
                              .sum = x->summed < x->routing.n ? NULL : x->sum,
                              .codes = codes,
                              .hooks = hooks,
                              .dir = x->dir,
                              .reference = x->reference,
                              .far = x->far,
                              .kept = x->kept,
                              .outputs = x->outputs,
                              .of = x->of,
                              .stats = stats };

    return experts_run(&p, e);
}

int mixture_run_part(struct mixture *x, const struct quantized *codes,
                     int64_t at, int64_t n, struct err *e)
{
    size_t row = (size_t)x->m->config.hidden_size * x->m->size;
    const struct routing *all = &x->routing;
    const struct routing part = { .n = n,
                                  .top_k = all->top_k,
                                  .experts = all->experts + at * all->top_k,
                                  .weights = all->weights + at * all->top_k,
                                  .scores = all->scores + at * all->top_k };
    const struct experts_pass p = { .m = x->m,
                                    .layer = x->layer,
                                    .routing = &part,
                                    .in = (char *)x->in + (size_t)at * row,
                                    .sum = x->sum,
                                    .codes = codes };

    x->first = at;
    return clear_sums(x, n, e) < 0 ? e->code : experts_run(&p, e);
}

int mixture_add(const struct mixture *x, void *rows, int64_t at, int64_t n,
                struct err *e)
{
    return model_add(x->m, rows,
                     x->sum + (at - x->first) * x->m->config.hidden_size, n, e);
}
