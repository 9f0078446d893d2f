/* hopper.cuh - what kernels with Hopper's instructions (wgmma.cuh) need of the
 * host. */
#ifndef FORGE_CUDA_HOPPER_CUH
#define FORGE_CUDA_HOPPER_CUH

#include <cuda.h>

#include "cuda/internal.cuh"

/* Whether this is a Hopper GPU, the driver makes maps, and the kernel, which has
 * shared memory of a fixed size, was compiled for it: one compiled for something
 * else is empty. */
bool hopper_has(const struct cuda_context *c, const void *kernel);
/* A map of a tensor in bf16 of three dims, the innermost first: its rows, columns
 * one behind the other, are cut into boxes of 64 columns and `box` of dims[2], with
 * a swizzle of 128 bytes.  p: the device's, a multiple of 16 bytes, as are strides:
 * bytes of a step in dims[1] and dims[2].  No dim is 0.  What a box has beyond the
 * dims is filled with 0.  E_DEVICE. */
struct tensor_shape {
    const void *p;
    uint64_t dims[3], strides[2];
    uint32_t box;
};
int tensor_map(CUtensorMap *map, const struct tensor_shape *s, struct err *e);

#endif
