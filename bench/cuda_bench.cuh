/* cuda_bench.cuh - what the files of the bench share: the context, checked
 * calls, random data on the device, and a clock. */
#ifndef FORGE_CUDA_BENCH_CUH
#define FORGE_CUDA_BENCH_CUH

#include "cuda/internal.cuh"

#include <algorithm>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 11 };

inline struct cuda_context *c;
inline struct err why;
inline double copy_rate, bf16_rate, f32_rate; /* bytes/s, operations/s */

static inline void must(int rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "cuda_bench: %s: %s\n", what, why.msg);
    exit(1);
}
#define MUST(call)  must((call), #call)
#define MUSTC(call) must(cuda_check((call), #call, &why), #call)
#define MUSTB(call)                                                            \
    must((call) == CUBLAS_STATUS_SUCCESS ?                                     \
             0 :                                                               \
             library_failed(&why, "cuBLAS", 1, #call),                         \
         #call)

static inline void *device(size_t n)
{
    void *p;

    MUSTC(cudaMalloc(&p, n));
    MUSTC(cudaMemset(p, 0xa5, n));
    return p;
}

static inline double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Median milliseconds of fn(). */
template <class F> static double timed(F fn, int repeats = REPEATS)
{
    cudaEvent_t a, b;
    float ms[64];

    MUSTC(cudaEventCreate(&a));
    MUSTC(cudaEventCreate(&b));
    fn();
    fn();
    for (int i = 0; i < repeats; i++) {
        MUSTC(cudaEventRecord(a, c->stream));
        fn();
        MUSTC(cudaEventRecord(b, c->stream));
        MUSTC(cudaEventSynchronize(b));
        MUSTC(cudaEventElapsedTime(&ms[i], a, b));
    }
    MUSTC(cudaEventDestroy(a));
    MUSTC(cudaEventDestroy(b));
    std::sort(ms, ms + repeats);
    return ms[repeats / 2];
}

/* ---- random data on the device ---- */

static __device__ __forceinline__ float noise(uint64_t i, uint64_t seed)
{
    float sum = 0;

    for (int k = 0; k < 4; k++) {
        uint64_t x = (i * 4 + k + 1) * 0x9e3779b97f4a7c15 + seed;

        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        sum += (float)((x ^ x >> 31) >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7320508f; /* nearly normal, variance 1 */
}

static __global__ void bench_bf16_kernel(__nv_bfloat16 *x, size_t n,
                                         float scale, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += step)
        x[i] = __float2bfloat16(noise(i, seed) * scale);
}

static __global__ void bench_f32_kernel(float *x, size_t n, float scale,
                                        uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += step)
        x[i] = noise(i, seed) * scale;
}

static inline __nv_bfloat16 *random_bf16(size_t n, float scale)
{
    __nv_bfloat16 *x = (__nv_bfloat16 *)device(n * 2);

    bench_bf16_kernel<<<4096, 256, 0, c->stream>>>(x, n, scale, time(NULL));
    MUSTC(cudaGetLastError());
    return x;
}

/* Bench files beside cuda_bench.cu. */
void bench_hessian(void);
void bench_ragged(void);
void bench_experts(void);
void bench_w4a16(void);

#endif
