/* cross.h - cross moments C = mean over tokens of 2 y xᵀ, of two vectors y and
 * x per token.  forge-solve moves its target by them (gptq/solve/target.h).
 *
 * Sums as in hessian.h: chunks of HESSIAN_CHUNK tokens; products of bf16
 * numbers are exact in f32; the result does not depend on the frames or the
 * threads.  With a GPU, bf16 moments are computed there. */
#ifndef FORGE_CROSS_H
#define FORGE_CROSS_H

#include "common/base.h"
#include "common/math/dtype.h"

struct cross_shape {
    uint64_t rows, cols; /* of C: lengths of y and of x */
    enum dtype dtype;    /* of y and x in the products: DT_BF16 or DT_F32 */
};

struct cross; /* an accumulator */

/* E_TEMP; E_CONFIG: f32, and no OpenBLAS; E_DATA: too large; E_DEVICE.  On an
 * error *c may be set: cross_close() it. */
MUST_CHECK int cross_open(struct cross **c, const struct cross_shape *s,
                          struct err *e);
/* Tokens y[tokens, rows] and x[tokens, cols]: both BF16 for a shape of DT_BF16,
 * any float types for DT_F32. */
struct cross_part {
    const void *y, *x;
    enum dtype y_dtype, x_dtype;
    uint64_t tokens;
    bool there; /* both are the device's: only if cross_is_there() */
    const float
        *root; /* then: what the rows of both are multiplied by; NULL: 1 */
};
/* Add them.  E_DATA: other types, or an element of y is not finite (x is left to
 * hessian_add()); E_DEVICE.  Chunks end at the same tokens as those of a struct
 * hessian that gets the same x. */
MUST_CHECK int cross_add(struct cross *c, const struct cross_part *p,
                         struct err *e);
/* x of the current chunk, the tokens added last included, packed as in syrk.h:
 * for hessian_part.packed.  NULL: x is not packed (f32, GPU), or is not
 * finite. */
uint16_t *cross_packed(const struct cross *c);
/* *data = times * C, [rows, cols], row-major, owned by c; zeros without tokens.
 * Nothing can be added afterwards.  E_TEMP, E_DEVICE. */
MUST_CHECK int cross_finish(struct cross *c, double times, const float **data,
                            struct err *e);
/* Whether it is made on the device. */
bool cross_is_there(const struct cross *c);
/* As cross_finish(), into memory of the device. */
MUST_CHECK int cross_finish_there(struct cross *c, double times, float *out,
                                  struct err *e);
void cross_close(struct cross *c); /* NULL is allowed */

#endif
