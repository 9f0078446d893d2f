/* prune.c - see prune.h. */
#include "prune/prune.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/math/splitmix.h"

struct ranked {
    double worth;
    int64_t expert;
};

/* Descending by worth, equal ones by number. */
static int by_worth(const void *pa, const void *pb)
{
    const struct ranked *a = pa, *b = pb;

    if (a->worth > b->worth || a->worth < b->worth)
        return a->worth > b->worth ? -1 : 1;
    return a->expert < b->expert ? -1 : a->expert > b->expert;
}

/* A pseudo-random number in [0, 1), a function of the three. */
static double draw(uint64_t seed, int64_t layer, int64_t expert)
{
    uint64_t x =
        seed * SPLITMIX_STEP + (uint64_t)layer * 65536 + (uint64_t)expert;

    for (int i = 0; i < 3; i++)
        x = splitmix64(x + SPLITMIX_STEP);
    return (double)(x >> 11) / 9007199254740992.0;
}

static double worth(const struct prune_rule *rule, const struct hitmap *h,
                    int64_t expert)
{
    size_t x = (size_t)expert;
    double tokens = hit_value(h, x, HIT_TOKENS);

    switch (rule->by) {
    case PRUNE_TOKENS: return tokens;
    case PRUNE_MASS: return hit_value(h, x, HIT_MASS);
    case PRUNE_SCORES: return hit_value(h, x, HIT_SCORES);
    case PRUNE_WEIGHT: return hit_value(h, x, HIT_WEIGHTS);
    case PRUNE_REAP:
        return tokens > 0 ? hit_value(h, x, HIT_OUTPUT) / tokens : 0;
    default: return draw(rule->seed, h->layer, expert);
    }
}

int prune_layer(const struct prune_rule *rule, const struct model_config *c,
                const struct hitmap *h, int32_t *map, struct err *e)
{
    int64_t groups = c->moe.grouped ? c->moe.n_group : 1;
    int64_t n = c->moe.n_experts, size = n / groups, keep = rule->keep / groups;
    struct ranked *r;
    int32_t next = 0;

    if ((int64_t)h->experts != n)
        return err_set(e, E_DATA,
                       "layer %" PRId64 ": a hit map of %zu experts, the "
                       "model has %" PRId64,
                       h->layer, h->experts, n);
    if (rule->by == PRUNE_REAP && !(h->sum[HIT_OUTPUT] > 0))
        return err_set(e, E_CONFIG,
                       "layer %" PRId64 ": --by reap wants the norms of what "
                       "the experts put out, and the hit map has none",
                       h->layer);
    if (rule->by == PRUNE_MASS && !(h->sum[HIT_MASS] > 0))
        return err_set(e, E_CONFIG,
                       "layer %" PRId64 ": --by mass wants the scores of all "
                       "tokens, and the hit map has none",
                       h->layer);
    r = mem_alloc((size_t)n * sizeof(*r), "experts", e);
    if (!r)
        return e->code;
    for (int64_t x = 0; x < n; x++) {
        r[x] = (struct ranked){ worth(rule, h, x), x };
        map[x] = -1;
    }
    for (int64_t g = 0; g < groups; g++) {
        qsort(r + g * size, (size_t)size, sizeof(*r), by_worth);
        for (int64_t k = 0; k < keep; k++)
            map[r[g * size + k].expert] = 0;
    }
    for (int64_t x = 0; x < n; x++)
        if (!map[x])
            map[x] = next++;
    free(r);
    return 0;
}

double prune_share(const struct hitmap *h, const int32_t *map, enum hit column)
{
    double kept = 0;

    for (size_t x = 0; x < h->experts; x++)
        if (map[x] >= 0)
            kept += hit_value(h, x, column);
    return h->sum[column] > 0 ? kept / h->sum[column] : 1;
}
