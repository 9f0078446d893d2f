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
/* The same for the accumulators of cross.h. */
struct cuda_cross;
struct cross_shape;
MUST_CHECK int cross_gpu_open(struct cuda_cross **x,
                              const struct cross_shape *s, struct err *e);
MUST_CHECK int cross_gpu_add(struct cuda_cross *x, const void *y,
                             const void *from, uint64_t tokens, struct err *e);
MUST_CHECK int cross_gpu_finish(struct cuda_cross *x, double factor, float *out,
                                struct err *e);
void cross_gpu_close(struct cuda_cross *x); /* NULL is allowed */
/* The Hessians of n inputs of one width at once, of bf16 tokens that are finite;
 * one's does not depend on the others.  E_CONFIG: not on the GPU. */
struct cuda_tokens;
MUST_CHECK int hessian_gpu_batch(uint64_t cols, const struct cuda_tokens *t,
                                 int n, struct err *e);
void hessian_gpu_close(struct cuda_hessian *h); /* NULL is allowed */

#endif
