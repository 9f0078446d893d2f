/* refine_kernel.c - see refine_kernel.h. */
#include "gptq/solve/refine_kernel.h"

#include <string.h>

#include "common/math/cpu.h"
#include "gptq/solve/solve_kernel.h"

#define INLINE static inline __attribute__((always_inline))
/* x + ROUNDER - ROUNDER rounds x to an integer, half to even (1.5 * 2^23) */
#define ROUNDER 12582912.0f

enum { COLS = FACTOR_PANEL, ROWS = SOLVE_ROWS };

#define W       4
#define NAME(x) x##_plain
#define TARGET
#include "gptq/solve/refine_kernel.inc"

#ifdef __x86_64__
#define W       8
#define NAME(x) x##_avx2
#define TARGET  __attribute__((target("avx2")))
#include "gptq/solve/refine_kernel.inc"

#define W       16
#define NAME(x) x##_avx512
#define TARGET  __attribute__((target("avx512f,avx512dq,avx512bw")))
#include "gptq/solve/refine_kernel.inc"
#endif

refine_fn *refine_kernel_best(void)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return refine_avx512;
    if (cpu_uses(CPU_AVX2))
        return refine_avx2;
#endif
    return refine_plain;
}
