/* prune.h - chooses which experts of a layer to keep, by the statistics of its
 * router (arch/hitmap.h).
 *
 * REAP is from arXiv 2510.13999: the mean, over the tokens routed to an expert,
 * of the routing weight times the norm of the expert's output.  Mass: the
 * router's (sigmoid or softmax) scores of an expert summed over all tokens,
 * routed to it or not. */
#ifndef FORGE_PRUNE_H
#define FORGE_PRUNE_H

#include "arch/config.h"
#include "arch/hitmap.h"

enum prune_by {
    PRUNE_TOKENS, /* number of tokens routed to it */
    PRUNE_MASS,   /* sum of its scores over all tokens */
    PRUNE_SCORES, /* sum of its scores over the tokens routed to it */
    PRUNE_WEIGHT, /* sum of its routing weights */
    PRUNE_REAP,   /* mean of routing weight * norm of its output */
    PRUNE_RANDOM  /* a baseline to compare with */
};
#define PRUNE_WORDS "tokens|mass|scores|weight|reap|random"

struct prune_rule {
    enum prune_by by;
    int64_t keep;  /* experts per layer; expert_count_check() has allowed it */
    uint64_t seed; /* of PRUNE_RANDOM */
};

/* map[experts] = the new number of each expert, -1: pruned.  Keeps the
 * rule->keep experts that rank highest, the same number in each group of the
 * router (DeepSeek's n_group), in their old order; of equal ones those with
 * smaller numbers.  E_DATA: the hit map has another number of experts;
 * E_CONFIG: the hit map lacks the statistic (norms: forge-calib --skip-experts;
 * mass: an older version). */
MUST_CHECK int prune_layer(const struct prune_rule *rule,
                           const struct model_config *c, const struct hitmap *h,
                           int32_t *map, struct err *e);
/* The kept experts' part (0..1) of the sum of a column; 1 if the sum is 0. */
double prune_share(const struct hitmap *h, const int32_t *map, enum hit column);

#endif
