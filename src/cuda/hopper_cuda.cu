/* hopper_cuda.cu - see hopper.cuh. */
#include "cuda/hopper.cuh"

enum { PANEL = 64 }; /* columns: 128 bytes, the width of the swizzle */

/* The call that looks a function of the driver up: CUDA 12.5 renamed it. */
static cudaError_t find_encoder(void **f,
                                cudaDriverEntryPointQueryResult *found)
{
#if CUDART_VERSION >= 12050
    return cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", f, 12000,
                                            cudaEnableDefault, found);
#else
    return cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", f,
                                   cudaEnableDefault, found);
#endif
}

/* cuTensorMapEncodeTiled() of the driver, looked up once, or NULL. */
static decltype(&cuTensorMapEncodeTiled) encoder(void)
{
    static void *known;
    cudaDriverEntryPointQueryResult found;
    void *f = NULL;

    if (known)
        return (decltype(&cuTensorMapEncodeTiled))known;
    if (find_encoder(&f, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return NULL;
    }
    known = f;
    return (decltype(&cuTensorMapEncodeTiled))known;
}

int tensor_map(CUtensorMap *map, const struct tensor_shape *s, struct err *e)
{
    const cuuint64_t dims[] = { s->dims[0], s->dims[1], s->dims[2] };
    const cuuint64_t strides[] = { s->strides[0], s->strides[1] };
    const cuuint32_t boxes[] = { PANEL, 1, s->box };
    const cuuint32_t steps[] = { 1, 1, 1 };
    CUresult rc = encoder()(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)s->p, dims, strides,
        boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

    if (rc != CUDA_SUCCESS)
        return err_set(e, E_DEVICE,
                       "cuda: cuTensorMapEncodeTiled: error %d (dims %llu, "
                       "%llu and %llu, strides %llu and %llu bytes)",
                       (int)rc, (unsigned long long)dims[0],
                       (unsigned long long)dims[1], (unsigned long long)dims[2],
                       (unsigned long long)strides[0],
                       (unsigned long long)strides[1]);
    return 0;
}

bool hopper_has(const struct cuda_context *c, const void *kernel)
{
    struct cudaFuncAttributes f;
    int major = 0, minor = 0;

    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                               c->device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                               c->device) != cudaSuccess ||
        major != 9 || minor != 0 ||
        cudaFuncGetAttributes(&f, kernel) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return f.sharedSizeBytes > 0 && encoder();
}
