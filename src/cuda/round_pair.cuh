/* round_pair.cuh - rounds two weights by one conversion to F16, to codes and words.
 *
 * A quotient w * (1 / scale) is added to 1040 + zero in units of 1 / 16, and converted
 * to F16, whose numbers are 16 apart there: what is added is even, so ties go to the
 * even quotient.  The sum is a float with a last place of 2^-13 of the quotient.  Of a
 * BF16 or F16 weight and a scale of at most 11 bits, w / scale is either in the middle
 * between two integers or at least 2^-13 from it, and the error of the product is below
 * 2^-18: so the sum is on the same side of the middle, or in the middle where the
 * quotient is.  No code is below 0 on the grid that spans a group; weights that would
 * be above 15 are clamped as weights, two at a time. */
#ifndef FORGE_ROUND_PAIR_CUH
#define FORGE_ROUND_PAIR_CUH

#include "cuda/internal.cuh"
#include "cuda/pack_internal.cuh"

#define CODES_0 0x74107410u /* 16 * 1040 in F16, twice */

/* A grid in the form that rounding needs. */
struct round_grid {
    float inverse; /* 16 / scale; 0: exact_pair() rounds */
    float offset;  /* 16 * (1040 + odd + zero), odd = zero % 2; for
                    * exact_pair() the scale */
    uint32_t most; /* twice a weight whose code is 15: no larger are needed; for
                    * exact_pair() the zero point */
    uint32_t none; /* the pair of codes 0 */
};

template <enum dtype T>
static __device__ __forceinline__ float2 pair_of(uint32_t x)
{
    if (T == DT_BF16)
        return make_float2(__uint_as_float(x << 16),
                           __uint_as_float(x & 0xffff0000));
    return __half22float2(*(const __half2 *)&x);
}

template <enum dtype T>
static __device__ __forceinline__ uint32_t least(uint32_t a, uint32_t b)
{
    if (T == DT_BF16) {
        __nv_bfloat162 m =
            __hmin2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);

        return *(const uint32_t *)&m;
    }
    __half2 m = __hmin2(*(const __half2 *)&a, *(const __half2 *)&b);

    return *(const uint32_t *)&m;
}

/* By IEEE division; rarely. */
template <enum dtype T>
static __device__ __noinline__ uint32_t exact_pair(uint32_t x,
                                                   const struct round_grid g)
{
    float2 w = pair_of<T>(x);
    float lo = -(float)g.most;
    float s = __fdiv_rn(w.x, g.offset), t = __fdiv_rn(w.y, g.offset);

    s = rintf(fminf(fmaxf(s, lo), 15 + lo)) - lo;
    t = rintf(fminf(fmaxf(t, lo), 15 + lo)) - lo;
    return g.none + (uint32_t)s + ((uint32_t)t << 16);
}

/* g.none + the codes of two weights, in 16 bits each. */
template <enum dtype T>
static __device__ __forceinline__ uint32_t
round_pair(uint32_t x, const struct round_grid &g)
{
    float2 w = pair_of<T>(least<T>(x, g.most));
    float s = fmaf(w.x, g.inverse, g.offset);
    float t = fmaf(w.y, g.inverse, g.offset);
    uint32_t p;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(p) : "f"(t), "f"(s));
    return p;
}

/* Eight weights.  EXACT: g.inverse may be 0. */
template <enum dtype T, bool EXACT>
static __device__ __forceinline__ void round_pairs(uint32_t p[4], const uint4 x,
                                                   const struct round_grid &g)
{
    if (EXACT && g.inverse == 0) {
        p[0] = exact_pair<T>(x.x, g);
        p[1] = exact_pair<T>(x.y, g);
        p[2] = exact_pair<T>(x.z, g);
        p[3] = exact_pair<T>(x.w, g);
        return;
    }
    p[0] = round_pair<T>(x.x, g);
    p[1] = round_pair<T>(x.y, g);
    p[2] = round_pair<T>(x.z, g);
    p[3] = round_pair<T>(x.w, g);
}

/* The word of eight inputs. */
template <enum dtype T, bool EXACT>
static __device__ __forceinline__ uint32_t round_word(const uint4 x,
                                                      const struct round_grid g)
{
    uint32_t p[4], a, b;

    round_pairs<T, EXACT>(p, x, g);
    a = p[0] + (p[1] << 8) - g.none * 0x101;
    b = p[2] + (p[3] << 8) - g.none * 0x101;
    return __byte_perm(a, b, 0x5410) + (__byte_perm(a, b, 0x7632) << 4);
}

/* AWQ's words of eight outputs, one for each of eight inputs.  grids: of the outputs,
 * n apart. */
template <enum dtype T, bool EXACT>
static __device__ __forceinline__ void
round_awq(uint32_t out[EACH], const uint4 x[EACH],
          const struct round_grid *grids, int n)
{
    uint32_t sum[2][4], none[2]; /* even and odd outputs */

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const struct round_grid g = grids[i * n];
        int o = i % 2, at = i / 2 * 4;
        uint32_t p[4];

        round_pairs<T, EXACT>(p, x[i], g);
        none[o] = at ? none[o] + (g.none << at) : g.none;
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum[o][j] = at ? sum[o][j] + (p[j] << at) : p[j];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t even = sum[0][j] - none[0], odd = sum[1][j] - none[1];

        out[2 * j] = __byte_perm(even, odd, 0x5410);
        out[2 * j + 1] = __byte_perm(even, odd, 0x7632);
    }
}

#endif
