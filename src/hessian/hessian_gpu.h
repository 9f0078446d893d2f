/* hessian_gpu.h - the accumulators of hessian.h on the GPU of this process. */
#ifndef FORGE_HESSIAN_GPU_H
#define FORGE_HESSIAN_GPU_H

#include "hessian/hessian.h"

struct cuda_hessian;

/* *h = NULL: on the CPU, because there is no GPU open or it declined.
 * E_DEVICE: it declined, but --device cuda was said. */
MUST_CHECK int hessian_gpu_open(struct cuda_hessian **h,
                                const struct hessian_shape *s, struct err *e);
/* x[tokens, cols] of shape.dtype, finite; read before the call returns. */
MUST_CHECK int hessian_gpu_add(struct cuda_hessian *h, const void *x,
                               uint64_t tokens, struct err *e);
MUST_CHECK int hessian_gpu_finish(struct cuda_hessian *h, float *out,
                                  struct err *e);
void hessian_gpu_close(struct cuda_hessian *h); /* NULL is allowed */

#endif
