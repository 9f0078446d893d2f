/* forge_w4a16_cuda.h - y = x Wᵀ on a GPU with W in 4 bits: forge_w4a16.h's
 * linears, rows, return values and reasons, by functions of forge-cuda.so, to
 * link or to open with dlopen(3).  Compute capability 8.0 or later.
 *
 * A linear is brought into an order of its own, in which a warp reads 16 bytes
 * for each of its threads: 0.5 bytes a weight, and 4 for each group and output
 * (scale and zero point).  The caller's tensors, on the host or on the device,
 * are read by prepare() only.
 *
 * x and y are of any type, in the device's memory.  x of f16 or bf16, up to
 * FORGE_W4A16_CUDA_EXACT rows (of an expert, on average): weights are exact, but
 * for scales of f32, which are rounded to 20 bits, and sums are f32.  More rows:
 * weights may be rounded to x's type, on Hopper in registers; elsewhere, and where
 * scales are f32, from 385 rows on, at most 128 MiB of them (or 256 outputs) at a
 * time, and multiplied by cuBLAS, as they are for any number of rows of f32.  On
 * Hopper x of bf16 becomes f16, times a power of two for each row (exact from 2^-32
 * of its largest number on), where scales are f16, outputs 16,384 or more, and rows
 * 1,024 or more; weights are rounded to f16 then.
 *
 * Equal calls give equal bytes; a row may be summed in another order in a call with
 * another number of rows.
 *
 * All functions of a context queue operations on its stream, and are called from
 * one thread at a time.  -69 (EX_UNAVAILABLE): the device or a library
 * failed. */
#ifndef FORGE_W4A16_CUDA_H
#define FORGE_W4A16_CUDA_H

#include "forge_w4a16.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FORGE_W4A16_CUDA_EXACT = 64 };

/* A device and a stream. */
struct forge_w4a16_cuda;
/* A linear prepared for products. */
struct forge_w4a16_cuda_linear;

/* stream: a cudaStream_t of the device, or NULL: a new one.  *c lives until the
 * process ends. */
FORGE_W4A16_API int forge_w4a16_cuda_open(struct forge_w4a16_cuda **c,
                                          int device, void *stream, char *why,
                                          size_t why_size);
/* As forge_w4a16_prepare(); waits until it is done. */
FORGE_W4A16_API int forge_w4a16_cuda_prepare(struct forge_w4a16_cuda *c,
                                             struct forge_w4a16_cuda_linear **w,
                                             const struct forge_w4a16_linear *l,
                                             char *why, size_t why_size);
/* Once the operations that are queued are done; NULL is allowed. */
FORGE_W4A16_API void
forge_w4a16_cuda_release(struct forge_w4a16_cuda_linear *w);
/* Bytes of the device's memory that w holds. */
FORGE_W4A16_API size_t
forge_w4a16_cuda_memory(const struct forge_w4a16_cuda_linear *w);
/* As forge_w4a16_multiply() and forge_w4a16_grouped(), whose w and first are the
 * host's; return when the operations are queued. */
FORGE_W4A16_API int forge_w4a16_cuda_multiply(
    struct forge_w4a16_cuda *c, const struct forge_w4a16_cuda_linear *w,
    const struct forge_w4a16_rows *x, int64_t rows,
    const struct forge_w4a16_rows *y, char *why, size_t why_size);
FORGE_W4A16_API int forge_w4a16_cuda_grouped(
    struct forge_w4a16_cuda *c, const struct forge_w4a16_cuda_linear *const *w,
    const int64_t *first, int64_t experts, const struct forge_w4a16_rows *x,
    const struct forge_w4a16_rows *y, char *why, size_t why_size);
/* Wait until what is queued is done. */
FORGE_W4A16_API int forge_w4a16_cuda_wait(struct forge_w4a16_cuda *c, char *why,
                                          size_t why_size);

#ifdef __cplusplus
}
#endif

#endif
