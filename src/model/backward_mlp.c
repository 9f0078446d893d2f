/* backward_mlp.c - see backward.h: the MLP of a layer, or its experts.
 *
 * Tokens are processed in parts; experts run over all tokens, whose inputs and
 * gradients are then kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/rounded.h"
#include "model/backward.h"
#include "model/backward_parts.h"
#include "model/moe.h"
#include "model/read_ahead.h"

/* The linears of an MLP. */
struct mlp {
    struct loaded of[MLP_LINEARS];
    struct loaded both; /* gate and up in one, of which of[] has parts */
};

struct pass {
    struct model *m;
    int64_t layer, n, h;
    const char *x;    /* [n, h], elements, the host's or not: */
    bool there;       /* it is where layers run */
    const float *out; /* [n, h] of what the MLP puts out */
    float *g;         /* [n, h] */
    struct token_squares squares;
    int64_t gate;      /* number of the first linear of `common` */
    float *norm;       /* NULL: the layer has none in front of the MLP */
    struct mlp common; /* the dense MLP, or the shared expert */
    bool has_common, sparse;
    float *shared_gate;            /* [h]; NULL: the shared expert has none */
    struct router *router;         /* of a mixture */
    struct routing own;            /* of all tokens, by it */
    const struct routing *routing; /* that one, or the caller's */
    const struct margins *margins;
    struct buffer rows, normed;  /* of a part: x on a device; norm(x) */
    struct buffer token, weight; /* of all experts' tokens; of gates */
    struct token_rows in, gin;   /* inputs of the MLP, gradients with respect to
                                   * them: of a part, or in a mixture of all
                                   * tokens */
};

static void mlp_release(struct mlp *p)
{
    if (p->both.w)
        p->of[MLP_GATE] = p->of[MLP_UP] = (struct loaded){ 0 };
    for (int i = 0; i < MLP_LINEARS; i++)
        loaded_release(&p->of[i]);
    loaded_release(&p->both);
}

/* Read the three linears of a layer from number `first` on. */
static int mlp_read(struct model *m, int64_t layer, int64_t first,
                    struct mlp *p, struct err *e)
{
    *p = (struct mlp){ 0 };
    for (int i = 0; i < MLP_LINEARS; i++) {
        model_linear(&m->config, layer, first + i, &p->of[i].of);
        if (backward_read(m, &p->of[i], e) < 0)
            return e->code;
    }
    return 0;
}

static int mlp_place(struct model *m, struct mlp *p, struct err *e)
{
    for (int i = 0; i < MLP_LINEARS; i++)
        if (backward_place(m, &p->of[i], e) < 0)
            return e->code;
    return 0;
}

static int mlp_load(struct model *m, int64_t layer, int64_t first,
                    struct mlp *p, struct err *e)
{
    return mlp_read(m, layer, first, p, e) < 0 ? e->code : mlp_place(m, p, e);
}

/* The same of a dense MLP or shared expert, whose last linear is number end - 1,
 * with gate and up in one. */
static int mlp_load_fused(struct model *m, int64_t layer, int64_t end,
                          struct mlp *p, struct err *e)
{
    struct loaded *gate = &p->of[MLP_GATE], *up = &p->of[MLP_UP];
    int64_t n;

    *p = (struct mlp){ 0 };
    model_linear(&m->config, layer, end - 2, &p->both.of);
    model_linear(&m->config, layer, end - 1, &p->of[MLP_DOWN].of);
    if (backward_load(m, &p->both, e) < 0 ||
        backward_load(m, &p->of[MLP_DOWN], e) < 0)
        return e->code;
    n = p->both.of.rows / 2;
    gate->of.rows = up->of.rows = n;
    gate->w = p->both.w;
    up->w = backward_weight_at(m, &p->both, n);
    gate->bias = p->both.bias;
    up->bias = p->both.bias ? p->both.bias + n : NULL;
    return 0;
}

/* The gradients with respect to its weights are added, where they are tuned. */
static int tune(const struct pass *s, const struct mlp *p,
                struct backward_mlp *a, struct err *e)
{
    const struct loaded *both = p->both.w ? &p->both : NULL;

    for (int i = 0; i < MLP_LINEARS; i++) {
        const struct loaded *l = i < MLP_DOWN && both ? both : &p->of[i];

        if (backward_tuned(s->m, &l->of, &a->weights[i], e) < 0)
            return e->code;
    }
    if (both && a->weights[MLP_UP])
        a->weights[MLP_UP] += a->width * a->h;
    return 0;
}

/* Run the MLP p for `rows` rows of in, g and gin; token, weight: as in struct
 * backward_mlp. */
static int run(const struct pass *s, const struct mlp *p, struct backward_mlp a,
               struct err *e)
{
    a.gating = model_gating(s->m);
    a.bf16 = backward_bf16(s->m);
    a.h = s->h;
    a.width = p->of[MLP_GATE].of.rows;
    for (int i = 0; i < MLP_LINEARS; i++) {
        a.w[i] = p->of[i].w;
        a.bias[i] = p->of[i].bias;
    }
    a.rounded = rounded(a.rows);
    return s->m->tuning && tune(s, p, &a, e) < 0 ?
               e->code :
               backward_of(s->m)->mlp(s->m->context, &a, e);
}

/* ---- open ---- */

static int load_common(struct pass *s, struct err *e)
{
    const struct model_config *c = &s->m->config;
    char part[MODULE_PATH_MAX], name[MODULE_PATH_MAX];
    int64_t end;

    s->has_common = model_layer_width(c, s->layer) > 0;
    if (!s->has_common)
        return 0;
    end = model_linear_common(c, s->layer);
    s->gate = end - (c->family->fused_mlp ? 2 : MLP_LINEARS);
    if ((c->family->fused_mlp ?
             mlp_load_fused(s->m, s->layer, end, &s->common, e) :
             mlp_load(s->m, s->layer, end - MLP_LINEARS, &s->common, e)) < 0)
        return e->code;
    if (!c->family->shared_gate || !s->sparse)
        return 0;
    snprintf(part, sizeof(part), "%s.weight", c->family->shared_gate);
    layer_tensor_name(s->layer, part, name);
    return backward_vector(s->m, name, s->h, &s->shared_gate, e);
}

static int open(struct pass *s, const char *dir, struct err *e)
{
    const struct model_config *c = &s->m->config;
    int64_t part = s->n < GRADIENT_ROWS ? s->n : GRADIENT_ROWS;
    int64_t kept = s->sparse ? s->n : part;
    const char *norm = model_norms(c)->mlp_in;

    if ((norm &&
         backward_norm_vector(s->m, s->layer, norm, s->h, &s->norm, e) < 0) ||
        token_rows_open(&s->in, s->m, dir, kept * s->h, e) < 0 ||
        token_rows_open(&s->gin, s->m, dir, kept * s->h, e) < 0 ||
        model_reserve(s->m, &s->normed, part, s->h, s->m->size, "gradients",
                      e) < 0 ||
        load_common(s, e) < 0)
        return e->code;
    if (!s->sparse)
        return 0;
    if (router_load(s->m, s->layer, &s->router, e) < 0)
        return e->code;
    if (s->routing)
        return 0;
    s->routing = &s->own;
    return routing_create(&s->own, s->n, c->moe.top_k, e);
}

static void close_pass(struct pass *s)
{
    mlp_release(&s->common);
    model_free(s->m, s->norm);
    model_free(s->m, s->shared_gate);
    router_release(s->router);
    routing_release(&s->own);
    token_rows_close(&s->in);
    token_rows_close(&s->gin);
    model_buffer_release(s->m, &s->rows);
    model_buffer_release(s->m, &s->normed);
    model_buffer_release(s->m, &s->token);
    model_buffer_release(s->m, &s->weight);
}

/* ---- a part of the tokens ---- */

struct part {
    int64_t at, n;
    const void *x; /* their rows, where layers run */
    const float *out;
    float *in, *gin, *g;
};

/* Part number i; 0: there are no more; 1. */
static int next_part(struct pass *s, int64_t i, struct part *p, struct err *e)
{
    int64_t at = i * GRADIENT_ROWS, left = s->n - at;
    int64_t kept = s->sparse ? at * s->h : 0;

    if (left <= 0)
        return 0;
    *p = (struct part){ .at = at,
                        .n = left < GRADIENT_ROWS ? left : GRADIENT_ROWS,
                        .in = s->in.p + kept,
                        .gin = s->gin.p + kept,
                        .out = s->out + at * s->h,
                        .g = s->g + at * s->h };
    return backward_rows(s->m, &s->rows,
                         s->x + (size_t)(at * s->h) * s->m->size, s->there,
                         p->n, &p->x, e) < 0 ?
               e->code :
               1;
}

/* Those of gate, up or down; where gate and up are one, of both. */
static float *squares_of(const struct pass *s, const struct part *p, int64_t i)
{
    const struct token_squares *q = &s->squares;

    if (s->common.both.w)
        i = i == MLP_DOWN;
    return q->p ? q->p + (s->gate + i) * q->ld + p->at : NULL;
}

static int run_common(struct pass *s, const struct part *p, struct err *e)
{
    const struct model *m = s->m;
    struct backward_mlp a = {
        .rows = p->n, .in = p->in, .g = p->out, .gin = p->gin
    };

    if (!s->has_common)
        return 0;
    a.squares[MLP_GATE] = squares_of(s, p, MLP_GATE);
    a.squares[MLP_UP] = squares_of(s, p, MLP_UP);
    if (s->squares.p &&
        backward_of(m)->squares(m->context, p->out, p->n, s->h,
                                squares_of(s, p, MLP_DOWN), e) < 0)
        return e->code;
    if (s->shared_gate) {
        if (model_reserve(m, &s->weight, s->n, 1, sizeof(float), "gates", e) <
                0 ||
            backward_of(m)->gates(m->context, p->in, s->shared_gate, p->n, s->h,
                                  s->weight.p, e) < 0)
            return e->code;
        a.weight = s->weight.p;
    }
    return run(s, &s->common, a, e);
}

static int run_part(struct pass *s, const struct part *p, struct err *e)
{
    const struct model *m = s->m;
    const void *in = s->norm ? s->normed.p : p->x;

    if ((s->norm && model_norm(m, p->x, s->norm, p->n, s->normed.p, e) < 0) ||
        backward_of(m)->widen(m->context, m->dtype, in, p->n * s->h, p->in, e) <
            0 ||
        (s->routing == &s->own &&
         router_run(s->router, in, p->n, &s->own, p->at, e) < 0) ||
        backward_zero(m, p->gin, (size_t)(p->n * s->h) * sizeof(float), e) < 0)
        return e->code;
    return run_common(s, p, e);
}

/* ---- the experts ---- */

/* The experts' tokens, and their weights, which are not 0, expert after expert; the
 * experts' linears, read ahead. */
struct experts {
    struct read_ahead ahead;
    struct pass *s;
    int64_t *first;  /* [experts + 1]: of each in `token` and `weight` */
    int64_t *choice; /* of each, in the routing */
    int64_t *token; /* the host's, as weight; the pass's are where layers run */
    float *weight;
    struct mlp item[READERS];
};

static int sort_tokens(struct experts *x, struct err *e)
{
    const struct routing *r = x->s->routing;
    const float *of = x->s->m->config.moe.weigh_inputs ? r->scores : r->weights;
    int64_t n = r->n * r->top_k, experts = x->ahead.turns;

    x->first = mem_zero((size_t)experts + 2, sizeof(*x->first), "experts", e);
    x->choice = mem_zero((size_t)n + 1, sizeof(*x->choice), "experts", e);
    x->token = mem_zero((size_t)n + 1, sizeof(*x->token), "experts", e);
    x->weight = mem_zero((size_t)n + 1, sizeof(*x->weight), "experts", e);
    if (!x->first || !x->choice || !x->token || !x->weight)
        return e->code;
    for (int64_t i = 0; i < n; i++)
        x->first[r->experts[i] + 2] += of[i] != 0;
    for (int64_t i = 1; i <= experts; i++)
        x->first[i + 1] += x->first[i];
    for (int64_t i = 0; i < n; i++)
        if (of[i] != 0) {
            int64_t at = x->first[r->experts[i] + 1]++;

            x->choice[at] = i;
            x->token[at] = i / r->top_k;
            x->weight[at] = of[i];
        }
    return 0;
}

static int run_expert(const struct experts *x, struct mlp *p, int64_t expert,
                      struct err *e)
{
    struct pass *s = x->s;
    const struct model *m = s->m;
    int64_t at = x->first[expert], n = x->first[expert + 1] - at;
    struct backward_mlp a = { .rows = n,
                              .token = (int64_t *)s->token.p + at,
                              .weight = (float *)s->weight.p + at,
                              .weigh_inputs = m->config.moe.weigh_inputs,
                              .in = s->in.p,
                              .g = s->g,
                              .gin = s->gin.p };

    if (!n)
        return 0;
    return mlp_place(s->m, p, e) < 0 ? e->code : run(s, p, a, e);
}

static int read_expert(void *ctx, int64_t expert, void *item, struct err *e)
{
    const struct experts *x = ctx;
    struct model *m = x->s->m;

    if (x->first[expert] == x->first[expert + 1])
        return 0;
    return mlp_read(m, x->s->layer,
                    model_linear_common(&m->config, x->s->layer) +
                        MLP_LINEARS * expert,
                    item, e);
}

static void release_item(void *item)
{
    mlp_release(item);
}

static int run_all(struct experts *x, struct err *e)
{
    int rc = 0;

    readers_start(&x->ahead, x->s->m);
    for (int64_t i = 0; i < x->ahead.turns && rc >= 0; i++) {
        struct mlp *p;

        rc = readers_next(&x->ahead, i, (void *)&p, e);
        if (rc >= 0)
            rc = run_expert(x, p, i, e);
        if (rc >= 0)
            readers_go_on(&x->ahead, i);
    }
    readers_end(&x->ahead);
    return rc;
}

/* Move the experts' tokens and their weights to where layers run. */
static int place_tokens(const struct experts *x, struct err *e)
{
    struct pass *s = x->s;
    const struct model *m = s->m;
    int64_t n = x->first[x->ahead.turns];

    return model_reserve(m, &s->token, n, 1, sizeof(*x->token), "experts", e) <
                       0 ||
                   model_reserve(m, &s->weight, n, 1, sizeof(*x->weight),
                                 "experts", e) < 0 ||
                   model_put(m, s->token.p, x->token,
                             (size_t)n * sizeof(*x->token), e) < 0 ||
                   model_put(m, s->weight.p, x->weight,
                             (size_t)n * sizeof(*x->weight), e) < 0 ?
               e->code :
               0;
}

/* ---- all experts in one call ---- */

/* Linear i of an expert. */
static void linear_of(const struct pass *s, int64_t expert, int64_t i,
                      struct linear *l)
{
    const struct model_config *c = &s->m->config;

    model_linear(c, s->layer,
                 model_linear_common(c, s->layer) + MLP_LINEARS * expert + i,
                 l);
}

/* w and to, [MLP_LINEARS, experts]: weights, and gradients with respect to them.  1; 0: a
 * linear has a bias, or is not tuned. */
static int list_weights(const struct pass *s, int64_t experts, const void **w,
                        float **to, struct err *e)
{
    struct linear l;

    for (int64_t i = 0; i < experts; i++)
        for (int64_t k = 0; k < MLP_LINEARS; k++) {
            linear_of(s, i, k, &l);
            w[k * experts + i] = model_tuned_there(s->m, l.module);
            if (l.bias || !w[k * experts + i])
                return 0;
            if (backward_tuned(s->m, &l, &to[k * experts + i], e) < 0)
                return e->code;
        }
    return 1;
}

static int run_lists(const struct experts *x, const void **w, float **to,
                     const int64_t *row, struct err *e)
{
    const struct pass *s = x->s;
    const struct model *m = s->m;
    int64_t experts = x->ahead.turns;
    struct backward_experts a = { .of = { .rows = x->first[experts],
                                          .h = s->h,
                                          .width = m->config.moe.width,
                                          .bf16 = true,
                                          .token = s->token.p,
                                          .weight = s->weight.p,
                                          .in = s->in.p,
                                          .g = s->g,
                                          .gin = s->gin.p,
                                          .gating = model_gating(m),
                                          .weigh_inputs =
                                              m->config.moe.weigh_inputs,
                                          .rounded = true },
                                  .experts = experts,
                                  .tokens = s->n,
                                  .top_k = s->routing->top_k,
                                  .first = x->first,
                                  .row = row };

    for (int i = 0; i < MLP_LINEARS; i++) {
        a.w[i] = w + i * experts;
        a.weights[i] = to + i * experts;
    }
    return backward_of(m)->experts(m->context, &a, e);
}

/* Run them so on a GPU, if it has all their weights and their products are rounded.  1;
 * 0: not. */
static int run_together(const struct experts *x, struct err *e)
{
    const struct pass *s = x->s;
    const struct model *m = s->m;
    size_t n = (size_t)(MLP_LINEARS * x->ahead.turns);
    const void **w;
    float **to;
    int64_t *row = NULL;
    int rc;

    if (!m->on || !m->tuning || !backward_bf16(m) || !rounded(s->n) ||
        s->h % 8 || m->config.moe.width % 8)
        return 0;
    w = mem_zero(n, sizeof(*w), "experts", e);
    to = mem_zero(n, sizeof(*to), "experts", e);
    rc = w && to ? list_weights(s, x->ahead.turns, w, to, e) : e->code;
    if (rc > 0)
        rc = experts_place_rows(m, x->choice, x->first[x->ahead.turns],
                                s->routing->n * s->routing->top_k, &row,
                                e) < 0 ||
                     run_lists(x, w, to, row, e) < 0 ?
                 e->code :
                 1;
    model_free(m, row);
    free(w);
    free(to);
    return rc;
}

static int run_experts(struct pass *s, struct err *e)
{
    struct experts x = { .ahead = { .read = read_expert,
                                    .release = release_item,
                                    .turns = model_layer_experts(&s->m->config,
                                                                 s->layer),
                                    .size = sizeof(x.item[0]) },
                         .s = s };
    int rc = sort_tokens(&x, e);

    x.ahead.ctx = &x;
    x.ahead.item = x.item;
    if (rc >= 0)
        rc = place_tokens(&x, e);
    if (rc >= 0)
        rc = run_together(&x, e);
    if (!rc)
        rc = run_all(&x, e);
    free(x.first);
    free(x.choice);
    free(x.token);
    free(x.weight);
    return rc;
}

/* ---- a layer ---- */

static int norm_part(const struct pass *s, const struct part *p, struct err *e)
{
    return backward_stream(s->m, p->x, s->norm, p->gin, p->n, p->g, false, e);
}

static int run_layer(struct pass *s, struct err *e)
{
    struct part p;
    int rc;

    for (int64_t i = 0; (rc = next_part(s, i, &p, e)) > 0; i++)
        if (run_part(s, &p, e) < 0 || (!s->sparse && norm_part(s, &p, e) < 0))
            return e->code;
    if (rc < 0 || !s->sparse)
        return rc;
    if (run_experts(s, e) < 0 ||
        (s->margins &&
         router_margins(s->router, s->margins, s->in.p, s->n, s->gin.p, e) < 0))
        return e->code;
    for (int64_t i = 0; (rc = next_part(s, i, &p, e)) > 0; i++)
        if (norm_part(s, &p, e) < 0)
            return e->code;
    return rc;
}

int backward_mlp(struct model *m, const struct backward_block *b, struct err *e)
{
    struct pass s = { .m = m,
                      .layer = b->layer,
                      .n = b->n,
                      .h = m->config.hidden_size,
                      .x = b->x,
                      .there = b->there,
                      .out = b->out,
                      .g = b->g,
                      .squares = b->squares,
                      .routing = b->routing,
                      .margins = b->margins,
                      .sparse = model_layer_experts(&m->config, b->layer) > 0 };
    int rc = open(&s, b->dir, e);

    if (rc >= 0)
        rc = run_layer(&s, e);
    close_pass(&s);
    return rc;
}
