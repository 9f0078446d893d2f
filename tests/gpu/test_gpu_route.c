/* The router's choice on the GPU against the CPU's, which is the fake plug-in's, to
 * the bit, and against a plain one that sorts in double.
 *
 * W is the identity, so that both have the same logits: the inputs.  In bf16, and
 * where inputs are rounded to eighths, many are equal. */
#include "model/moe.h"
#include "twins.h"

enum { ROWS = 77 };

/* A routing of ROWS tokens. */
struct routed {
    int32_t *experts;
    float *weights, *scores;
    double *mass;
};

static struct routed routed(const struct moe *m)
{
    size_t n = (size_t)(ROWS * m->top_k) * 4;
    struct routed r = { room(n), room(n), room(n),
                        room((size_t)m->n_experts * 8) };

    for (int64_t i = 0; i < m->n_experts; i++)
        r.mass[i] = 1.0 / (double)(i + 3);
    return r;
}

static void release(struct routed *r)
{
    free(r->experts);
    free(r->weights);
    free(r->scores);
    free(r->mass);
}

/* ---- the plain one ---- */

struct plain {
    double score, choice;
    int64_t expert;
};

/* In descending order, equal ones by index. */
static int by_choice(const void *a, const void *b)
{
    const struct plain *x = a, *y = b;

    if (x->choice != y->choice)
        return x->choice < y->choice ? 1 : -1;
    return x->expert < y->expert ? -1 : 1;
}

/* Rank groups, and set the choices of all but the best to -infinity. */
static void leave_out(const struct moe *m, bool sigmoid, struct plain *p)
{
    int64_t size = m->n_experts / m->n_group;
    struct plain *group = room((size_t)m->n_group * sizeof(*group));
    struct plain *best = room((size_t)size * sizeof(*best));

    for (int64_t g = 0; g < m->n_group; g++) {
        memcpy(best, p + g * size, (size_t)size * sizeof(*best));
        qsort(best, (size_t)size, sizeof(*best), by_choice);
        group[g].expert = g;
        group[g].choice = best[0].choice;
        if (sigmoid && size > 1)
            group[g].choice =
                (double)((float)best[0].choice + (float)best[1].choice);
    }
    qsort(group, (size_t)m->n_group, sizeof(*group), by_choice);
    for (int64_t i = m->topk_group; i < m->n_group; i++)
        for (int64_t k = 0; k < size; k++)
            p[group[i].expert * size + k].choice = -INFINITY;
    free(group);
    free(best);
}

/* p = scores in f32, and choices: they decide, so they are rounded as the families'
 * definitions in f32 round them. */
static void score_token(const struct moe *m, bool sigmoid, const float *logit,
                        const float *bias, struct plain *p)
{
    float most = -INFINITY;
    double sum = 0;

    for (int64_t i = 0; i < m->n_experts; i++)
        most = fmaxf(most, logit[i]);
    for (int64_t i = 0; i < m->n_experts; i++)
        sum += (double)(float)exp((double)(logit[i] - most));
    for (int64_t i = 0; i < m->n_experts; i++) {
        float by = (float)exp((double)(sigmoid ? -logit[i] : logit[i] - most));
        float s = sigmoid ? 1 / (1 + by) : (float)((double)by / sum);

        p[i] =
            (struct plain){ (double)s, (double)(s + (bias ? bias[i] : 0)), i };
    }
}

static void check_token(const struct moe *m, bool sigmoid, const float *logit,
                        const float *bias, const struct routed *r, int64_t t)
{
    struct plain *p = room((size_t)m->n_experts * sizeof(*p));
    double chosen = 0;

    score_token(m, sigmoid, logit, bias, p);
    if (m->grouped)
        leave_out(m, sigmoid, p);
    qsort(p, (size_t)m->n_experts, sizeof(*p), by_choice);
    for (int64_t k = 0; k < m->top_k; k++)
        chosen += p[k].score;
    for (int64_t k = 0; k < m->top_k; k++) {
        double w = p[k].score * m->scale / (m->renormalize ? chosen : 1);
        int64_t at = t * m->top_k + k;

        CHECK(r->experts[at] == p[k].expert);
        CHECK(fabs((double)r->scores[at] - p[k].score) <= 1e-7);
        CHECK(fabs((double)r->weights[at] - (m->weigh_inputs ? 1 : w)) <=
              1e-6 * m->scale);
    }
    free(p);
}

/* ---- one case ---- */

struct router_case {
    const char *name;
    struct moe moe;
    enum router_kind kind;
    bool shift, bias, eighths;
};

static void check_same(const struct router_case *k,
                       const struct routed r[SIDES])
{
    size_t n = (size_t)(ROWS * k->moe.top_k) * 4;

    if (memcmp(r[GPU].experts, r[CPU].experts, n) == 0 &&
        memcmp(r[GPU].weights, r[CPU].weights, n) == 0 &&
        memcmp(r[GPU].scores, r[CPU].scores, n) == 0 &&
        memcmp(r[GPU].mass, r[CPU].mass, (size_t)k->moe.n_experts * 8) == 0)
        return;
    fprintf(stderr, "%s: not the CPU's bits\n", k->name);
    exit(1);
}

static void identity(int64_t n, struct twin *w)
{
    float *x = room((size_t)(n * n) * 4);

    for (int64_t i = 0; i < n * n; i++)
        x[i] = i / n == i % n;
    *w = twin(x, (size_t)(n * n) * 4);
    free(x);
}

static void run(const struct router_case *k, enum dtype t, const struct twin *x,
                const struct twin *w, const struct twin *shift,
                const struct twin *bias, struct routed r[SIDES])
{
    for (int s = 0; s < SIDES; s++) {
        struct forward_route a = { .dtype = t,
                                   .kind = k->kind,
                                   .moe = k->moe,
                                   .rows = ROWS,
                                   .depth = k->moe.n_experts,
                                   .x = x->p[s],
                                   .w = w->p[s],
                                   .shift = k->shift ? shift->p[s] : NULL,
                                   .bias = k->bias ? bias->p[s] : NULL };

        r[s] = routed(&k->moe);
        a.experts = r[s].experts;
        a.weights = r[s].weights;
        a.scores = r[s].scores;
        a.mass = r[s].mass;
        OK(table[s]->route(context[s], &a, e));
    }
}

/* logit [ROWS, experts]: inputs of type t, and the shift; to be freed. */
static float *logits_of(const struct router_case *k, enum dtype t,
                        struct twin *x, const struct twin *shift)
{
    int64_t n = k->moe.n_experts;
    float *logit = room((size_t)(ROWS * n) * 4), *s = room((size_t)n * 4);
    void *host = room((size_t)(ROWS * n) * 4);

    for (int64_t i = 0; i < ROWS * n; i++) {
        logit[i] = 2 * normal();
        if (k->eighths)
            logit[i] = rintf(logit[i] * 8) / 8;
    }
    CHECK(from_f32(host, t, logit, (size_t)(ROWS * n)));
    *x = twin(host, (size_t)(ROWS * n) * item(t));
    CHECK(to_f32(logit, host, t, (size_t)(ROWS * n)));
    OK(table[CPU]->get(context[CPU], s, shift->p[CPU], (size_t)n * 4, e));
    for (int64_t i = 0; k->shift && i < ROWS * n; i++)
        logit[i] += s[i % n];
    free(host);
    free(s);
    return logit;
}

static void test_case(const struct router_case *k, enum dtype t)
{
    int64_t n = k->moe.n_experts;
    struct twin x, w, shift = elements(DT_F32, n, .5f),
                      bias = elements(DT_F32, n, .2f);
    float *logit = logits_of(k, t, &x, &shift), *b = room((size_t)n * 4);
    struct routed r[SIDES];

    identity(n, &w);
    OK(table[CPU]->get(context[CPU], b, bias.p[CPU], (size_t)n * 4, e));
    run(k, t, &x, &w, &shift, &bias, r);
    check_same(k, r);
    for (int64_t i = 0; i < ROWS; i++)
        check_token(&k->moe, k->kind == ROUTER_SIGMOID, logit + i * n,
                    k->bias ? b : NULL, &r[GPU], i);
    for (int s = 0; s < SIDES; s++)
        release(&r[s]);
    free(logit);
    free(b);
    drop(&x);
    drop(&w);
    drop(&shift);
    drop(&bias);
}

/* A token with a NaN is told, whatever the others are. */
static void test_not_finite(void)
{
    const struct router_case k = { .name = "NaN",
                                   .moe = { .n_experts = 40,
                                            .top_k = 2,
                                            .n_group = 1,
                                            .topk_group = 1,
                                            .scale = 1 },
                                   .kind = ROUTER_SOFTMAX };
    float bad[ROWS * 40] = { 0 };
    struct routed r[SIDES];
    struct twin x, w, none = elements(DT_F32, 40, 1);

    bad[3 * 40 + 39] = NAN;
    bad[76 * 40] = INFINITY;
    x = twin(bad, sizeof(bad));
    identity(40, &w);
    run(&k, DT_F32, &x, &w, &none, &none, r);
    for (int s = 0; s < SIDES; s++) {
        /* an infinite input makes 0 x inf of all its products */
        for (int64_t i = 0; i < ROWS; i++)
            CHECK((r[s].experts[i * 2] == -1) == (i == 3 || i == 76));
        release(&r[s]);
    }
    drop(&x);
    drop(&w);
    drop(&none);
}

int main(int argc, char **argv)
{
    const struct moe deepseek = { .n_experts = 256,
                                  .top_k = 8,
                                  .n_group = 8,
                                  .topk_group = 4,
                                  .grouped = true,
                                  .renormalize = true,
                                  .scale = 2.5 };
    const struct moe qwen = { .n_experts = 128,
                              .top_k = 8,
                              .n_group = 1,
                              .topk_group = 1,
                              .renormalize = true,
                              .scale = 1 };
    const struct moe v2 = { .n_experts = 160,
                            .top_k = 6,
                            .n_group = 8,
                            .topk_group = 3,
                            .grouped = true,
                            .scale = 16 };
    const struct moe few = { .n_experts = 6,
                             .top_k = 3,
                             .n_group = 3,
                             .topk_group = 2,
                             .grouped = true,
                             .renormalize = true,
                             .scale = 1 };
    const struct moe inputs = { .n_experts = 33,
                                .top_k = 1,
                                .n_group = 1,
                                .topk_group = 1,
                                .weigh_inputs = true,
                                .scale = 1 };
    const struct moe all = { .n_experts = 80,
                             .top_k = 40,
                             .n_group = 80,
                             .topk_group = 41,
                             .grouped = true,
                             .scale = 1 };
    const struct router_case cases[] = {
        { "deepseek_v3", deepseek, ROUTER_SIGMOID, false, true, false },
        { "deepseek_v3, ties", deepseek, ROUTER_SIGMOID, false, false, true },
        { "qwen3", qwen, ROUTER_SOFTMAX, false, false, false },
        { "qwen3, ties, bias", qwen, ROUTER_SOFTMAX, true, true, true },
        { "deepseek_v2", v2, ROUTER_SOFTMAX, false, false, false },
        { "few", few, ROUTER_SIGMOID, true, true, true },
        { "inputs", inputs, ROUTER_SIGMOID, false, false, false },
        { "groups of one", all, ROUTER_SIGMOID, false, true, false },
    };

    twins_open(argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        test_case(&cases[i], DT_F32);
        test_case(&cases[i], DT_BF16);
        printf("%s: the CPU's bits\n", cases[i].name);
    }
    test_not_finite();
    return 0;
}
