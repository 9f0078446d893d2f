/* Routing decisions worked out by hand and by a program of a few lines, from
 * DeepSeek-V3's and Qwen3's definitions. */
#include "test.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "model/internal.h"
#include "model/moe.h"
#include "model/route_exp.h"

enum { E = 8, K = 3 };

static const float logits[E] = { 0.5f, -1, 2, 0, 1, 1.5f, -0.5f, 0.25f };

static struct routing routed(const struct moe *m, enum router_kind kind,
                             const float *bias)
{
    static int32_t experts[K];
    static float weights[K], scores[K];
    float score[E], choice[E];
    struct routing r = { 1, K, experts, weights, scores, NULL };

    memcpy(score, logits, sizeof(score));
    route_token(m, kind, bias, score, choice, &r, 0);
    return r;
}

static void check(const struct moe *m, enum router_kind kind, const float *bias,
                  const int32_t *experts, const double *weights)
{
    struct routing r = routed(m, kind, bias);

    for (int i = 0; i < K; i++)
        CHECK(r.experts[i] == experts[i] &&
              fabs((double)r.weights[i] - weights[i]) < 2e-6);
}

static void test_sigmoid(void)
{
    const struct moe m = { .n_experts = E,
                           .top_k = K,
                           .n_group = 4,
                           .topk_group = 2,
                           .grouped = true,
                           .renormalize = true,
                           .scale = 2.5 };
    const float mixed[E] = { 0, 0.1f, -0.6f, 0, -0.3f, -0.2f, 0.4f, 0.05f };
    const float low[E] = { -0.9f, -0.9f, -0.9f, -0.9f,
                           -0.9f, -0.9f, -0.9f, -0.9f };

    check(&m, ROUTER_SIGMOID, mixed, (int32_t[]){ 6, 5, 7 },
          (double[]){ 0.537106, 1.163117, 0.799777 });
    /* all corrected scores are negative: groups that are out must not win
     * with a zero */
    check(&m, ROUTER_SIGMOID, low, (int32_t[]){ 2, 5, 4 },
          (double[]){ 0.906382, 0.841323, 0.752294 });
    CHECK(fabs((double)routed(&m, ROUTER_SIGMOID, low).scores[0] - 0.880797) <
          1e-6);
}

static void test_softmax(void)
{
    struct moe m = {
        .n_experts = E, .top_k = K, .n_group = 1, .topk_group = 1, .scale = 1
    };
    const int32_t experts[] = { 2, 5, 4 };

    check(&m, ROUTER_SOFTMAX, NULL, experts,
          (double[]){ 0.379, 0.229875, 0.139426 });
    m.renormalize = true;
    check(&m, ROUTER_SOFTMAX, NULL, experts,
          (double[]){ 0.506480, 0.307196, 0.186324 });
}

/* Groups by their best expert alone: {0,1} {2,3} {4,5} {6,7} are worth 0.5, 2,
 * 1.5 and 0.25; by their best two together the same two would win. */
static void test_groups(void)
{
    const struct moe m = { .n_experts = E,
                           .top_k = K,
                           .n_group = 4,
                           .topk_group = 2,
                           .grouped = true,
                           .scale = 16 };

    check(&m, ROUTER_SOFTMAX, NULL, (int32_t[]){ 2, 5, 4 },
          (double[]){ 6.064002, 3.678003, 2.230822 });
}

static void test_ties(void)
{
    const struct moe m = { .n_experts = E,
                           .top_k = K,
                           .n_group = 4,
                           .topk_group = 2,
                           .grouped = true,
                           .renormalize = true,
                           .scale = 1 };
    float score[E] = { 0 }, choice[E];
    int32_t experts[K];
    float weights[K], scores[K];
    struct routing r = { 1, K, experts, weights, scores, NULL };

    route_token(&m, ROUTER_SIGMOID, NULL, score, choice, &r, 0);
    for (int i = 0; i < K; i++)
        CHECK(experts[i] == i && fabsf(weights[i] - 1.0f / K) < 1e-6f);
}

static void test_counts(void)
{
    int32_t experts[] = { 0, 2, 2, 1, 2, 0 };
    float weights[] = { 0.5f, 0.25f, 1, 2, 3, 4 };
    float scores[] = { 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f };
    double mass[] = { 0.9, 1.1, 1.3, 0.7 };
    struct routing r = { 3, 2, experts, weights, scores, mass };
    double s[4 * EXPERT_STATS];

    experts_count(&r, false, 4, s);
    CHECK(s[2 * EXPERT_STATS + EXPERT_TOKENS] == 3);
    CHECK(fabs(s[2 * EXPERT_STATS + EXPERT_SCORES] - 1) < 1e-6);
    CHECK(s[2 * EXPERT_STATS + EXPERT_WEIGHTS] == 4.25);
    CHECK(s[2 * EXPERT_STATS + EXPERT_SQUARES] == 0.0625 + 1 + 9);
    CHECK(s[3 * EXPERT_STATS + EXPERT_TOKENS] == 0);
    CHECK(s[3 * EXPERT_STATS + EXPERT_MASS] == 0.7);
    weights[0] = 0; /* of a pruned expert: stands as expert 0 */
    experts_count(&r, true, 4, s);
    CHECK(s[EXPERT_TOKENS] == 1);
    CHECK(fabs(s[EXPERT_SCORES] - 0.6) < 1e-6);
    experts_count(&r, false, 4, s);
    CHECK(s[EXPERT_TOKENS] == 2);
}

/* The nearest float to libm's e^x in double, from denormal results to infinity. */
static void test_exp(void)
{
    for (double x = -103; x < 89.5; x += 0.00173) {
        float f = (float)x;

        CHECK(route_exp(f) == (float)exp((double)f));
    }
    CHECK(route_exp(-FLT_MAX) == 0 && route_exp(FLT_MAX) == INFINITY);
    CHECK(route_exp(0) == 1);
}

int main(void)
{
    test_exp();
    test_sigmoid();
    test_softmax();
    test_groups();
    test_ties();
    test_counts();
    return 0;
}
