/* prune.h - which experts of a mixture to keep, by what its router did.
 *
 * Sources of the rankings: REAP, arXiv 2510.13999 (the mean, over the tokens
 * that came to an expert, of the routing weight times the norm of what it put
 * out); mass: sigmoid or softmax scores summed over all tokens for all experts;
 * counts and the rest as they are commonly used. */
#ifndef FORGE_PRUNE_H
#define FORGE_PRUNE_H

#include "arch/config.h"
#include "arch/hitmap.h"

enum prune_by {
    PRUNE_TOKENS, /* that came to it */
    PRUNE_MASS,   /* sum of the router's scores of it over all tokens */
    PRUNE_SCORES, /* the same over those that came to it */
    PRUNE_WEIGHT, /* sum of the routing weights */
    PRUNE_REAP,   /* mean of weight * norm of its output */
    PRUNE_RANDOM  /* to compare with */
};
#define PRUNE_WORDS "tokens|mass|scores|weight|reap|random"

struct prune_rule {
    enum prune_by by;
    int64_t keep;
    uint64_t seed; /* of PRUNE_RANDOM */
};

/* map[experts] = new numbers, -1 for pruned: the `keep` experts that rank
 * highest, as many in each group of the router (the count is one that
 * expert_count_check() allows), in their old order; among equals the first
 * ones.  E_DATA: the hit map has another number of experts; E_CONFIG: REAP is
 * asked for, and the hit map has no norms (forge-calib --skip-experts), or mass,
 * and it has none (of an older version). */
MUST_CHECK int prune_layer(const struct prune_rule *rule,
                           const struct model_config *c, const struct hitmap *h,
                           int32_t *map, struct err *e);
/* Share of a column's sum that the kept experts have; 1 where it is 0. */
double prune_share(const struct hitmap *h, const int32_t *map, enum hit column);

#endif
