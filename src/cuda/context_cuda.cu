/* context_cuda.cu - a device, its libraries and buffers; the plug-in's table. */
#include "cuda/inside.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int cuda_check(cudaError_t rc, const char *call, struct err *e)
{
    if (rc == cudaSuccess)
        return 0;
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* an allocation that failed breaks nothing */
        return err_set(e, E_TEMP, "cuda: out of GPU memory");
    }
    return err_set(e, E_DEVICE, "cuda: %.*s: %s", (int)strcspn(call, "("), call,
                   cudaGetErrorString(rc));
}

int library_failed(struct err *e, const char *lib, int status, const char *call)
{
    /* 2 is an allocation that failed, in both libraries (3 in old cuBLAS) */
    if (status == 2 || status == 3)
        return err_set(e, E_TEMP, "cuda: %s: out of GPU memory", lib);
    return err_set(e, E_DEVICE, "cuda: %s: %.*s: status %d", lib,
                   (int)strcspn(call, "("), call, status);
}

int buffer_need(struct device_buffer *b, size_t n, struct err *e)
{
    if (n <= b->cap)
        return 0;
    CUDA_TRY(cudaFree(b->data));
    b->data = NULL;
    b->cap = 0;
    CUDA_TRY(cudaMalloc(&b->data, n));
    b->cap = n;
    return 0;
}

int context_scales(struct cuda_context *c, enum dtype t, const float **scales,
                   struct err *e)
{
    float *host;
    int rc;

    if (t != DT_F32 && t != DT_F16 && t != DT_BF16)
        return err_set(e, E_CONFIG, "%s is no dtype of scales", dtype_name(t));
    *scales = c->scales[t];
    if (*scales)
        return 0;
    host = (float *)mem_alloc(Q_COUNT * sizeof(*host), "cuda", e);
    if (!host)
        return e->code;
    for (uint32_t q = 0; q < Q_COUNT; q++)
        host[q] = quant_grid(q, t).scale;
    rc = cuda_check(cudaMalloc(&c->scales[t], Q_COUNT * sizeof(*host)),
                    "cudaMalloc", e);
    if (!rc)
        rc = cuda_check(cudaMemcpy(c->scales[t], host, Q_COUNT * sizeof(*host),
                                   cudaMemcpyHostToDevice),
                        "cudaMemcpy", e);
    free(host);
    *scales = c->scales[t];
    return rc;
}

static int count_devices(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}

static int start(struct cuda_context *c, int device, struct err *e)
{
    struct cudaDeviceProp p;

    c->device = device;
    CUDA_TRY(cudaSetDevice(device));
    CUDA_TRY(cudaGetDeviceProperties(&p, device));
    if (p.major < 8)
        return err_set(e, E_DEVICE,
                       "cuda: %s has compute capability %d.%d: want 8.0 or "
                       "later",
                       p.name, p.major, p.minor);
    c->processors = p.multiProcessorCount;
    c->shared_memory = (int)p.sharedMemPerBlockOptin;
    memcpy(c->name, p.name, sizeof(c->name));
    c->name[sizeof(c->name) - 1] = '\0';
    CUDA_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    BLAS_TRY(cublasCreate(&c->blas));
    BLAS_TRY(cublasSetStream(c->blas, c->stream));
    SOLVER_TRY(cusolverDnCreate(&c->solver));
    SOLVER_TRY(cusolverDnSetStream(c->solver, c->stream));
    CUDA_TRY(cudaMalloc(&c->bad, sizeof(*c->bad)));
    return 0;
}

int cuda_open(struct cuda_context **out, int device, struct err *e)
{
    struct cuda_context *c;
    int rc, n = count_devices();

    *out = NULL;
    if (n == 0)
        return err_set(e, E_DEVICE, "cuda: no usable device");
    if (device < 0 || device >= n)
        return err_set(e, E_DEVICE, "cuda: no device %d: there are %d", device,
                       n);
    c = (struct cuda_context *)mem_zero(1, sizeof(*c), "cuda", e);
    if (!c)
        return e->code;
    rc = start(c, device, e);
    if (rc < 0) {
        cuda_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

/* What fails here has failed before. */
void cuda_close(struct cuda_context *c)
{
    struct device_buffer *b[] = { &c->weight, &c->meta,  &c->order, &c->shifted,
                                  &c->pushed, &c->split, &c->codes, &c->packed,
                                  &c->loss,   &c->work,  &c->info,  &c->fill };

    if (!c)
        return;
    for (size_t i = 0; i < ARRAY_LEN(b); i++)
        cudaFree(b[i]->data);
    for (size_t i = 0; i < ARRAY_LEN(c->scales); i++)
        cudaFree(c->scales[i]);
    cudaFree(c->powers);
    cudaFree(c->bad);
    if (c->solver)
        cusolverDnDestroy(c->solver);
    if (c->blas)
        cublasDestroy(c->blas);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    free(c);
}

static const char *device_name(const struct cuda_context *c)
{
    return c->name;
}

static const struct forge_cuda api = {
    FORGE_CUDA_VERSION, count_devices,       cuda_open,
    device_name,        cuda_close,          cuda_hessian_open,
    cuda_hessian_add,   cuda_hessian_finish, cuda_hessian_close,
    cuda_factors_build, cuda_factors_read,   cuda_factors_free,
    cuda_solve,         cuda_grid,           cuda_pack,
};

extern "C" __attribute__((visibility("default"))) const struct forge_cuda *
forge_cuda_api(void)
{
    return &api;
}
