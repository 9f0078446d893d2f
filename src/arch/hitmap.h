/* hitmap.h - what the routers of a mixture of experts chose, layer by layer.
 *
 * A `hitmap` frame, named "model.layers.L.mlp", is F32 [E, 6]: for each expert
 * the tokens that were sent to it, the sums of the router's scores, of its
 * weights and of their squares over them, the sum of g * |f(x)|, the weight
 * times the norm of what the expert put out, and its mass: the sum of the scores
 * over all tokens, whichever experts they chose.  Maps without the last column,
 * of before, have none. */
#ifndef FORGE_HITMAP_H
#define FORGE_HITMAP_H

#include "common/io/stream.h"

enum { HIT_EXPERTS_MAX = 1 << 16 };

enum hit {
    HIT_TOKENS,
    HIT_SCORES,
    HIT_WEIGHTS,
    HIT_SQUARES,
    HIT_OUTPUT,
    HIT_MASS,
    HITS
};

struct hitmap {
    int64_t layer;
    size_t experts;
    float *value;     /* [experts, HITS] */
    double sum[HITS]; /* over the experts */
};

/* Ordered by layer, one for each. */
struct hitmaps {
    struct hitmap *map;
    size_t count, cap;
};

/* Take a frame of this role; another one of the same layer is replaced.
 * E_DATA: not such a map, or a number in it is negative or not finite. */
MUST_CHECK int hitmaps_add(struct hitmaps *h, const struct frame *f,
                           struct err *e);
/* NULL: none of this layer. */
const struct hitmap *hitmaps_find(const struct hitmaps *h, int64_t layer);
void hitmaps_release(struct hitmaps *h);

double hit_value(const struct hitmap *m, size_t expert, enum hit column);
/* Experts with fewer tokens than `below`. */
size_t hit_few(const struct hitmap *m, double below);

/* Spearman's rank correlation of column x of a and column y of b, which have
 * the same number of experts: Pearson's of the ranks, equal values sharing
 * the mean of theirs.  *r is NAN when one of them is constant.  E_TEMP. */
MUST_CHECK int hit_agreement(const struct hitmap *a, enum hit x,
                             const struct hitmap *b, enum hit y, double *r,
                             struct err *e);

#endif
