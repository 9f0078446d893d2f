/* grid_cost.cuh - the cost of a group on a grid: a fast approximation, and the
 * CPU's to the bit.  See grid_cuda.cu. */
#ifndef FORGE_CUDA_GRID_COST_CUH
#define FORGE_CUDA_GRID_COST_CUH

#include "common/math/lanes.h" /* LANES: of the CPU's sums */
#include "cuda/internal.cuh"

#define ROUNDER 12582912.0f

struct grid_args {
    const void *w;
    const float *importance; /* [cols], each group's divided by its maximum */
    const double *factors;   /* [steps] */
    const float *scales;     /* [Q_COUNT] */
    const double *powers;    /* [Q_COUNT] */
    uint32_t *meta;
    unsigned long long *bad;
    uint64_t first;                /* index of w's first element, for *bad */
    uint64_t rows, cols, n_groups; /* n_groups: per row */
    uint32_t group, padded;        /* inputs of a group; padded to LANES */
    uint32_t steps, tries;         /* factors; candidates: 1 or 3 per factor */
    uint32_t groups_per_warp;
    int q_low, q_high; /* range of the exponents of scale_dtype */
    float norm;
    bool symmetric;
};

/* ---- the fast cost ---- */

static __device__ __forceinline__ float fast_power(float u, float norm)
{
    float l, p;

    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(l) : "f"(fabsf(u)));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(l * norm));
    return p;
}

template <bool SQUARE>
static __device__ __forceinline__ float fast_part(float w, float y, float lo,
                                                  float hi, float norm)
{
    float t = fminf(fmaxf(fmaf(w, y, ROUNDER), lo), hi);
    float u = fmaf(w, y, ROUNDER - t);

    return SQUARE ? u * u : fast_power(u, norm);
}

/* The approximate cost of a group on a grid, in units of scale^norm; *weight =
 * the sum of c. */
template <bool SQUARE, bool WEIGHTED>
static __device__ float fast_cost(const struct grid_args &a, const float *w,
                                  const float *c, float scale, int zero,
                                  float *weight)
{
    float y = __frcp_rn(scale);
    float lo = ROUNDER - (float)zero, hi = ROUNDER + (float)(15 - zero);
    float4 sum = make_float4(0, 0, 0, 0);
    float total = 0;

#pragma unroll 4
    for (uint32_t k = 0; k < a.padded; k += 4) {
        float4 x = *(const float4 *)(w + k);
        float4 m =
            WEIGHTED ? *(const float4 *)(c + k) : make_float4(1, 1, 1, 1);

        sum.x = fmaf(fast_part<SQUARE>(x.x, y, lo, hi, a.norm), m.x, sum.x);
        sum.y = fmaf(fast_part<SQUARE>(x.y, y, lo, hi, a.norm), m.y, sum.y);
        sum.z = fmaf(fast_part<SQUARE>(x.z, y, lo, hi, a.norm), m.z, sum.z);
        sum.w = fmaf(fast_part<SQUARE>(x.w, y, lo, hi, a.norm), m.w, sum.w);
        if (WEIGHTED)
            total += (m.x + m.y) + (m.z + m.w);
    }
    *weight = WEIGHTED ? total : (float)a.padded;
    return (sum.x + sum.y) + (sum.z + sum.w);
}

/* ---- the CPU's cost: the same operations as grid_cost.c, line by line ---- */

static __device__ __forceinline__ float exact_power(float u, float norm)
{
    float a = fabsf(u), m, r, r2, p, l, whole, f;
    bool tiny = a < 0x1p-24f;
    int bits, e;

    bits = __float_as_int(tiny ? 1.0f : a);
    e = (bits - 0x3f3504f3) >> 23;
    m = __int_as_float(bits - (e << 23));
    r = __fdiv_rn(__fadd_rn(m, -1.0f), __fadd_rn(m, 1.0f));
    r2 = __fmul_rn(r, r);
    p = __fadd_rn(__fmul_rn(r2, 0.3205989867f), 0.4121984802f);
    p = __fadd_rn(__fmul_rn(p, r2), 0.5770780164f);
    p = __fadd_rn(__fmul_rn(p, r2), 0.9617966939f);
    p = __fadd_rn(__fmul_rn(p, r2), 2.8853900818f);
    l = __fmul_rn(__fadd_rn((float)e, __fmul_rn(p, r)), norm);
    whole = __fadd_rn(__fadd_rn(l, ROUNDER), -ROUNDER);
    f = __fadd_rn(l, -whole);
    p = __fadd_rn(__fmul_rn(f, 1.5403530e-4f), 1.3333558e-3f);
    p = __fadd_rn(__fmul_rn(p, f), 9.6181291e-3f);
    p = __fadd_rn(__fmul_rn(p, f), 5.5504109e-2f);
    p = __fadd_rn(__fmul_rn(p, f), 2.4022651e-1f);
    p = __fadd_rn(__fmul_rn(p, f), 6.9314718e-1f);
    p = __fadd_rn(__fmul_rn(p, f), 1.0f);
    p = __int_as_float(__float_as_int(p) + ((int)whole << 23));
    return tiny ? 0 : p;
}

/* The exact cost, computed by the sixteen lanes of a half warp; all of them get
 * the sum.  c NULL: all 1. */
static __device__ double exact_cost(const struct grid_args &a, const float *w,
                                    const float *c, float scale, int zero)
{
    float lo = (float)-zero, hi = (float)(15 - zero), sum = 0;
    int lane = threadIdx.x % 32, first = lane / LANES * LANES;
    double total = 0;

    for (uint32_t i = lane % LANES; i < a.padded; i += LANES) {
        float x = __fdiv_rn(w[i], scale), q, u, part;

        q = x < lo ? lo : x;
        q = q > hi ? hi : q;
        q = __fadd_rn(__fadd_rn(q, ROUNDER), -ROUNDER);
        u = __fadd_rn(x, -q);
        part = a.norm == 2 ? __fmul_rn(u, u) : exact_power(u, a.norm);
        if (c)
            part = __fmul_rn(part, c[i]);
        sum = __fadd_rn(sum, part);
    }
    for (int i = 0; i < LANES; i++)
        total = __dadd_rn(total, (double)__shfl_sync(~0u, sum, first + i));
    return total;
}

#endif
