/* grid_cost.c - see grid_cost.h.
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

#define INLINE static inline __attribute__((always_inline))
/* x + ROUNDER - ROUNDER (1.5 * 2^23) rounds half to even, as rint() does. */
#define ROUNDER 12582912.0f

#define W       4
#define NAME(x) x##_plain
#define TARGET
#include "gptq/grid/grid_cost.inc"

#ifdef __x86_64__
#define W       8
#define NAME(x) x##_avx2
#define TARGET  __attribute__((target("avx2,fma")))
#define V_FMA(a, b, c)                                                         \
    ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define V_FNMA(a, b, c)                                                        \
    ((vf)_mm256_fnmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define V_MAX(a, b) ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define V_MIN(a, b) ((vf)_mm256_min_ps((__m256)(a), (__m256)(b)))
#include "gptq/grid/grid_cost.inc"

#define W       16
#define NAME(x) x##_avx512
#define TARGET  __attribute__((target("avx512f,avx512dq")))
#define V_FMA(a, b, c)                                                         \
    ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define V_FNMA(a, b, c)                                                        \
    ((vf)_mm512_fnmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define V_MAX(a, b) ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define V_MIN(a, b) ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#include "gptq/grid/grid_cost.inc"
#endif

/* The variant of the CPU level in use, of a function above. */
#ifdef __x86_64__
#define BEST(x)                                                                \
    (cpu_uses(CPU_AVX512) ? x##_avx512 :                                       \
     cpu_uses(CPU_AVX2)   ? x##_avx2 :                                         \
                            x##_plain)
#else
#define BEST(x) x##_plain
#endif

grid_cost_fn *grid_cost_best(void)
{
    return BEST(cost);
}

grid_cost_fn *grid_cost_tame(void)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return tame_avx512;
    if (cpu_uses(CPU_AVX2))
        return tame_avx2;
#endif
    return grid_cost_best();
}

struct grid_range grid_range(const float *w, size_t n)
{
    return BEST(range)(w, n);
}

double grid_outside(const float *w, const float *c, size_t n, float lo,
                    float hi)
{
    return BEST(outside)(w, c, n, lo, hi);
}
