/* bf16_kernel.c - see bf16_kernel.h: the choice of the kernel, and the kernels
 * plain and neon on vectors of four floats. */
#include "common/math/bf16_kernel.h"

#include <string.h>

#include "common/math/bf16_kernel_list.h"
#include "common/math/cpu.h"

#ifdef __aarch64__
#include <arm_neon.h>
#define NAME(x)        neon_##x
#define NV             4
#define V_FMA(a, b, c) vfmaq_f32(c, a, b)
#else
/* The product of two bf16 is exact, so fusing the addition does not change
 * results. */
#define NAME(x)        plain_##x
#define NV             2 /* x86-64 has 16 vector registers */
#define V_FMA(a, b, c) ((a) * (b) + (c))
#endif
#define W        4
#define ROWS     6
#define V_SET(x) ((NAME(vf)){ (x), (x), (x), (x) })
#define TARGET
#include "common/math/bf16_widened.inc"

static const struct bf16_kernel kernel_plain = { 6,   1,   true,     256,
                                                 192, 256, NAME(run) };

const struct bf16_kernel *bf16_kernel(void)
{
#ifdef __x86_64__
    switch (cpu_level()) {
    case CPU_AMX: return &kernel_amx;
    case CPU_AVX512BF16:
        return cpu_slow_pairs() ? &kernel_avx512 : &kernel_avx512bf16;
    case CPU_AVX512: return &kernel_avx512;
    case CPU_AVX2: return &kernel_avx2;
    default: break;
    }
#endif
    return &kernel_plain;
}

void bf16_kernel_begin(void)
{
#ifdef __x86_64__
    if (cpu_level() == CPU_AMX)
        kernel_amx_begin();
#endif
}

void bf16_kernel_end(void)
{
#ifdef __x86_64__
    if (cpu_level() == CPU_AMX)
        kernel_amx_end();
#endif
}
