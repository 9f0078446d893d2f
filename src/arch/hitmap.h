/* hitmap.h - statistics of the routing of a mixture of experts, layer by
 * layer.
 *
 * A frame of role `hitmap`, named "model.layers.L.mlp", is F32 [E, 6]: a row
 * per expert, columns as in enum hit.  Maps of older versions lack the column
 * HIT_MASS, which is then 0. */
#ifndef FORGE_HITMAP_H
#define FORGE_HITMAP_H

#include "common/io/stream.h"

enum { HIT_EXPERTS_MAX = 1 << 16 };

/* Columns of a hit map. */
enum hit {
    HIT_TOKENS,  /* tokens routed to the expert */
    HIT_SCORES,  /* sum of the router's scores over these tokens */
    HIT_WEIGHTS, /* sum of the weights g of these tokens */
    HIT_SQUARES, /* sum of g^2 */
    HIT_OUTPUT,  /* sum of g |f(x)|, f(x) the expert's output */
    HIT_MASS,    /* sum of the scores over all tokens, routed to it or not */
    HITS
};

/* The map of one layer. */
struct hitmap {
    int64_t layer;
    size_t experts;
    float *value;     /* [experts, HITS] */
    double sum[HITS]; /* column sums */
};

/* Maps in the order of layers, one per layer.  Zero-initialise. */
struct hitmaps {
    struct hitmap *map;
    size_t count, cap;
};

/* Copy a hitmap frame; it replaces a map of the same layer.  E_DATA: wrong
 * shape or name, or a negative or non-finite number; E_TEMP. */
MUST_CHECK int hitmaps_add(struct hitmaps *h, const struct frame *f,
                           struct err *e);
/* The map of the layer; NULL: none. */
const struct hitmap *hitmaps_find(const struct hitmaps *h, int64_t layer);
void hitmaps_release(struct hitmaps *h);

/* One element of the map. */
double hit_value(const struct hitmap *m, size_t expert, enum hit column);
/* Number of experts with fewer than `below` tokens. */
size_t hit_count_below(const struct hitmap *m, double below);

/* Spearman's rank correlation of column x of a with column y of b, which have
 * the same number of experts; ties get the mean of their ranks.  *r is NAN if
 * a column is constant.  E_TEMP. */
MUST_CHECK int hit_rank_correlation(const struct hitmap *a, enum hit x,
                                    const struct hitmap *b, enum hit y,
                                    double *r, struct err *e);

#endif
