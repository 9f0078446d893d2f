/* grid_cost.c - see grid_cost.h.
 *
 * Everything is written in vectors of sixteen floats that the compiler maps to
 * one AVX-512, two AVX or four SSE registers.  Each operation is an IEEE one,
 * in the same order, without contraction, so all variants give equal bits.
 *
 * |u|^norm is exp2(norm * log2|u|) by polynomials: relative error below 2e-6,
 * far below what tells two candidates apart. */
#include "gptq/grid_cost.h"

#include <stdint.h>
#include <string.h>

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));

#define INLINE static inline __attribute__((always_inline))
/* Adding and taking off 1.5 * 2^23 rounds half to even, as rint() does. */
#define ROUNDER 12582912.0f

#define SELECT(mask, yes, no)                                                  \
    ((vf)(((mask) & (vi)(yes)) | (~(mask) & (vi)(no))))

/* log2 of positive normal numbers: exponent, and an odd series in
 * (m - 1) / (m + 1) for m in [sqrt(1/2), sqrt(2)). */
INLINE void log2_v(vf *out, const vf *in)
{
    vi bits = (vi)*in, shifted = bits - 0x3f3504f3;
    vi exponent = shifted >> 23;
    vf m = (vf)(bits - (exponent << 23));
    vf r = (m - 1.0f) / (m + 1.0f), r2 = r * r;
    vf p = r2 * 0.3205989867f + 0.4121984802f;

    p = p * r2 + 0.5770780164f;
    p = p * r2 + 0.9617966939f;
    p = p * r2 + 2.8853900818f;
    *out = __builtin_convertvector(exponent, vf) + p * r;
}

/* exp2 of numbers in -120..120. */
INLINE void exp2_v(vf *out, const vf *in)
{
    vf whole = (*in + ROUNDER) - ROUNDER, f = *in - whole;
    vf p = f * 1.5403530e-4f + 1.3333558e-3f;

    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    *out = (vf)((vi)p + (__builtin_convertvector(whole, vi) << 23));
}

/* |u|^norm; 0 below 2^-24, where it is nothing beside a step of one. */
INLINE void power_v(vf *out, const vf *u, float norm)
{
    vf a = (vf)((vi)*u & 0x7fffffff), l, p;
    vi tiny = a < 0x1p-24f;

    a = SELECT(tiny, a * 0 + 1.0f, a);
    log2_v(&l, &a);
    l *= norm;
    exp2_v(&p, &l);
    *out = SELECT(tiny, p * 0, p);
}

INLINE double cost(const float *w, const float *c, size_t n, float scale,
                   float lo, float hi, float norm)
{
    vf sum = { 0 }, low = sum + lo, high = sum + hi, part;
    float lane[GRID_LANES];
    double total = 0;

    for (size_t i = 0; i < n; i += GRID_LANES) {
        vf x, q, u, weight;

        memcpy(&x, w + i, sizeof(x));
        x /= scale;
        q = SELECT(x < low, low, x);
        q = SELECT(q > high, high, q);
        q = (q + ROUNDER) - ROUNDER;
        u = x - q;
        if (norm == 2)
            part = u * u;
        else
            power_v(&part, &u, norm);
        if (c) {
            memcpy(&weight, c + i, sizeof(weight));
            part *= weight;
        }
        sum += part;
    }
    memcpy(lane, &sum, sizeof(lane));
    for (int i = 0; i < GRID_LANES; i++)
        total += lane[i];
    return total;
}

/* The branches on norm and c become four loops. */
INLINE double choose(const float *w, const float *c, size_t n, float scale,
                     float lo, float hi, float norm)
{
    if (norm == 2)
        return c ? cost(w, c, n, scale, lo, hi, 2) :
                   cost(w, NULL, n, scale, lo, hi, 2);
    return c ? cost(w, c, n, scale, lo, hi, norm) :
               cost(w, NULL, n, scale, lo, hi, norm);
}

static double cost_plain(const float *w, const float *c, size_t n, float scale,
                         float lo, float hi, float norm)
{
    return choose(w, c, n, scale, lo, hi, norm);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static double
cost_avx2(const float *w, const float *c, size_t n, float scale, float lo,
          float hi, float norm)
{
    return choose(w, c, n, scale, lo, hi, norm);
}

__attribute__((target("avx512f,avx512dq"))) static double
cost_avx512(const float *w, const float *c, size_t n, float scale, float lo,
            float hi, float norm)
{
    return choose(w, c, n, scale, lo, hi, norm);
}
#endif

int grid_cost_all(grid_cost_fn *list[3])
{
    int n = 0;

    list[n++] = cost_plain;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        list[n++] = cost_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        list[n++] = cost_avx512;
#endif
    return n;
}

grid_cost_fn *grid_cost_best(void)
{
    grid_cost_fn *list[3];

    return list[grid_cost_all(list) - 1];
}
