/* blend.h - shrinkage of an expert's Hessian H of n tokens, few or none,
 * towards a prior that counts as K tokens:
 *
 *     input of gate and up:   (n H + K H_layer) / (n + K)
 *     input of down:          (n H + K mean(diag H) I) / (n + K)
 *
 * H_layer is the Hessian of the layer's mlp_in: of all tokens, routed to the
 * expert or not.  K = k * inputs, since the relative error of a Hessian
 * estimated from n tokens goes with inputs / n. */
#ifndef FORGE_BLEND_H
#define FORGE_BLEND_H

#include "common/base.h"

struct blend {
    double k;      /* tokens per input; 0: nothing is blended */
    int64_t layer; /* of h */
    float *h;      /* H_layer kept last, packed; owned */
    uint64_t elements;
    /* Copy of it on the device, or NULL; `placed`: it is one. */
    float *there;
    uint64_t there_elements;
    bool placed;
};

/* Whether a Hessian of that name stays as it is; whether it is kept for
 * experts'. */
bool blend_leaves(const struct blend *b, const char *name);
bool blend_keeps(const struct blend *b, const char *name);
/* Keep it.  E_TEMP. */
MUST_CHECK int blend_keep(struct blend *b, const char *name, const float *h,
                          uint64_t elements, struct err *e);
/* Pass every finished Hessian through here: h[elements], packed lower triangle,
 * of n tokens.  A layer's mlp_in is kept as H_layer for the experts that follow
 * it; an expert's is blended in place.  With n = 0 h must be the identity; gate
 * and up then get H_layer, and down keeps the identity.  E_TEMP. */
MUST_CHECK int blend_apply(struct blend *b, const char *name, uint64_t n,
                           float *h, uint64_t elements, struct err *e);
/* Whether blend_apply_there() can be called: H_layer, if it is wanted, has room on
 * the device. */
bool blend_can_there(struct blend *b, const char *name, uint64_t elements);
/* As blend_apply() with n > 0 for h of the device; diagonal[cols]: h's, on the
 * host, before and after.  Errors of hessian_gpu.h. */
MUST_CHECK int blend_apply_there(struct blend *b, const char *name, uint64_t n,
                                 float *h, uint64_t elements, float *diagonal,
                                 struct err *e);
/* The factor for cross moments (cross.h) of the input called name, whose
 * Hessian is blended: n / (n + K) for an expert's, as if the K tokens of the
 * prior had a cross moment of zero; else 1. */
double blend_cross(const struct blend *b, const char *name, uint64_t n,
                   uint64_t cols);
void blend_release(struct blend *b);

/* h[elements] = the identity, as a packed lower triangle (g = 0) or as diagonal
 * blocks of size g, see hessian.h. */
void blend_identity(float *h, uint64_t elements, uint64_t g);

#endif
