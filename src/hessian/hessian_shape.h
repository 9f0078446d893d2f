/* hessian_shape.h - size, layout and type of a Hessian, for CPU and GPU. */
#ifndef FORGE_HESSIAN_SHAPE_H
#define FORGE_HESSIAN_SHAPE_H

#include "common/math/dtype.h"

struct hessian_shape {
    uint64_t cols;    /* length of x: H is [cols, cols] */
    uint64_t block;   /* size of diagonal blocks; 0: the whole matrix, packed */
    enum dtype dtype; /* of x in the products: DT_BF16 or DT_F32 */
};

#endif
