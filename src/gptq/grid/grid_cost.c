/* grid_cost.c - see grid_cost.h.
 *
 * Written in vectors of sixteen floats, which the compiler maps to one AVX-512,
 * two AVX or four SSE registers.  Each operation is an IEEE one, in the same
 * order, without contraction, so all variants give the same bits.
 *
 * Division of tame numbers: multiply by the reciprocal of the scale, rounded to
 * nearest, then two corrections by exact remainders.  By Markstein's theorem
 * this is the correctly rounded quotient, in a third of a division's time.
 *
 * |u|^norm is exp2(norm * log2|u|) by polynomials, with a relative error below
 * 2e-6, far below the differences between candidates. */
#include "gptq/grid/grid_cost.h"

#include <stdint.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/lanes.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));

#define INLINE static inline __attribute__((always_inline))
/* x + ROUNDER - ROUNDER (1.5 * 2^23) rounds half to even, as rint() does. */
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

/* |u|^norm; 0 for |u| < 2^-24, which is negligible beside a step of 1. */
INLINE void power_v(vf *out, const vf *u, float norm)
{
    vf a = (vf)((vi)*u & 0x7fffffff), l, p;
    vi tiny = a < 0x1p-24f;

    a = SELECT(tiny, a * 0 + 1.0f, a);
    log2_v(&l, &a);
    l *= norm; /* clamped below, for weights that no scale reaches */
    l = SELECT(l > 120.0f, (vf){ 0 } + 120.0f, l);
    exp2_v(&p, &l);
    *out = SELECT(tiny, p * 0, p);
}

/* Operands of mapping weights to a grid. */
struct place {
    float scale, inverse; /* its reciprocal */
    vf low, high;
};

/* *x /= scale; *q = *x clamped to low..high. */
typedef void place_fn(vf *x, vf *q, const struct place *to);

INLINE void place_exactly(vf *x, vf *q, const struct place *to)
{
    *x /= to->scale;
    *q = SELECT(*x < to->low, to->low, *x);
    *q = SELECT(*q > to->high, to->high, *q);
}

/* lane[GRID_LANES] = partial sums of the cost of grid k of the batch. */
INLINE void sums(const float *w, const float *c, size_t n,
                 const struct grid_batch *b, int k, float norm, place_fn *place,
                 float *lane)
{
    vf sum = { 0 }, part;
    struct place to = { .scale = b->scale[k],
                        .inverse = 1 / b->scale[k],
                        .low = sum + b->lo[k],
                        .high = sum + b->hi[k] };

    for (size_t i = 0; i < n; i += GRID_LANES) {
        vf x, q, u, weight;

        memcpy(&x, w + i, sizeof(x));
        place(&x, &q, &to);
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
    memcpy(lane, &sum, sizeof(sum));
}

/* Add up the lanes one by one, for all grids at once. */
INLINE void cost(const float *w, const float *c, size_t n,
                 const struct grid_batch *b, float norm, place_fn *place,
                 lanes_transpose_fn *transpose, double *out)
{
    typedef double vd __attribute__((vector_size(64)));
    typedef float half __attribute__((vector_size(32)));
    float lane[GRID_BATCH][GRID_LANES], part[GRID_LANES][GRID_BATCH];
    float *from[GRID_BATCH], *to[GRID_LANES];
    vd low = { 0 }, high = { 0 };
    double total[GRID_BATCH];

    for (int k = 0; k < b->n; k++)
        sums(w, c, n, b, k, norm, place, lane[k]);
    for (int i = 0; i < GRID_BATCH; i++) {
        from[i] = lane[i < b->n ? i : 0];
        to[i] = part[i];
    }
    transpose(to, (const float *const *)from);
#pragma GCC unroll 16
    for (int i = 0; i < GRID_LANES; i++) {
        half x[2];

        memcpy(x, part[i], sizeof(x));
        low += __builtin_convertvector(x[0], vd);
        high += __builtin_convertvector(x[1], vd);
    }
    memcpy(total, &low, sizeof(low));
    memcpy(total + GRID_BATCH / 2, &high, sizeof(high));
    memcpy(out, total, (size_t)b->n * sizeof(*out));
}

/* Constant propagation of norm == 2 and c == NULL makes four loops of this. */
INLINE void choose(const float *w, const float *c, size_t n,
                   const struct grid_batch *b, float norm, place_fn *place,
                   lanes_transpose_fn *transpose, double *out)
{
    if (norm == 2 && c)
        cost(w, c, n, b, 2, place, transpose, out);
    else if (norm == 2)
        cost(w, NULL, n, b, 2, place, transpose, out);
    else if (c)
        cost(w, c, n, b, norm, place, transpose, out);
    else
        cost(w, NULL, n, b, norm, place, transpose, out);
}

static void cost_plain(const float *w, const float *c, size_t n,
                       const struct grid_batch *b, float norm, double *out)
{
    choose(w, c, n, b, norm, place_exactly, lanes_transpose_plain, out);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void
cost_avx2(const float *w, const float *c, size_t n, const struct grid_batch *b,
          float norm, double *out)
{
    choose(w, c, n, b, norm, place_exactly, lanes_transpose_best(), out);
}

#define AVX512 __attribute__((target("avx512f,avx512dq")))

AVX512 static void cost_avx512(const float *w, const float *c, size_t n,
                               const struct grid_batch *b, float norm,
                               double *out)
{
    choose(w, c, n, b, norm, place_exactly, lanes_transpose_best(), out);
}

AVX512 INLINE void place_tame(vf *x, vf *q, const struct place *to)
{
    __m512 a = (__m512)*x, s = _mm512_set1_ps(to->scale);
    __m512 y = _mm512_set1_ps(to->inverse), r = _mm512_mul_ps(a, y);

    r = _mm512_fmadd_ps(_mm512_fnmadd_ps(r, s, a), y, r);
    r = _mm512_fmadd_ps(_mm512_fnmadd_ps(r, s, a), y, r);
    *x = (vf)r;
    r = _mm512_max_ps((__m512)to->low, r);
    *q = (vf)_mm512_min_ps((__m512)to->high, r);
}

AVX512 static void cost_tame(const float *w, const float *c, size_t n,
                             const struct grid_batch *b, float norm,
                             double *out)
{
    bool tame = true;

    for (int k = 0; k < b->n; k++)
        tame &= b->scale[k] > 0x1p-40f && b->scale[k] < 0x1p40f;
    if (tame)
        choose(w, c, n, b, norm, place_tame, lanes_transpose_best(), out);
    else
        choose(w, c, n, b, norm, place_exactly, lanes_transpose_best(), out);
}
#endif

grid_cost_fn *grid_cost_best(void)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return cost_avx512;
    if (cpu_uses(CPU_AVX2))
        return cost_avx2;
#endif
    return cost_plain;
}

grid_cost_fn *grid_cost_tame(void)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return cost_tame;
#endif
    return grid_cost_best();
}

/* Per lane: min(w, 0), max(w, 0); the sign bit of `odd` is set if a weight is
 * not tame. (Magnitudes are compared by integer subtraction: the compiler turns
 * combined vector masks into sixteen scalar comparisons.) */
INLINE void extremes(const float *w, size_t n, vf *lo, vf *hi, vi *odd)
{
    enum { LEAST = (127 - 60) << 23, GREATEST = (127 + 60) << 23 };

    *lo = *hi = (vf){ 0 };
    *odd = (vi){ 0 };
    for (size_t i = 0; i < n; i += GRID_LANES) {
        vf x;
        vi a;

        memcpy(&x, w + i, sizeof(x));
        a = (vi)x & 0x7fffffff;
        *lo = SELECT(x < *lo, x, *lo);
        *hi = SELECT(x > *hi, x, *hi);
        *odd |= (GREATEST - a) | (((a - 1) & 0x7fffffff) - (LEAST - 1));
    }
}

INLINE double outside(const float *w, const float *c, size_t n, float lo,
                      float hi)
{
    vf sum = { 0 }, low = sum + lo, high = sum + hi;
    double total = 0;

    for (size_t i = 0; i < n; i += GRID_LANES) {
        vf x, r, weight = sum * 0 + 1.0f;

        memcpy(&x, w + i, sizeof(x));
        if (c)
            memcpy(&weight, c + i, sizeof(weight));
        r = SELECT(x < low, low, x);
        r = x - SELECT(r > high, high, r);
        sum += r * r * weight;
    }
    for (int i = 0; i < GRID_LANES; i++)
        total += sum[i];
    return total;
}

#ifdef __x86_64__
AVX512 static struct grid_range range_avx512(const float *w, size_t n)
{
    struct grid_range r;
    vf lo, hi;
    vi odd;

    extremes(w, n, &lo, &hi, &odd);
    r.lo = _mm512_reduce_min_ps((__m512)lo);
    r.hi = _mm512_reduce_max_ps((__m512)hi);
    r.tame = !_mm512_movepi32_mask((__m512i)odd);
    return r;
}

AVX512 static double outside_avx512(const float *w, const float *c, size_t n,
                                    float lo, float hi)
{
    return outside(w, c, n, lo, hi);
}
#endif

double grid_outside(const float *w, const float *c, size_t n, float lo,
                    float hi)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return outside_avx512(w, c, n, lo, hi);
#endif
    return outside(w, c, n, lo, hi);
}

struct grid_range grid_range(const float *w, size_t n)
{
    struct grid_range r = { .tame = true };
    vf lo, hi;
    vi odd;

#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return range_avx512(w, n);
#endif
    extremes(w, n, &lo, &hi, &odd);
    for (int i = 0; i < GRID_LANES; i++) {
        r.lo = lo[i] < r.lo ? lo[i] : r.lo;
        r.hi = hi[i] > r.hi ? hi[i] : r.hi;
        r.tame &= odd[i] >= 0;
    }
    return r;
}
