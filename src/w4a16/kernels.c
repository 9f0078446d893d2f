/* kernels.c - see kernels.h: the choice of kernels; plain and neon, on vectors
 * of four floats. */
#include "common/math/lanes.h"
#include "w4a16/kernels.h"

#include <string.h>

#include "common/math/bf16_kernel.h"
#include "common/math/cpu.h"

#ifdef __aarch64__
#include <arm_neon.h>
#define NAME(x) neon_##x
#else
#define NAME(x) plain_##x
#endif
#define W 4
#define TARGET
#define V_SET(x)   ((NAME(vf)){ (x), (x), (x), (x) })
#define V_WORDS(u) ((u) ^ 0x88888888u)
#define V_CODES(u, j)                                                          \
    __builtin_convertvector((NAME(vi))((u) << (28 - 4 * (j))) >> 28, NAME(vf))
#define V_LANES(u) V_CODES((u) ^ 8, 0)
#ifdef __aarch64__
#define V_HALF(x) ((NAME(vf))vcvt_f32_f16((float16x4_t)(x)))
#else
#define V_HALF(x)                                                              \
    ((NAME(vf)){ f32_from_f16((x)[0]), f32_from_f16((x)[1]),                   \
                 f32_from_f16((x)[2]), f32_from_f16((x)[3]) })
#endif
#define V_GATHER(p, at)                                                        \
    ((NAME(vf)){ (p)[(at)[0]], (p)[(at)[1]], (p)[(at)[2]], (p)[(at)[3]] })
#define V_TILE 1
#include "w4a16/kernels.inc"

static const struct w4_kernels kernels_four = { NAME(few), NAME(values),
                                                false };

enum { WIDE = 4096 }; /* outputs of a tile, from which rows are taken whole */

static _Atomic enum w4_awq forced = W4_AWQ_BY_CPU;
static _Atomic int forced_near = -1;

void w4_awq_set(enum w4_awq order)
{
    forced = order;
}

void w4_near_set(int near)
{
    forced_near = near;
}

bool w4_near(void)
{
    return forced_near < 0 ? cpu_is_intel() : forced_near;
}

/* Measured: Zen 4 reads rows of narrow tiles faster, Xeons do not (DESIGN). */
enum w4_awq w4_awq(int digits, int64_t n)
{
    enum w4_awq order = forced;

    if (order == W4_AWQ_BY_CPU)
        order = !cpu_is_intel() ? W4_AWQ_ROWS :
                n >= WIDE       ? W4_AWQ_ALONG :
                                  W4_AWQ_COLUMNS;
    if (order == W4_AWQ_ALONG && !w4_kernels()->quads)
        order = W4_AWQ_ROWS;
    return digits == 2 ? order : W4_AWQ_COLUMNS;
}

const struct w4_kernels *w4_kernels(void)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512BF16) && cpu_uses_vnni() && !bf16_kernel()->widens)
        return &w4_kernels_avx512[2];
    if (cpu_uses(CPU_AVX512))
        return &w4_kernels_avx512[cpu_uses_vnni()];
    if (cpu_uses(CPU_AVX2))
        return &w4_kernels_avx2[cpu_uses_vnni()];
#endif
    return &kernels_four;
}
