/* remap.h - routing in a model with pruned experts that keeps its full router
 * (--mode remap).
 *
 * The router chooses among E experts, of which K exist.  map[E] has the new
 * index 0..K-1 of each, or -1 for a pruned one: a row of the checkpoint's
 * tensor expert_map, I32 [layers, E] (checkpoint/expertmap.h). */
#ifndef FORGE_REMAP_H
#define FORGE_REMAP_H

#include "common/base.h"

C_BEGIN

/* A layer's map. */
struct remap {
    const int32_t *map; /* [experts], which expert_row_check() took */
    int64_t experts;    /* E, the rows of the router */
    int64_t kept;       /* K */
    bool renormalize;   /* the family divides a token's weights by their sum */
};

/* Counts for the report. */
struct remap_counts {
    uint64_t tokens;
    uint64_t pruned; /* choices of a pruned expert */
    uint64_t lost;   /* tokens all of whose experts are pruned */
};

/* Rewrite the choices of n tokens in place: ids[n, top_k] from 0..E-1 to
 * 0..K-1, and weights[n, top_k].  The choice of a pruned expert becomes expert
 * 0 with weight 0, so ids stay in range and it adds nothing.  If
 * `renormalize`, the remaining weights of a token are scaled so that their sum
 * stays the same; otherwise they are unchanged.  A token without any remaining
 * expert gets only weights of 0.
 *
 * counts (or NULL) is added to.  E_DATA: an id is out of range; then nothing
 * has been changed. */
MUST_CHECK int remap_tokens(const struct remap *r, int32_t *ids, float *weights,
                            int64_t n, int64_t top_k,
                            struct remap_counts *counts, struct err *e);

C_END

#endif
