/* backward.h - gradients of -log p(token) with respect to the residual stream
 * and to keys and values, from the head down.
 *
 * The token is drawn from the model's own distribution p, so the second moment
 * of the gradients is the Fisher information: the second-order term of the KL
 * divergence when the residual stream changes.  The backward pass goes through
 * the head, norms, attention and MLPs; in a mixture the router's choices and
 * weights are held constant.  f32 throughout, on the host. */
#ifndef FORGE_BACKWARD_H
#define FORGE_BACKWARD_H

#include "model/model.h"

/* g[n, H] = gradients with respect to x[n, H], elements, the output of the
 * last layer.  Row i's token is drawn by random number `first` + i.  E_DATA: a
 * tensor is missing or has another shape; E_CONFIG: no OpenBLAS; E_TEMP. */
MUST_CHECK int backward_head(struct model *m, const void *x, int64_t n,
                             uint64_t first, float *g, struct err *e);
/* From the layer's output to its residual stream behind attention: g[n, H] is
 * replaced; x[n, H], elements, is the latter stream.  Errors as above. */
MUST_CHECK int backward_mlp(struct model *m, int64_t layer, const void *x,
                            int64_t n, float *g, struct err *e);

/* The backward pass of a layer's attention: linears, norms, and state of a
 * batch. */
struct attention_back;
MUST_CHECK int backward_attention_open(struct model *m, int64_t layer,
                                       struct attention_back **a,
                                       struct err *e);
void backward_attention_close(struct attention_back *a); /* NULL is allowed */
/* From the residual stream behind attention to the one in front of it: g is
 * replaced; x, elements, is the latter.  Whole sequences: sequence i has rows
 * first[i]..first[i+1]-1 of x and g.  Errors as above. */
MUST_CHECK int backward_attention(struct attention_back *a, const void *x,
                                  const int64_t *first, int64_t n_sequences,
                                  float *g, struct err *e);
/* After backward_attention(): [rows, l->rows] gradients with respect to the
 * output of l, a linear that makes keys or values; NULL: it is not one. */
const float *backward_attention_of(const struct attention_back *a,
                                   const struct linear *l);

#endif
