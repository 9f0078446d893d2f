/* kernels.c - see kernels.h: the choice of kernels. */
#include "model/kernels.h"

#include "common/math/cpu.h"
#include "model/kernels_list.h"

const struct kernels *kernels_best(void)
{
#if defined(__x86_64__)
    if (cpu_uses(CPU_AVX512BF16))
        return &kernels_avx512bf16;
    if (cpu_uses(CPU_AVX512))
        return &kernels_avx512;
    if (cpu_uses(CPU_AVX2))
        return &kernels_avx2;
#elif defined(__aarch64__)
    if (cpu_uses(CPU_NEON))
        return &kernels_neon;
#endif
    return &kernels_plain;
}
