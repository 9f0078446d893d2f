/* tuned.h - the codes of a model's linears while they are tuned.
 *
 * Each code is the integer nearest to a real number v, within 0..top; v begins at
 * w / scale + zero, w the original weight, but not nearer than tuned_near() to where the
 * code that the solver chose ends.  The gradient with respect to v is that with respect to
 * the weight, times the scale: rounding is passed as if it were not there.  Grids
 * stay as they are. */
#ifndef FORGE_TUNED_H
#define FORGE_TUNED_H

#include "common/io/stream.h"
#include "model/model.h"

/* In steps of the grid, for steps of Adam of at most `rate`: as far as 25.6 of them go,
 * or 0.05.  Nearer codes change by the gradients' noise, from further away few do. */
static inline double tuned_near(double rate)
{
    return rate < 0.05 / 25.6 ? 25.6 * rate : 0.05;
}

struct tuned;

/* m, which must outlive it: on its device, or on the host in f32. */
MUST_CHECK int tuned_open(struct tuned **t, const struct model *m,
                          struct err *e);
/* Read codes of layers, as forge-solve writes them, with all frames between them.  Errors
 * of reading. */
MUST_CHECK int tuned_read(struct tuned *t, struct stream_reader *in,
                          struct err *e);
/* When all are read.  E_DATA: there are none, codes or grids are missing, are not of a
 * linear of the model, or do not fit it. */
MUST_CHECK int tuned_check(struct tuned *t, const struct model_config *c,
                           struct err *e);
void tuned_close(struct tuned *t); /* NULL is allowed */
/* Begin at the weights of the model in DIR; rate: of the largest step.  E_DATA: codes are
 * not of these weights; errors of checkpoint_open(). */
MUST_CHECK int tuned_begin(struct tuned *t, const char *dir, double rate,
                           struct err *e);
/* Valid until tuned_close(): for model_tune(). */
const struct tuning *tuned_weights(struct tuned *t);
/* A step of Adam with the gradients of a layer, which are then gone.  rate: in steps of
 * the grid; step: from 1. */
MUST_CHECK int tuned_step(struct tuned *t, int64_t layer, float rate,
                          int64_t step, struct err *e);
/* Write the gradients of a layer, which are still there: frames `weight`, F32 [rows,
 * cols], named as the modules. */
MUST_CHECK int tuned_write_gradients(const struct tuned *t, int64_t layer,
                                     struct stream_writer *out, struct err *e);
/* Write all frames as they were read, codes as they are now.  *moved: the fraction of
 * the codes that are others. */
MUST_CHECK int tuned_write(const struct tuned *t, struct stream_writer *out,
                           double *moved, struct err *e);

#endif
