/* hessian_gpu.h - the accumulators of hessian.h on the GPU of this process. */
#ifndef FORGE_HESSIAN_GPU_H
#define FORGE_HESSIAN_GPU_H

#include "hessian/hessian_shape.h"

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
/* The Hessians of n inputs of one width at once, of bf16 tokens that are finite;
 * one's does not depend on the others.  E_CONFIG: not on the GPU. */
struct cuda_tokens;
MUST_CHECK int hessian_gpu_batch(uint64_t cols, const struct cuda_tokens *t,
                                 int n, struct err *e);
void hessian_gpu_close(struct cuda_hessian *h); /* NULL is allowed */

#endif
