/* merge.h - the merge rules of a BPE, and the merging itself. */
#ifndef FORGE_MERGE_H
#define FORGE_MERGE_H

#include "tokenizer/vocab.h"

struct merge_rule {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free slot */
    uint32_t rank; /* lowest first */
    int32_t to;
};

struct merge_node;
struct merge_event;

struct merges {
    struct merge_rule *rule; /* open addressing */
    size_t mask, count;
    bool always_heap; /* ids do not tell strings apart */
    uint64_t *joint;  /* pairs of characters inside merged tokens */
    size_t joint_mask;
    uint64_t ascii[128][2];  /* joints of two ASCII characters, as bits */
    struct merge_node *node; /* scratch of long pieces */
    struct merge_event *heap;
    size_t node_cap, heap_cap;
};

/* list: ["a b", ...] or [["a","b"], ...], in order of rank.  Errors as
 * tokenizer_open(). */
MUST_CHECK int merges_init(struct merges *m, const struct json *list,
                           const struct vocab *v, const char *what,
                           struct err *e);
void merges_release(struct merges *m);

/* Some rule has this id as a part. */
bool merges_use(const struct merges *m, int32_t id);

/* Merge n ids in place, always the pair of the lowest rank first, leftmost
 * among equals; *n becomes how many are left. */
MUST_CHECK int merges_apply(struct merges *m, int32_t *id, size_t *n,
                            struct err *e);

/* False: no token that a rule can make has these two characters side by side,
 * so that no merge ever reaches across them. */
bool merges_may_join(const struct merges *m, uint32_t left, uint32_t right);

#endif
