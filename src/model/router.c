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
#include "common/math/threads.h"
#include "model/internal.h"
#include "model/moe.h"

/* tokens whose scores are computed at a time, on the host, on a device */
enum { PART = 256, DEVICE_PART = 2048 };

struct router {
    struct model *m;
    int64_t layer;
    struct moe moe;        /* the model's, but n_experts = rows of the router */
    struct remap remap;    /* map NULL: no expert is pruned */
    float *w;              /* [experts, H], device memory */
    float *bias;           /* [experts] correction bias, or NULL */
    float *shift;          /* [experts] added to the scores, or NULL */
    int64_t part;          /* PART or DEVICE_PART */
    float *in;             /* [part, H] input as f32, on the host */
    float *score, *choice; /* [part, experts] */
};

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
        return 0;
    return err_set(e, E_DATA,
                   "'%s': the weight is %llux%llu, the config says %lldx%lld",
                   name, (unsigned long long)rows, (unsigned long long)cols,
                   (long long)experts, (long long)c->hidden_size);
}

static int load_router(struct router *r, int64_t experts, struct err *e)
{
    const struct model_config *c = &r->m->config;
    size_t h = (size_t)c->hidden_size, n = (size_t)experts, part;
    char name[MODULE_PATH_MAX], path[MODULE_PATH_MAX];

    if (load_weight(r, experts, e) < 0)
        return e->code;
    layer_tensor_name(r->layer,
                      c->family->correction ? c->family->correction : "", name);
    if (c->family->correction &&
        checkpoint_vector(r->m->ck, name, n, &r->bias, e) < 0)
        return e->code;
    if (c->family->router_bias) {
        snprintf(name, sizeof(name), "%s.bias", c->family->router_name);
        layer_tensor_name(r->layer, name, path);
        if (checkpoint_vector(r->m->ck, path, n, &r->shift, e) < 0)
            return e->code;
    }
    if (r->bias && !r->m->k->finite_f32(r->bias, experts))
        return err_set(e, E_DATA, "'%s' is not finite", name);
    if (model_place(r->m, (void **)&r->w, n * h * sizeof(float), e) < 0)
        return e->code;
    part = (size_t)(r->part = r->m->on ? DEVICE_PART : PART);
    r->in = mem_zero(r->m->on ? 1 : part * h, sizeof(float), "router", e);
    r->score = mem_zero(part * n, sizeof(float), "router", e);
    r->choice = mem_zero(part * n, sizeof(float), "router", e);
    return r->in && r->score && r->choice ? 0 : e->code;
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
    if (load_router(r, r->moe.n_experts, e) < 0 ||
        (r->remap.map && remap_check(&r->remap, e) < 0)) {
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
    free(r->bias);
    free(r->shift);
    free(r->in);
    free(r->score);
    free(r->choice);
    free(r);
}

/* ---- choosing ---- */

static void sigmoid(float *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        s[i] = 1 / (1 + expf(-s[i]));
}

static void softmax(float *s, int64_t n)
{
    float most = s[0];
    double sum = 0;

    for (int64_t i = 1; i < n; i++)
        most = fmaxf(most, s[i]);
    for (int64_t i = 0; i < n; i++) {
        s[i] = expf(s[i] - most);
        sum += (double)s[i];
    }
    for (int64_t i = 0; i < n; i++)
        s[i] = (float)((double)s[i] / sum);
}

/* Index of the largest; the first of equal ones. */
static int64_t largest(const float *c, int64_t n)
{
    int64_t at = 0;

    for (int64_t i = 1; i < n; i++)
        if (c[i] > c[at])
            at = i;
    return at;
}

/* A group's rank: its largest score, or the sum of its two largest. */
static float group_rank(const float *c, int64_t n, bool two)
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

/* Set all experts but those of the topk_group best groups to -infinity. */
static void keep_groups(const struct moe *m, bool two, float *c)
{
    int64_t size = m->n_experts / m->n_group;

    for (int64_t drop = m->n_group - m->topk_group; drop > 0; drop--) {
        float least = INFINITY;
        int64_t at = -1;

        /* the last of the lowest-ranked groups */
        for (int64_t g = 0; g < m->n_group; g++) {
            float w = group_rank(c + g * size, size, two);

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
        int64_t i = largest(choice, m->n_experts);

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
    if (kind == ROUTER_SIGMOID)
        sigmoid(score, m->n_experts);
    else
        softmax(score, m->n_experts);
    for (int64_t i = 0; i < m->n_experts; i++)
        choice[i] = score[i] + (bias ? bias[i] : 0);
    if (m->grouped)
        keep_groups(m, kind == ROUTER_SIGMOID, choice);
    choose(m, score, choice, to, token);
}

struct job {
    const struct router *r;
    const struct routing *to;
    int64_t at;
};

static void route_rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct router *r = j->r;
    const struct model_config *c = &r->m->config;
    int64_t n = r->moe.n_experts;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++)
        route_token(&r->moe, c->family->router, r->bias, r->score + t * n,
                    r->choice + t * n, j->to, j->at + t);
}

/* Add the scores of n tokens to mass[], by new expert index, in the order of
 * the tokens. */
static void add_mass(const struct router *r, double *mass, int64_t n)
{
    int64_t experts = r->moe.n_experts;

    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < experts; i++) {
            int64_t at = r->remap.map ? r->remap.map[i] : i;

            if (at >= 0)
                mass[at] += (double)r->score[t * experts + i];
        }
}

/* r->score[n, experts] = logits of n rows. */
static int run_scores(const struct router *r, const void *rows, int64_t n,
                      struct err *e)
{
    int64_t h = r->m->config.hidden_size, experts = r->moe.n_experts;
    struct forward_sums s = { .dtype = r->m->dtype,
                              .weights = DT_F32,
                              .rows = n,
                              .all = experts,
                              .depth = h,
                              .n = experts,
                              .x = rows,
                              .w = r->w,
                              .y = r->score,
                              .ld = experts };

    if (r->m->on)
        return device_sums(r->m, &s, e);
    if (!to_f32(r->in, rows, r->m->dtype, (size_t)(n * h)))
        return err_set(e, E_BUG, "the router's input is no float");
    return blas_f32_nt(&(struct sgemm){ .m = n,
                                        .n = experts,
                                        .k = h,
                                        .a = r->in,
                                        .b = r->w,
                                        .c = r->score },
                       e);
}

static int run_part(const struct router *r, const void *rows, int64_t n,
                    struct routing *to, int64_t at, struct err *e)
{
    const struct model_config *c = &r->m->config;
    int64_t experts = r->moe.n_experts;
    struct job j = { .r = r, .to = to, .at = at };

    if (run_scores(r, rows, n, e) < 0)
        return e->code;
    for (int64_t i = 0; r->shift && i < n * experts; i++)
        r->score[i] += r->shift[i % experts];
    for (int64_t i = 0; i < n; i++)
        if (!r->m->k->finite_f32(r->score + i * experts, experts)) {
            char name[MODULE_PATH_MAX];

            layer_tensor_name(r->layer, c->family->router_name, name);
            return err_set(e, E_DATA, "%s: scores of token %lld are not finite",
                           name, (long long)(at + i));
        }
    threads_for((size_t)n, 16, route_rows, &j);
    if (to->mass)
        add_mass(r, to->mass, n);
    if (!r->remap.map)
        return 0;
    return remap_tokens(&r->remap, to->experts + at * to->top_k,
                        to->weights + at * to->top_k, n, to->top_k,
                        &r->m->remapped, e);
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
