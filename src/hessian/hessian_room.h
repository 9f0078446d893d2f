/* hessian_room.h - the GPU memory of a Hessian and of a cross moment: the plug-in
 * allocates each buffer by these sizes, and forge --dry-run prints their sum. */
#ifndef FORGE_HESSIAN_ROOM_H
#define FORGE_HESSIAN_ROOM_H

#include "hessian/cross.h"
#include "hessian/hessian_shape.h"

/* Tokens of a product. */
enum { HESSIAN_GPU_CHUNK = 16384, CROSS_CHUNK = 8192 };

/* Bytes of: tokens [HESSIAN_GPU_CHUNK, cols] in bf16; their sum, f32, as a square
 * or as blocks; the result as it is stored. */
struct hessian_gpu_room {
    uint64_t tokens, sum, result;
};
/* Of: tokens of y and of x; their sum, which becomes the result. */
struct cross_room {
    uint64_t y, x, sum;
};

/* No overflow: cols, and rows, are below 2^20. */
static inline struct hessian_gpu_room
hessian_gpu_room(const struct hessian_shape *s)
{
    uint64_t g = s->block, cols = s->cols;
    uint64_t blocks = g ? (cols + g - 1) / g * g * g : 0;
    struct hessian_gpu_room r;

    r.tokens = HESSIAN_GPU_CHUNK * cols * 2;
    r.sum = (g ? blocks : cols * cols) * sizeof(float);
    r.result = (g ? blocks : cols * (cols + 1) / 2) * sizeof(float);
    return r;
}

static inline struct cross_room cross_room(const struct cross_shape *s)
{
    struct cross_room r;

    r.y = CROSS_CHUNK * s->rows * 2;
    r.x = CROSS_CHUNK * s->cols * 2;
    r.sum = s->rows * s->cols * sizeof(float);
    return r;
}

#endif
