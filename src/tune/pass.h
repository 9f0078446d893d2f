/* pass.h - sequences through all layers of a model, and gradients back, in f32 on the
 * host. */
#ifndef FORGE_TUNE_PASS_H
#define FORGE_TUNE_PASS_H

#include "model/model.h"

struct pass;

/* For at most `rows` tokens at a time; dir: of temporary files.  m and dir must outlive
 * it.  E_CONFIG: the model has no backward pass; errors of region_reserve(). */
MUST_CHECK int pass_open(struct pass **p, struct model *m, const char *dir,
                         int64_t rows, struct err *e);
void pass_close(struct pass *p); /* NULL is allowed */
/* Run n sequences of length[i] tokens, one behind the other in ids.  *x [tokens, H],
 * until the next call: the stream behind the last layer.  Errors of model_load_layer(). */
MUST_CHECK int pass_forward(struct pass *p, const int32_t *ids,
                            const int64_t *length, int64_t n, const float **x,
                            struct err *e);
/* Behind pass_forward(): from g [tokens, H], with respect to *x, which is replaced, down
 * to the first layer; gradients of tuned weights (model_tune()) are added up.  done is
 * called behind each layer, whose weights are not needed any more; its error is
 * returned. */
MUST_CHECK int pass_backward(struct pass *p, float *g,
                             int (*done)(void *ctx, int64_t layer,
                                         struct err *e),
                             void *ctx, struct err *e);

#endif
