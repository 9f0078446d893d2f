/* hessian_shape.h - which Hessian is made, wherever it is made. */
#ifndef FORGE_HESSIAN_SHAPE_H
#define FORGE_HESSIAN_SHAPE_H

#include "common/math/dtype.h"

struct hessian_shape {
    uint64_t cols;
    uint64_t block;   /* 0: the whole matrix */
    enum dtype dtype; /* of the products: DT_BF16 or DT_F32 */
};

#endif
