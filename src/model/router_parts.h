/* router_parts.h - a router, for the files that compute with it. */
#ifndef FORGE_ROUTER_PARTS_H
#define FORGE_ROUTER_PARTS_H

#include "model/internal.h"
#include "model/moe.h"

struct router {
    struct model *m;
    int64_t layer;
    struct moe moe;     /* the model's, but n_experts = rows of the router */
    struct remap remap; /* map NULL: no expert is pruned */
    /* Device memory. */
    float *w;     /* [experts, H] */
    float *bias;  /* [experts] correction bias, or NULL */
    float *shift; /* [experts] added to the scores, or NULL */
    int64_t part; /* tokens at a time */
    double *mass; /* [experts] of the routing, by row of the router */
    /* Where layers run on the host. */
    float *in;             /* [part, H] input as f32 */
    float *score, *choice; /* [part, experts] */
};

/* Scores of one token from its logits, in place: what the router's kind makes of them. */
void route_scores(enum router_kind kind, float *s, int64_t n);
/* Index of the largest; the first of equal ones. */
int64_t route_largest(const float *c, int64_t n);
/* What a group of n experts is ranked by: its largest number, or the sum of its two
 * largest. */
float route_rank(const float *c, int64_t n, bool two);
/* Set all experts but those of the topk_group best groups to -infinity. */
void route_groups(const struct moe *m, bool two, float *c);

#endif
