/* tune_cuda.cu - weights whose codes are tuned (tune/tune_table.h), as tune/tuned.c on
 * the CPU.  Bound by memory: a step reads 16 bytes of each weight, and writes 14. */
#include "cuda/forward_internal.cuh"
#include "tune/tune_table.h"

#include <stdlib.h>

struct job {
    struct tune_module m;
    const float *scales; /* of exponents */
    int64_t groups;
};

static __device__ __forceinline__ uint32_t meta_at(const struct job &j,
                                                   int64_t i)
{
    return j.m.meta[i / j.m.cols * j.groups + i % j.m.cols / j.m.group];
}

static __device__ __forceinline__ float scale_of(const struct job &j,
                                                 uint32_t meta)
{
    float s = j.scales[meta & 0xffff];

    return meta >> 24 & QUANT_NEGATIVE ? -s : s;
}

template <class T>
static __device__ __forceinline__ void store_value(const struct job &j,
                                                   int64_t i, uint32_t meta)
{
    bool wide = meta >> 24 & QUANT_EIGHT;
    int top = wide ? 255 : 15, zero = (int)(meta >> 16 & 255);
    float code = fminf(fmaxf(rintf(j.m.v[i]), 0), (float)top);

    if (meta >> 24 & QUANT_SYMMETRIC)
        zero = wide ? 128 : 8;
    store((T *)j.m.w + i, __fmul_rn(code - (float)zero, scale_of(j, meta)));
}

template <class T>
static __global__ void __launch_bounds__(ROW)
    values_kernel(const struct job j, int64_t n)
{
    EACH(i, n)
    store_value<T>(j, i, meta_at(j, i));
}

/* Grid: blocks of the largest linear, linears. */
template <class T>
static __global__ void __launch_bounds__(ROW)
    step_kernel(const struct job *list, float rate, float back1, float back2)
{
    const struct job j = list[blockIdx.y];

    EACH(i, j.m.rows * j.m.cols)
    {
        uint32_t meta = meta_at(j, i);
        float g = __fmul_rn(j.m.g[i], scale_of(j, meta));
        float first = __fadd_rn(__fmul_rn((float)TUNE_BETA1, j.m.first[i]),
                                __fmul_rn((float)(1 - TUNE_BETA1), g));
        float second =
            __fadd_rn(__fmul_rn((float)TUNE_BETA2, j.m.second[i]),
                      __fmul_rn(__fmul_rn((float)(1 - TUNE_BETA2), g), g));

        j.m.first[i] = first;
        j.m.second[i] = second;
        j.m.v[i] -=
            rate * (first / back1) / (sqrtf(second / back2) + TUNE_EPSILON);
        store_value<T>(j, i, meta);
    }
}

static int job_of(struct cuda_context *c, const struct tune_module *m,
                  struct job *j, struct err *e)
{
    j->m = *m;
    j->groups = (int64_t)quant_groups((uint64_t)m->cols, (uint64_t)m->group);
    return context_scales(c, m->scale_dtype, &j->scales, e);
}

template <class T>
static int run_values(struct cuda_context *c, const struct job &j,
                      struct err *e)
{
    int64_t n = j.m.rows * j.m.cols;

    values_kernel<T><<<blocks_for(n), ROW, 0, c->stream>>>(j, n);
    LAUNCHED();
    return 0;
}

template <class T>
static int run_step(struct cuda_context *c, const struct job *list, int64_t n,
                    int64_t largest, float rate, const float back[2],
                    struct err *e)
{
    step_kernel<T>
        <<<dim3(blocks_for(largest), (unsigned)n), ROW, 0, c->stream>>>(
            list, rate, back[0], back[1]);
    LAUNCHED();
    return 0;
}

static int tune_values(struct cuda_context *c, const struct tune_module *m,
                       struct err *e)
{
    struct job j;
    int rc = job_of(c, m, &j, e);

    return rc < 0 ? rc : BY_DTYPE(m->dtype, run_values, c, j, e);
}

static int step_list(struct cuda_context *c, const struct tune_module *m,
                     struct job *list, int64_t n, float rate,
                     const float back[2], struct err *e)
{
    struct device_buffer *room = &c->steps;
    size_t bytes = (size_t)n * sizeof(*list);
    int64_t largest = 0;
    int rc = buffer_need(c, room, bytes, e);

    for (int64_t i = 0; i < n && rc >= 0; i++) {
        int64_t size = m[i].rows * m[i].cols;

        largest = size > largest ? size : largest;
        rc = job_of(c, &m[i], &list[i], e);
    }
    if (rc >= 0)
        rc = upload(c, room->data, list, bytes, e);
    return rc < 0 ?
               rc :
               BY_DTYPE(m->dtype, run_step, c, (const struct job *)room->data,
                        n, largest, rate, back, e);
}

static int tune_step(struct cuda_context *c, const struct tune_module *m,
                     int64_t n, float rate, const float back[2], struct err *e)
{
    struct job *list =
        (struct job *)mem_alloc((size_t)n * sizeof(*list), "codes", e);
    int rc = list ? step_list(c, m, list, n, rate, back, e) : e->code;

    free(list);
    return rc;
}

extern "C" __attribute__((visibility("default")))
const struct tune_table forge_tune_table = {
    TUNE_TABLE_VERSION,
    tune_values,
    tune_step,
};
