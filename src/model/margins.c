/* margins.c - see moe.h: what tokens' choices of experts hang by. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/splitmix.h"
#include "common/math/threads.h"
#include "model/backward_parts.h"
#include "model/router_parts.h"

/* The choice keeps sum key[up[]] - sum key[down[]] at 0 or above; `count` of each. */
struct margin {
    int count; /* 0: all are chosen */
    int32_t up[2], down[2];
    double size,
        change;   /* in the original; from there to here, or a random sign */
    double error; /* s^2 */
};
enum { OF_EXPERTS, OF_GROUPS, MARGINS };

struct job {
    const struct moe *moe;
    enum router_kind kind;
    const float *bias; /* the host's, 0 where there is none */
    const struct margins *m;
    uint64_t first;    /* margins.first of this part */
    float *now;        /* [n, experts] logits, then scores, then gradients */
    float *work;       /* [n, 2, experts] */
    struct margin *of; /* [n, MARGINS] */
};

/* The two best of a group, or the best. */
static void best_of(const float *key, int64_t group, int64_t size, int count,
                    int32_t *to)
{
    const float *k = key + group * size;
    int64_t first = route_largest(k, size), second = first == 0;

    for (int64_t i = 0; i < size; i++)
        if (i != first && k[i] > k[second])
            second = i;
    to[0] = (int32_t)(group * size + first);
    if (count > 1)
        to[1] = (int32_t)(group * size + second);
}

/* left: keys, those of groups that were not chosen -infinity. */
static void between_groups(const struct job *j, const float *key,
                           const float *left, struct margin *to)
{
    const struct moe *m = j->moe;
    int64_t size = m->n_experts / m->n_group, worst = -1, best = -1;
    bool two = j->kind == ROUTER_SIGMOID;
    float low = INFINITY, high = -INFINITY;

    for (int64_t g = 0; g < m->n_group; g++) {
        float rank = route_rank(key + g * size, size, two);
        bool chosen = left[g * size] != -INFINITY;

        if (chosen && rank < low) {
            low = rank;
            worst = g;
        } else if (!chosen && rank > high) {
            high = rank;
            best = g;
        }
    }
    if (worst < 0 || best < 0)
        return;
    to->count = two && size > 1 ? 2 : 1;
    best_of(key, worst, size, to->count, to->up);
    best_of(key, best, size, to->count, to->down);
}

static void between_experts(const struct job *j, float *left, struct margin *to)
{
    int64_t n = j->moe->n_experts, last = 0, next;

    for (int64_t k = 0; k < j->moe->top_k; k++) {
        last = route_largest(left, n);
        left[last] = -INFINITY;
    }
    next = route_largest(left, n);
    if (left[next] == -INFINITY)
        return;
    to->count = 1;
    to->up[0] = (int32_t)last;
    to->down[0] = (int32_t)next;
}

static double size_of(const struct margin *m, const float *key)
{
    double size = 0;

    for (int i = 0; i < m->count; i++)
        size += (double)key[m->up[i]] - (double)key[m->down[i]];
    return size;
}

static double variance(const float *x, int64_t n)
{
    double sum = 0, squares = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    return (squares - sum * sum / (double)n) / (double)n;
}

/* s^2 of a margin where logits are `noise` off, in mean squares; s: scores, whose
 * derivatives are s (1 - s) for both kinds, other logits held. */
static double expected(const struct margin *m, const float *s, double noise)
{
    double sum = 0;

    for (int i = 0; i < m->count; i++) {
        double up = (double)s[m->up[i]], down = (double)s[m->down[i]];

        up *= 1 - up;
        down *= 1 - down;
        sum += up * up + down * down;
    }
    return sum * noise;
}

/* Margins in the original, and how far they are from there. */
static void find(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    int64_t n = j->moe->n_experts;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++) {
        float *key = j->work + 2 * t * n, *left = key + n,
              *score = j->now + t * n;
        struct margin *to = j->of + t * MARGINS;
        const float *logits = j->m->logits ? j->m->logits + t * n : score;
        uint64_t signs = 0;
        double noise = 0;

        if (!j->m->logits) {
            noise = MARGIN_NOISE * MARGIN_NOISE * variance(logits, n);
            signs = splitmix64_at(j->first + (uint64_t)t);
        }
        memset(to, 0, MARGINS * sizeof(*to));
        memcpy(key, logits, (size_t)n * sizeof(*key));
        route_scores(j->kind, key, n);
        route_scores(j->kind, score, n);
        for (int64_t i = 0; i < n; i++)
            key[i] += j->bias[i];
        memcpy(left, key, (size_t)n * sizeof(*key));
        if (j->moe->grouped) {
            route_groups(j->moe, j->kind == ROUTER_SIGMOID, left);
            between_groups(j, key, left, &to[OF_GROUPS]);
        }
        between_experts(j, left, &to[OF_EXPERTS]);
        for (int64_t i = 0; i < n; i++)
            left[i] = score[i] + j->bias[i];
        for (int i = 0; i < MARGINS; i++) {
            to[i].size = size_of(&to[i], key);
            if (j->m->logits) {
                to[i].change = size_of(&to[i], left) - to[i].size;
            } else {
                to[i].change = signs >> i & 1 ? -1 : 1;
                to[i].error = expected(&to[i], score, noise);
            }
        }
    }
}

/* s^2: the means of the changes' squares. */
static void measure(struct job *j, int64_t n)
{
    for (int i = 0; i < MARGINS; i++) {
        double sum = 0;
        int64_t count = 0;

        for (int64_t t = 0; t < n; t++) {
            const struct margin *m = &j->of[t * MARGINS + i];

            sum += m->change * m->change;
            count += m->count > 0;
        }
        for (int64_t t = 0; t < n; t++)
            j->of[t * MARGINS + i].error = count ? sum / (double)count : 0;
    }
}

/* Of the objective, or of the random sum, with respect to the change of a margin. */
static double slope(const struct margins *of, const struct margin *m)
{
    double u = m->size / sqrt(m->error), curve;

    if (!(m->error > 0))
        return 0;
    curve = of->by * u * exp(-0.5 * u * u) / sqrt(2 * M_PI) / m->error;
    return (of->logits ? curve : sqrt(curve)) * m->change;
}

/* now: scores s before, gradients with respect to logits behind. */
static void go_back(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    int64_t n = j->moe->n_experts;

    for (int64_t t = (int64_t)begin; t < (int64_t)end; t++) {
        float *s = j->now + t * n, *g = j->work + 2 * t * n;
        double mean = 0; /* of g by a softmax's probabilities */

        memset(g, 0, (size_t)n * sizeof(*g));
        for (int i = 0; i < MARGINS; i++) {
            const struct margin *m = &j->of[t * MARGINS + i];
            double d = slope(j->m, m);

            for (int k = 0; k < m->count; k++) {
                g[m->up[k]] += (float)d;
                g[m->down[k]] -= (float)d;
            }
        }
        for (int64_t i = 0; j->kind == ROUTER_SOFTMAX && i < n; i++)
            mean += (double)s[i] * (double)g[i];
        for (int64_t i = 0; i < n; i++)
            s[i] *= j->kind == ROUTER_SOFTMAX ? g[i] - (float)mean :
                                                g[i] * (1 - s[i]);
    }
}

/* ---- on either side of the router's weights ---- */

int router_logits(const struct router *r, const float *x, int64_t n, float *to,
                  struct err *e)
{
    const struct model *m = r->m;
    int64_t experts = r->moe.n_experts;
    size_t bytes = (size_t)(n * experts) * sizeof(*to);
    struct buffer y = { 0 };
    struct backward_linear a = { .rows = n,
                                 .out = experts,
                                 .in = m->config.hidden_size,
                                 .w = r->w,
                                 .bias = r->shift,
                                 .x = x };
    int rc = model_reserve(m, &y, n, experts, sizeof(float), "router", e);

    a.y = y.p;
    if (rc >= 0)
        rc = backward_of(m)->linear(m->context, &a, e);
    if (rc >= 0)
        rc = model_get(m, to, y.p, bytes, e);
    model_buffer_release(m, &y);
    return rc;
}

/* gx[n, H] += the gradients with respect to the router's inputs, of g[n, experts], the
 * host's, those with respect to logits. */
static int back(const struct router *r, const float *g, int64_t n, float *gx,
                struct err *e)
{
    const struct model *m = r->m;
    int64_t experts = r->moe.n_experts;
    struct buffer x = { 0 };
    struct backward_linear a = { .rows = n,
                                 .out = experts,
                                 .in = m->config.hidden_size,
                                 .w = r->w,
                                 .y = gx,
                                 .back = true,
                                 .add = true };
    int rc = model_reserve(m, &x, n, experts, sizeof(float), "router", e);

    a.x = x.p;
    if (rc >= 0)
        rc = model_put(m, x.p, g, (size_t)(n * experts) * sizeof(*g), e);
    if (rc >= 0)
        rc = backward_of(m)->linear(m->context, &a, e);
    model_buffer_release(m, &x);
    return rc;
}

/* ---- the objective ---- */

/* Tokens of a random sum at a time; an objective takes all, for s. */
enum { PART = 4096 };

static int run_part(struct job *j, const struct router *r, const float *x,
                    int64_t n, float *gx, struct err *e)
{
    if (router_logits(r, x, n, j->now, e) < 0)
        return e->code;
    threads_for((size_t)n, 64, find, j);
    if (j->m->logits)
        measure(j, n);
    threads_for((size_t)n, 64, go_back, j);
    return back(r, j->now, n, gx, e);
}

int router_margins(const struct router *r, const struct margins *m,
                   const float *x, int64_t n, float *gx, struct err *e)
{
    size_t experts = (size_t)r->moe.n_experts, all;
    int64_t part = m->logits || n < PART ? n : PART,
            h = r->m->config.hidden_size;
    struct job j = { .moe = &r->moe,
                     .kind = r->m->config.family->router,
                     .m = m };
    float *bias = mem_zero(experts, sizeof(*bias), "router", e);
    int rc;

    if (size_mul((size_t)part, experts, &all))
        all = SIZE_MAX;
    j.bias = bias;
    j.now = mem_zero(all, sizeof(*j.now), "router", e);
    j.work = mem_zero(all, 2 * sizeof(*j.work), "router", e);
    j.of = mem_zero((size_t)part, MARGINS * sizeof(*j.of), "router", e);
    rc = !bias || !j.now || !j.work || !j.of ? e->code : 0;
    if (rc >= 0 && r->bias)
        rc = model_get(r->m, bias, r->bias, experts * sizeof(*bias), e);
    for (int64_t i = 0; i < n && rc >= 0; i += part) {
        j.first = m->first + (uint64_t)i;
        rc = run_part(&j, r, x + i * h, n - i < part ? n - i : part, gx + i * h,
                      e);
    }
    free(bias);
    free(j.now);
    free(j.work);
    free(j.of);
    return rc;
}
