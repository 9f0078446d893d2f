/* gradient_weights.h - weights of tokens (hessian/token_weights.h): squares of
 * their gradients with respect to what the linears of a layer put out. */
#ifndef FORGE_GRADIENT_WEIGHTS_H
#define FORGE_GRADIENT_WEIGHTS_H

#include "calib/store.h"
#include "model/backward.h"

/* Of sequences first..first+n-1 of s, which have `rows` rows together, in a layer. */
struct gradient_weights {
    const struct store *s;
    int64_t layer, first, n, rows;
    struct token_squares squares; /* [linears, rows]; zero-initialised */
};

/* Zero w->squares; the caller has set the other fields. */
MUST_CHECK int gradient_weights_open(struct gradient_weights *w, struct err *e);
void gradient_weights_close(struct gradient_weights *w);
/* Write a frame for each input of the layer and each sequence: f32 [tokens,
 * linears], with a column for each linear that reads the input, experts'
 * excepted.  E_DATA: one is not finite. */
MUST_CHECK int gradient_weights_write(const struct gradient_weights *w,
                                      struct stream_writer *out, struct err *e);

#endif
