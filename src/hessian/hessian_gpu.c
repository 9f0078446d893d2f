/* hessian_gpu.c - see hessian_gpu.h. */
#include "hessian/hessian_gpu.h"

#include "device/device.h"
#include "hessian/hessian_table.h"

struct plugin_table hessian_plugin = { HESSIAN_TABLE, HESSIAN_TABLE_VERSION,
                                       NULL };

int hessian_gpu_open(struct cuda_hessian **h, const struct hessian_shape *s,
                     struct err *e)
{
    struct cuda_context *gpu = device_gpu();
    int rc;

    *h = NULL;
    if (!gpu)
        return 0;
    rc = hessian_functions()->open(h, gpu, s, e);
    return rc < 0 && device_declined(&rc, e) ? 0 : rc;
}

int hessian_gpu_add(struct cuda_hessian *h, const void *x, uint64_t tokens,
                    bool there, const float *root, struct err *e)
{
    return hessian_functions()->add(h, x, tokens, there, root, e);
}

int hessian_gpu_finish(struct cuda_hessian *h, float *out, bool there,
                       struct err *e)
{
    return hessian_functions()->finish(h, out, there, e);
}

int hessian_gpu_finite(enum dtype t, const void *x, uint64_t n, uint64_t *first,
                       struct err *e)
{
    return hessian_functions()->finite(device_gpu(), t, x, n, first, e);
}

int hessian_gpu_diagonal(const float *h, uint64_t cols, float *d, struct err *e)
{
    return hessian_functions()->diagonal(device_gpu(), h, cols, d, e);
}

int hessian_gpu_blend(float *h, const float *prior, uint64_t cols, double own,
                      float add, struct err *e)
{
    return hessian_functions()->blend(device_gpu(), h, prior, cols, own, add,
                                      e);
}

int hessian_gpu_put(void *to, const void *from, size_t n, struct err *e)
{
    return hessian_functions()->put(device_gpu(), to, from, n, e);
}

int hessian_gpu_batch(uint64_t cols, const struct cuda_tokens *t, int n,
                      struct err *e)
{
    return hessian_functions()->batch(device_gpu(), cols, t, n, e);
}

void hessian_gpu_close(struct cuda_hessian *h)
{
    if (h)
        hessian_functions()->close(h);
}

int cross_gpu_open(struct cuda_cross **x, const struct cross_shape *s,
                   struct err *e)
{
    struct cuda_context *gpu = device_gpu();
    int rc;

    *x = NULL;
    if (!gpu)
        return 0;
    rc = hessian_functions()->cross_open(x, gpu, s, e);
    return rc < 0 && device_declined(&rc, e) ? 0 : rc;
}

int cross_gpu_add(struct cuda_cross *x, const void *y, const void *from,
                  uint64_t tokens, bool there, const float *root, struct err *e)
{
    return hessian_functions()->cross_add(x, y, from, tokens, there, root, e);
}

int cross_gpu_finish(struct cuda_cross *x, double factor, float *out,
                     bool there, struct err *e)
{
    return hessian_functions()->cross_finish(x, factor, out, there, e);
}

void cross_gpu_close(struct cuda_cross *x)
{
    if (x)
        hessian_functions()->cross_close(x);
}
