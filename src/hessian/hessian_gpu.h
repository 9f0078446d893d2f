/* hessian_gpu.h - the accumulators of hessian.h and cross.h on the GPU of this
 * process (device/device.h).  All but the _open() functions return E_TEMP or
 * E_DEVICE as the plug-in does (hessian_table.h). */
#ifndef FORGE_HESSIAN_GPU_H
#define FORGE_HESSIAN_GPU_H

#include "hessian/hessian_shape.h"

struct cuda_hessian;

/* 0 with *h = NULL: use the CPU, since no GPU is open or it has declined.
 * E_DEVICE: it has declined under --device cuda. */
MUST_CHECK int hessian_gpu_open(struct cuda_hessian **h,
                                const struct hessian_shape *s, struct err *e);
/* Add x[tokens, cols] of shape.dtype, all finite; x is read before the call
 * returns.  there, root: x and out are the device's, what its rows are multiplied by,
 * see hessian_table.h. */
MUST_CHECK int hessian_gpu_add(struct cuda_hessian *h, const void *x,
                               uint64_t tokens, bool there, const float *root,
                               struct err *e);
/* out[hessian_elements()] = H. */
MUST_CHECK int hessian_gpu_finish(struct cuda_hessian *h, float *out,
                                  bool there, struct err *e);
/* The first of n numbers there that is not finite, or n. */
MUST_CHECK int hessian_gpu_finite(enum dtype t, const void *x, uint64_t n,
                                  uint64_t *first, struct err *e);
/* d[cols] of a packed triangle there. */
MUST_CHECK int hessian_gpu_diagonal(const float *h, uint64_t cols, float *d,
                                    struct err *e);
/* Blend a packed triangle there, see hessian_table.blend. */
MUST_CHECK int hessian_gpu_blend(float *h, const float *prior, uint64_t cols,
                                 double own, float add, struct err *e);
/* Copy n bytes of the host's to `to` there. */
MUST_CHECK int hessian_gpu_put(void *to, const void *from, size_t n,
                               struct err *e);
/* As hessian_gpu_open() to _finish() for cross moments: y[tokens, rows], from (x of cross.h)[tokens,
 * cols], both bf16 and finite; out[rows, cols] = factor * sum of y xᵀ. */
struct cuda_cross;
struct cross_shape;
MUST_CHECK int cross_gpu_open(struct cuda_cross **x,
                              const struct cross_shape *s, struct err *e);
MUST_CHECK int cross_gpu_add(struct cuda_cross *x, const void *y,
                             const void *from, uint64_t tokens, bool there,
                             const float *root, struct err *e);
MUST_CHECK int cross_gpu_finish(struct cuda_cross *x, double factor, float *out,
                                bool there, struct err *e);
void cross_gpu_close(struct cuda_cross *x); /* NULL is allowed */
/* The Hessians of n inputs of the same width in one call, see
 * hessian_table.batch; an input's H does not depend on the others.  E_CONFIG:
 * the GPU declines. */
struct cuda_tokens;
MUST_CHECK int hessian_gpu_batch(uint64_t cols, const struct cuda_tokens *t,
                                 int n, struct err *e);
void hessian_gpu_close(struct cuda_hessian *h); /* NULL is allowed */

#endif
