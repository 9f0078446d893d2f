/* hessian_gpu.c - see hessian_gpu.h. */
#include "hessian/hessian_gpu.h"

#include "cuda/forge_cuda.h"
#include "device/device.h"

/* A new parameter must be taught to src/cuda/hessian_cuda.cu, or declined. */
_Static_assert(sizeof(struct hessian_shape) == 24, "does the GPU know it?");

int hessian_gpu_open(struct cuda_hessian **h, const struct hessian_shape *s,
                     struct err *e)
{
    const struct device_gpu *g = device_gpu();
    int rc;

    *h = NULL;
    if (!g)
        return 0;
    rc = g->cuda->hessian_open(h, g->context, s, e);
    return rc < 0 && device_declined(&rc, e) ? 0 : rc;
}

int hessian_gpu_add(struct cuda_hessian *h, const void *x, uint64_t tokens,
                    struct err *e)
{
    return device_gpu()->cuda->hessian_add(h, x, tokens, e);
}

int hessian_gpu_finish(struct cuda_hessian *h, float *out, struct err *e)
{
    return device_gpu()->cuda->hessian_finish(h, out, e);
}

int hessian_gpu_several(uint64_t cols, const struct cuda_tokens *t, int n,
                        struct err *e)
{
    const struct device_gpu *g = device_gpu();

    return g->cuda->hessians(g->context, cols, t, n, e);
}

void hessian_gpu_close(struct cuda_hessian *h)
{
    if (h)
        device_gpu()->cuda->hessian_close(h);
}
