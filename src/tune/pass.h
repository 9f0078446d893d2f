/* pass.h - sequences through all layers of a model, and gradients back, where layers
 * run. */
#ifndef FORGE_TUNE_PASS_H
#define FORGE_TUNE_PASS_H

#include "model/model.h"

struct pass;

/* For at most `rows` tokens at a time; dir: of temporary files.  m, whose embedding is
 * loaded, and dir must outlive it.  E_CONFIG: the model has no backward pass; errors of
 * token_rows_open(). */
MUST_CHECK int pass_open(struct pass **p, struct model *m, const char *dir,
                         int64_t rows, struct err *e);
void pass_close(struct pass *p); /* NULL is allowed */
/* Where a mixture's tokens go: where the routers send them; or the experts, with the
 * weights, of the pass of the original before, of the same sequences. */
enum pass_routing { PASS_FREE, PASS_HELD };
/* Run n sequences of length[i] tokens, which were checked, one behind the other in ids,
 * with the original's weights (t NULL), and then with weights that are tuned.  *x [tokens,
 * H], elements where layers run, until the next call: the stream behind the last layer.
 * Errors of model_load_layer(). */
MUST_CHECK int pass_forward(struct pass *p, const struct tuning *t,
                            enum pass_routing routing, const int32_t *ids,
                            const int64_t *length, int64_t n, const void **x,
                            struct err *e);
/* In how many layers tokens went to another set of experts than in the original, in all,
 * when they last went where the routers send them. */
int64_t pass_changed(const struct pass *p);
/* Behind pass_forward(), with the same weights, and choices held: from g [tokens, H] f32,
 * with respect to *x, which is replaced, down to the first layer; gradients of tuned
 * weights are added up.  by: of each mixture's margins (moe.h), 0: none.  done is called
 * behind each layer, whose weights are not needed any more; its error is returned. */
MUST_CHECK int pass_backward(struct pass *p, float *g, double by,
                             int (*done)(void *ctx, int64_t layer,
                                         struct err *e),
                             void *ctx, struct err *e);

#endif
