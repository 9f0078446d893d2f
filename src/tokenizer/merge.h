/* merge.h - the merge rules of a BPE, and their application. */
#ifndef FORGE_MERGE_H
#define FORGE_MERGE_H

#include "tokenizer/vocab.h"

/* The pair (left, right) becomes `to`. */
struct merge_rule {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free slot */
    uint32_t rank; /* lower ranks are applied first */
    int32_t to;
};

struct merge_node;
struct merge_event;

/* The rules of a BPE, hashed by pair. */
struct merges {
    struct merge_rule *rule; /* hash table, open addressing, mask + 1 slots */
    size_t mask, count;
    bool always_heap; /* two tokens share an id, so the short method's result
                       * could differ */
    uint64_t *joint;  /* hash set of neighbouring characters inside merged
                       * tokens */
    size_t joint_mask;
    uint64_t ascii[128][2];  /* the same for ASCII pairs: bit right of [left] */
    struct merge_node *node; /* work memory for long pieces */
    struct merge_event *heap;
    size_t node_cap, heap_cap;
};

/* list: ["a b", ...] or [["a","b"], ...], by rank.  Errors as
 * tokenizer_open(). */
MUST_CHECK int merges_init(struct merges *m, const struct json *list,
                           const struct vocab *v, const char *what,
                           struct err *e);
void merges_release(struct merges *m);

/* Whether a rule has this id as a part. */
bool merges_use(const struct merges *m, int32_t id);

/* Merge id[*n] in place: repeatedly the pair of the lowest rank, leftmost
 * among equals.  *n: number of ids left.  E_TEMP. */
MUST_CHECK int merges_apply(struct merges *m, int32_t *id, size_t *n,
                            struct err *e);

/* False: no merged token contains these two characters (code points) side by
 * side, so no merge reaches across them. */
bool merges_may_join(const struct merges *m, uint32_t left, uint32_t right);

#endif
