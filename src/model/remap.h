/* remap.h - experts that were pruned, for a run time that keeps the router as
 * it was.
 *
 * The router still chooses among E experts, of which K are there.  map[E]
 * holds each one's new number, 0..K-1, or -1 for pruned: a row of the tensor
 * expert_map, I32 [layers, E], of such a checkpoint
 * (forge-shard --mode remap). */
#ifndef FORGE_REMAP_H
#define FORGE_REMAP_H

#include "common/base.h"

C_BEGIN

struct remap {
    const int32_t *map; /* [experts] */
    int64_t experts;    /* E: the router's width */
    int64_t kept;       /* K */
    bool renormalize;   /* the family divides a token's weights by their sum */
};

struct remap_counts {
    uint64_t tokens;
    uint64_t pruned; /* choices of a pruned expert */
    uint64_t lost;   /* tokens all of whose experts are pruned */
};

/* E_DATA: an entry of the map is neither -1 nor 0..K-1, or two experts have
 * the same new number, or one of the K is nobody's. */
MUST_CHECK int remap_check(const struct remap *r, struct err *e);

/* Rewrite the choices of n tokens in place: ids[n, top_k], 0..E-1, and
 * weights[n, top_k].  A pruned expert becomes expert 0 with weight 0, so that
 * every id stays in range and its output counts for nothing.  What is left of
 * a token's weights keeps the sum that all of them had, where the family
 * renormalizes (the sum is then what it always is: 1, times its scale); in the
 * others each weight stays what it was.  A token that lost all its experts gets
 * weights of 0: the shared expert and the residual alone go on; it is counted.
 *
 * counts is added to; NULL: not counted.  E_DATA: an id out of range, where
 * nothing has been changed. */
MUST_CHECK int remap_tokens(const struct remap *r, int32_t *ids, float *weights,
                            int64_t n, int64_t top_k,
                            struct remap_counts *counts, struct err *e);

C_END

#endif
