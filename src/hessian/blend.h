/* blend.h - Hessians of experts that saw few tokens, or none.
 *
 *     input of gate and up:   (n H + K H_layer) / (n + K)
 *     input of down:          (n H + K mean(diag H) I) / (n + K)
 *
 * H_layer is that of the layer's mlp_in: of all tokens, the expert's or not.  K
 * is so many tokens for each input: what a Hessian of n tokens has wrong goes
 * with inputs / n. */
#ifndef FORGE_BLEND_H
#define FORGE_BLEND_H

#include "common/base.h"

struct blend {
    double k;      /* tokens for each input; 0: nothing is blended */
    int64_t layer; /* of h */
    float *h;
    uint64_t elements;
};

/* Look at a Hessian that is whole, packed: keep a layer's, blend an expert's
 * in place.  n: its tokens; without any, h is the identity before and, of a
 * gate and up that are blended, H_layer afterwards.  E_TEMP. */
MUST_CHECK int blend_apply(struct blend *b, const char *name, uint64_t n,
                           float *h, uint64_t elements, struct err *e);
/* What cross moments with that input count: n / (n + K) for an expert's, since
 * the K tokens that are mixed in drift by nothing; else 1. */
double blend_cross(const struct blend *b, const char *name, uint64_t n,
                   uint64_t cols);
void blend_release(struct blend *b);

/* The identity as a packed lower triangle, or in blocks of g > 0. */
void blend_identity(float *h, uint64_t elements, uint64_t g);

#endif
