/* backward.h - gradients of log p(token) with respect to the residual stream
 * and to keys and values, from the head down.
 *
 * The token is drawn from the model's own p, so that the second moment of the
 * gradients is the Fisher information: what the KL divergence grows by, to
 * second order, when the stream is moved there.  The way leads through the
 * head, the norms, attention and the MLPs, experts with the router's choice and
 * weights held.  f32 throughout. */
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

/* The attention of a layer.  Errors as above. */
struct attention_back;
MUST_CHECK int backward_attention_open(struct model *m, int64_t layer,
                                       struct attention_back **a,
                                       struct err *e);
void backward_attention_close(struct attention_back *a); /* NULL is allowed */
/* g of whole sequences, the i-th of them rows first[i] .. first[i + 1] - 1, of
 * what comes behind attention, becomes that of x, elements, the residual stream
 * in front of it. */
MUST_CHECK int backward_attention(struct attention_back *a, const void *x,
                                  const int64_t *first, int64_t n_sequences,
                                  float *g, struct err *e);
/* [rows, l->rows]: of what this linear, which keys or values are made by, put
 * out for those sequences; NULL: it is another. */
const float *backward_attention_of(const struct attention_back *a,
                                   const struct linear *l);

#endif
