/* cross.h - C = mean over tokens of 2 y xᵀ, of two streams of numbers that
 * belong to the same tokens: what the solver's target is moved by.
 *
 * Sums as in hessian.h: chunks of HESSIAN_CHUNK tokens, products of bf16
 * numbers exact in f32, the result the same whatever the frames and threads.  On
 * a GPU those of bf16 are made there. */
#ifndef FORGE_CROSS_H
#define FORGE_CROSS_H

#include "common/base.h"
#include "common/math/dtype.h"

struct cross_shape {
    uint64_t rows, cols; /* of C: numbers a token of y, of x */
    enum dtype dtype;    /* of the products: DT_BF16 or DT_F32 */
};

struct cross; /* an accumulator */

/* E_TEMP; E_CONFIG when OpenBLAS is missing; E_DATA: too large. */
MUST_CHECK int cross_open(struct cross **c, const struct cross_shape *s,
                          struct err *e);
/* Add y[tokens, rows] and x[tokens, cols], of any float dtypes.  E_DATA: a
 * number of y is not finite (of x hessian_add() says so).  A chunk is full with
 * the same token as a Hessian's. */
MUST_CHECK int cross_add(struct cross *c, const void *y, enum dtype y_dtype,
                         const void *x, enum dtype x_dtype, uint64_t tokens,
                         struct err *e);
/* x of the chunk at hand, the tokens just added included, as syrk.h has it and
 * hessian_add() takes it; NULL: it is kept in another way, or not finite. */
uint16_t *cross_packed(const struct cross *c);
/* *data is `times` the mean, [rows, cols], which belongs to c; zeros without
 * tokens.  Nothing can be added afterwards.  E_TEMP, E_DEVICE. */
MUST_CHECK int cross_finish(struct cross *c, double times, const float **data,
                            struct err *e);
void cross_close(struct cross *c); /* NULL is allowed */

#endif
