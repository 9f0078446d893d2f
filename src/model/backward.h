/* backward.h - gradients of log p(token) with respect to the residual stream,
 * token by token, from the head down.
 *
 * The token is drawn from the model's own p, so that the second moment of the
 * gradients is the Fisher information: what the KL divergence grows by, to
 * second order, when the stream is moved there.  The way leads through the
 * head, the norms and the MLPs, experts with the router's choice and weights
 * held.  Attention is passed by: what a token tells others, and itself, through
 * it is left out (DESIGN.md says what that costs).  f32 throughout. */
#ifndef FORGE_BACKWARD_H
#define FORGE_BACKWARD_H

#include "model/model.h"

/* g[n, H] of n rows x[n, H], elements, that leave the last layer; row i's token
 * is drawn by seed and first + i.  E_DATA: a tensor is missing or misshapen;
 * E_TEMP; E_CONFIG (no OpenBLAS). */
MUST_CHECK int backward_head(struct model *m, const void *x, int64_t n,
                             uint64_t first, float *g, struct err *e);
/* g[n, H], of what leaves the layer, becomes that of x[n, H], elements: the
 * residual stream behind attention.  Errors as above. */
MUST_CHECK int backward_mlp(struct model *m, int64_t layer, const void *x,
                            int64_t n, float *g, struct err *e);

#endif
