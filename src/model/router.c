/* router.c - see moe.h: the router.
 *
 * Softmax (Mixtral, Qwen, DeepSeek-V2): the top-k probabilities, of all
 * experts or of the topk_group groups with the largest maximum.  Sigmoid
 * (DeepSeek-V3, GLM-4.5, MiniMax-M2): the top-k of score + correction bias, of
 * all experts or of the groups with the largest sum of their two best; the
 * weights are the scores without bias.  Experts of other groups are excluded
 * by -infinity, not 0: a corrected score may be negative. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/math/blas.h"
#include "common/math/lanes.h"
#include "common/math/threads.h"
#include "model/internal.h"
#include "model/route_exp.h"
#include "model/router_parts.h"

/* tokens whose scores are computed at a time, on the host, on a device */
enum { PART = 256, DEVICE_PART = 2048 };

int routing_create(struct routing *r, int64_t n, int64_t top_k, struct err *e)
{
    size_t count;

    *r = (struct routing){ .n = n, .top_k = top_k };
    if (size_mul((size_t)n, (size_t)top_k, &count))
        return err_set(e, E_TEMP, "routing: too many tokens");
    r->experts = mem_zero(count, sizeof(*r->experts), "routing", e);
    r->weights = mem_zero(count, sizeof(*r->weights), "routing", e);
    r->scores = mem_zero(count, sizeof(*r->scores), "routing", e);
    if (r->experts && r->weights && r->scores)
        return 0;
    routing_release(r);
    return e->code;
}

int routing_want_mass(struct routing *r, int64_t experts, struct err *e)
{
    r->mass = mem_zero((size_t)experts, sizeof(*r->mass), "routing", e);
    return r->mass ? 0 : e->code;
}

void routing_release(struct routing *r)
{
    free(r->mass);
    free(r->experts);
    free(r->weights);
    free(r->scores);
    *r = (struct routing){ 0 };
}

/* ---- loading ---- */

static int load_weight(struct router *r, int64_t experts, struct err *e)
{
    const struct model_config *c = &r->m->config;
    char name[MODULE_PATH_MAX];
    uint64_t rows, cols;

    layer_tensor_name(r->layer, c->family->router_name, name);
    if (checkpoint_linear(r->m->ck, name, &r->w, &rows, &cols, e) < 0)
        return e->code;
    if (rows == (uint64_t)experts && cols == (uint64_t)c->hidden_size)
        return model_place(r->m, (void **)&r->w, rows * cols * sizeof(float),
                           e);
    free(r->w);
    r->w = NULL;
    return err_set(e, E_DATA,
                   "'%s': the weight is %llux%llu, the config says %lldx%lld",
                   name, (unsigned long long)rows, (unsigned long long)cols,
                   (long long)experts, (long long)c->hidden_size);
}

/* *v [experts] = a tensor of the layer. */
static int load_vector(struct router *r, const char *part, int64_t experts,
                       float **v, struct err *e)
{
    char name[MODULE_PATH_MAX];

    layer_tensor_name(r->layer, part, name);
    if (checkpoint_vector(r->m->ck, name, (uint64_t)experts, v, e) < 0)
        return e->code;
    if (lanes_finite(*v, (size_t)experts))
        return model_place(r->m, (void **)v, (size_t)experts * sizeof(float),
                           e);
    free(*v);
    *v = NULL;
    return err_set(e, E_DATA, "'%s' is not finite", name);
}

static int load_router(struct router *r, int64_t experts, struct err *e)
{
    const struct model_config *c = &r->m->config;
    size_t h = (size_t)c->hidden_size, n = (size_t)experts, part;
    const char *correction = c->family->correction;
    char name[MODULE_PATH_MAX];

    snprintf(name, sizeof(name), "%s.bias", c->family->router_name);
    if (load_weight(r, experts, e) < 0 ||
        (correction && load_vector(r, correction, experts, &r->bias, e) < 0) ||
        (c->family->router_bias &&
         load_vector(r, name, experts, &r->shift, e) < 0))
        return e->code;
    part = (size_t)(r->part = r->m->on ? DEVICE_PART : PART);
    r->mass = mem_zero(n, sizeof(*r->mass), "router", e);
    if (r->mass && r->m->on)
        return 0;
    r->in = mem_zero(part * h, sizeof(float), "router", e);
    r->score = mem_zero(part * n, sizeof(float), "router", e);
    r->choice = mem_zero(part * n, sizeof(float), "router", e);
    return r->mass && r->in && r->score && r->choice ? 0 : e->code;
}

int router_load(struct model *m, int64_t index, struct router **out,
                struct err *e)
{
    struct router *r;

    if (!model_layer_experts(&m->config, index))
        return err_set(e, E_BUG, "layer %lld has no experts", (long long)index);
    r = mem_zero(1, sizeof(*r), "router", e);
    if (!r)
        return e->code;
    r->m = m;
    r->layer = index;
    r->moe = m->config.moe;
    r->moe.n_experts = r->moe.n_router;
    r->remap = (struct remap){ .experts = r->moe.n_router,
                               .kept = m->config.moe.n_experts,
                               .renormalize = r->moe.renormalize };
    if (m->expert_map)
        r->remap.map = m->expert_map + index * r->moe.n_router;
    if (load_router(r, r->moe.n_experts, e) < 0) {
        router_release(r);
        return e->code;
    }
    *out = r;
    return 0;
}

void router_release(struct router *r)
{
    if (!r)
        return;
    model_free(r->m, r->w);
    model_free(r->m, r->bias);
    model_free(r->m, r->shift);
    free(r->mass);
    free(r->in);
    free(r->score);
    free(r->choice);
    free(r);
}

/* ---- choosing ---- */

static void sigmoid(float *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        s[i] = 1 / (1 + route_exp(-s[i]));
}

static void softmax(float *s, int64_t n)
{
    float most = s[0];
    double sum = 0;

    for (int64_t i = 1; i < n; i++)
        most = fmaxf(most, s[i]);
    for (int64_t i = 0; i < n; i++) {
        s[i] = route_exp(s[i] - most);
        sum += (double)s[i];
    }
    for (int64_t i = 0; i < n; i++)
        s[i] = (float)((double)s[i] / sum);
}

void route_scores(enum router_kind kind, float *s, int64_t n)
{
    if (kind == ROUTER_SIGMOID)
        sigmoid(s, n);
    else
        softmax(s, n);
}

int64_t route_largest(const float *c, int64_t n)
{
    int64_t at = 0;

    for (int64_t i = 1; i < n; i++)
        if (c[i] > c[at])
            at = i;
    return at;
}

float route_rank(const float *c, int64_t n, bool two)
{
    float first = -INFINITY, second = -INFINITY;

    for (int64_t i = 0; i < n; i++)
        if (c[i] > first) {
            second = first;
            first = c[i];
        } else if (c[i] > second) {
            second = c[i];
        }
    return two && n > 1 ? first + second : first;
}

void route_groups(const struct moe *m, bool two, float *c)
{
    int64_t size = m->n_experts / m->n_group;

    for (int64_t drop = m->n_group - m->topk_group; drop > 0; drop--) {
        float least = INFINITY;
        int64_t at = -1;

        /* the last of the lowest-ranked groups */
        for (int64_t g = 0; g < m->n_group; g++) {
            float w = route_rank(c + g * size, size, two);

            if (c[g * size] != -INFINITY && w <= least) {
                least = w;
                at = g;
            }
        }
        for (int64_t i = 0; at >= 0 && i < size; i++)
            c[at * size + i] = -INFINITY;
    }
}

/* Choose one token's top-k experts; `choice` is overwritten. */
static void choose(const struct moe *m, const float *score, float *choice,
                   const struct routing *to, int64_t token)
{
    int64_t at = token * to->top_k;
    double sum = 0, by = m->scale;

    for (int64_t k = 0; k < to->top_k; k++) {
        int64_t i = route_largest(choice, m->n_experts);

        choice[i] = -INFINITY;
        to->experts[at + k] = (int32_t)i;
        to->scores[at + k] = score[i];
        sum += (double)score[i];
    }
    if (m->renormalize)
        by /= sum + 1e-20;
    for (int64_t k = 0; k < to->top_k; k++)
        to->weights[at + k] =
            m->weigh_inputs ? 1 : (float)((double)to->scores[at + k] * by);
}

void route_token(const struct moe *m, enum router_kind kind, const float *bias,
                 float *score, float *choice, const struct routing *to,
                 int64_t token)
{
    route_scores(kind, score, m->n_experts);
    for (int64_t i = 0; i < m->n_experts; i++)
        choice[i] = score[i] + (bias ? bias[i] : 0);
    if (m->grouped)
        route_groups(m, kind == ROUTER_SIGMOID, choice);
    choose(m, score, choice, to, token);
}

struct job {
    const struct forward_route *a;
    float *score, *choice;
};

static void route_some(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct forward_route *a = j->a;
    const struct routing to = { .n = a->rows,
                                .top_k = a->moe.top_k,
                                .experts = a->experts,
                                .weights = a->weights,
                                .scores = a->scores };
    int64_t n = a->moe.n_experts;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++) {
        float *s = j->score + t * n;

        for (int64_t i = 0; a->shift && i < n; i++)
            s[i] += a->shift[i];
        if (lanes_finite(s, (size_t)n))
            route_token(&a->moe, a->kind, a->bias, s, j->choice + t * n, &to,
                        t);
        else
            to.experts[t * to.top_k] = -1;
    }
}

void route_rows(const struct forward_route *a, float *score, float *choice)
{
    struct job j = { a, score, choice };
    int64_t n = a->moe.n_experts;

    threads_for((size_t)a->rows, 16, route_some, &j);
    for (int64_t t = 0; a->mass && t < a->rows; t++)
        for (int64_t i = 0; i < n; i++)
            a->mass[i] += (double)score[t * n + i];
}

static int route_here(const struct router *r, const struct forward_route *a,
                      struct err *e)
{
    if (!to_f32(r->in, a->x, a->dtype, (size_t)(a->rows * a->depth)))
        return err_set(e, E_BUG, "the router's input is no float");
    if (blas_f32_nt(&(struct sgemm){ .m = a->rows,
                                     .n = a->moe.n_experts,
                                     .k = a->depth,
                                     .a = r->in,
                                     .b = r->w,
                                     .c = r->score },
                    e) < 0)
        return e->code;
    route_rows(a, r->score, r->choice);
    return 0;
}

/* Copy the mass of the experts that there are: mass[] of a routing is by new
 * expert index, r->mass by row of the router. */
static void move_mass(const struct router *r, double *mass, bool back)
{
    for (int64_t i = 0; mass && i < r->moe.n_experts; i++) {
        int64_t at = r->remap.map ? r->remap.map[i] : i;

        if (at >= 0 && back)
            mass[at] = r->mass[i];
        else
            r->mass[i] = at >= 0 ? mass[at] : 0;
    }
}

static int run_part(const struct router *r, const void *rows, int64_t n,
                    struct routing *to, int64_t at, struct err *e)
{
    const struct model *m = r->m;
    int64_t first = at * to->top_k;
    struct forward_route a = { .dtype = m->dtype,
                               .kind = m->config.family->router,
                               .moe = r->moe,
                               .rows = n,
                               .depth = m->config.hidden_size,
                               .x = rows,
                               .w = r->w,
                               .shift = r->shift,
                               .bias = r->bias,
                               .experts = to->experts + first,
                               .weights = to->weights + first,
                               .scores = to->scores + first,
                               .mass = to->mass ? r->mass : NULL };

    move_mass(r, to->mass, false);
    if ((m->on ? m->on->route(m->context, &a, e) : route_here(r, &a, e)) < 0)
        return e->code;
    for (int64_t i = 0; i < n; i++)
        if (a.experts[i * to->top_k] < 0) {
            char name[MODULE_PATH_MAX];

            layer_tensor_name(r->layer, m->config.family->router_name, name);
            return err_set(e, E_DATA, "%s: scores of token %lld are not finite",
                           name, (long long)(at + i));
        }
    move_mass(r, to->mass, true);
    return r->remap.map ? remap_tokens(&r->remap, a.experts, a.weights, n,
                                       to->top_k, &r->m->remapped, e) :
                          0;
}

int router_run(const struct router *r, const void *rows, int64_t n,
               struct routing *to, int64_t at, struct err *e)
{
    size_t row = (size_t)r->m->config.hidden_size * r->m->size;

    for (int64_t i = 0; i < n; i += r->part) {
        int64_t part = n - i < r->part ? n - i : r->part;

        if (run_part(r, (const char *)rows + (size_t)i * row, part, to, at + i,
                     e) < 0)
            return e->code;
    }
    return 0;
}
