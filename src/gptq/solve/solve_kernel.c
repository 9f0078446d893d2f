/* solve_kernel.c - see solve_kernel.h.
 *
 * product on AVX-512: 48 rows x 8 columns in 24 accumulators of 16 floats.  Per
 * element of the factor: one broadcast and three fused multiply-adds; per eight
 * elements (one t): three loads of d.  So 24 of 35 instructions are arithmetic.
 * AVX2 has half the registers and takes 24 rows x 4 columns at a time; NEON
 * 12 x 8. */
#include "gptq/solve/solve_kernel.h"

#include <stdbool.h>
#include <string.h>

#include "common/math/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
/* x + ROUNDER - ROUNDER rounds x to an integer, half to even (1.5 * 2^23) */
#define ROUNDER 12582912.0f

enum { COLS = FACTOR_PANEL, ROWS = SOLVE_ROWS, NEAR = 24 };

/* ---- plain ---- */

#define W               4
#define NV              2
#define V_ADD(a, b, c)  ((c) + (a) * (b))
#define V_TAKE(a, b, c) ((c) - (a) * (b))
#define NAME(x)         x##_plain
#define TARGET
#include "gptq/solve/solve_kernel.inc"

static const struct solve_kernels plain = { product_plain, panel_plain,
                                            nearest_plain, subtract_plain,
                                            divide_plain,  back_plain };

#if defined(__x86_64__)
#define AVX2   __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw")))

#define W  8
#define NV 3
#define V_ADD(a, b, c)                                                         \
    ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define V_TAKE(a, b, c)                                                        \
    ((vf)_mm256_fnmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define NAME(x) x##_avx2
#define TARGET  AVX2
#include "gptq/solve/solve_kernel.inc"

static const struct solve_kernels avx2 = { product_avx2, panel_avx2,
                                           nearest_avx2, subtract_avx2,
                                           divide_avx2,  back_avx2 };

#define W       16
#define NAME(x) x##_avx512
#define TARGET  AVX512
#include "gptq/solve/solve_kernel.inc"

/* 24 named accumulators: the compiler would keep an array in memory. */
#define EACH_COLUMN(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7)
#define LOAD(c)                                                                \
    __m512 a##c = _mm512_loadu_ps(acc + c * ROWS);                             \
    __m512 b##c = _mm512_loadu_ps(acc + c * ROWS + 16);                        \
    __m512 e##c = _mm512_loadu_ps(acc + c * ROWS + 32);
/* Software prefetch: neither operand fits the first-level cache. */
#define AHEAD(d, l, ld)                                                        \
    __builtin_prefetch((d) + NEAR * ROWS);                                     \
    __builtin_prefetch((d) + NEAR * ROWS + 16);                                \
    __builtin_prefetch((d) + NEAR * ROWS + 32);                                \
    __builtin_prefetch((l) + 2 * NEAR * (ld));
#define STEP(c)                                                                \
    x = _mm512_set1_ps(l[c]);                                                  \
    a##c = _mm512_fmadd_ps(u, x, a##c);                                        \
    b##c = _mm512_fmadd_ps(v, x, b##c);                                        \
    e##c = _mm512_fmadd_ps(w, x, e##c);
#define STEP_BACK(c)                                                           \
    x = _mm512_set1_ps(l[c]);                                                  \
    a##c = _mm512_fnmadd_ps(u, x, a##c);                                       \
    b##c = _mm512_fnmadd_ps(v, x, b##c);                                       \
    e##c = _mm512_fnmadd_ps(w, x, e##c);
#define STORE(c)                                                               \
    _mm512_storeu_ps(acc + c * ROWS, a##c);                                    \
    _mm512_storeu_ps(acc + c * ROWS + 16, b##c);                               \
    _mm512_storeu_ps(acc + c * ROWS + 32, e##c);

AVX512 static void product_avx512(float *acc, const float *d, const float *l,
                                  size_t n)
{
    EACH_COLUMN(LOAD)
    for (size_t k = 0; k < n; k++, d += ROWS, l += COLS) {
        __m512 u = _mm512_loadu_ps(d), v = _mm512_loadu_ps(d + 16);
        __m512 w = _mm512_loadu_ps(d + 32), x;

        AHEAD(d, l, COLS)
        EACH_COLUMN(STEP)
    }
    EACH_COLUMN(STORE)
}

AVX512 static void subtract_avx512(float *acc, const float *d, const float *l,
                                   size_t n, size_t ld)
{
    EACH_COLUMN(LOAD)
    for (size_t k = 0; k < n; k++, d += ROWS, l += ld) {
        __m512 u = _mm512_loadu_ps(d), v = _mm512_loadu_ps(d + 16);
        __m512 w = _mm512_loadu_ps(d + 32), x;

        AHEAD(d, l, ld)
        EACH_COLUMN(STEP_BACK)
    }
    EACH_COLUMN(STORE)
}

static const struct solve_kernels avx512 = { product_avx512, panel_avx512,
                                             nearest_avx512, subtract_avx512,
                                             divide_avx512,  back_avx512 };
#elif defined(__aarch64__)
#define EACH_COLUMN(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7)
#define LOAD(c)                                                                \
    float32x4_t a##c = vld1q_f32(acc + c * ROWS);                              \
    float32x4_t b##c = vld1q_f32(acc + c * ROWS + 4);                          \
    float32x4_t e##c = vld1q_f32(acc + c * ROWS + 8);
#define STEP(c)                                                                \
    a##c = vfmaq_laneq_f32(a##c, u, c < 4 ? x : y, c % 4);                     \
    b##c = vfmaq_laneq_f32(b##c, v, c < 4 ? x : y, c % 4);                     \
    e##c = vfmaq_laneq_f32(e##c, w, c < 4 ? x : y, c % 4);
#define STEP_BACK(c)                                                           \
    a##c = vfmsq_laneq_f32(a##c, u, c < 4 ? x : y, c % 4);                     \
    b##c = vfmsq_laneq_f32(b##c, v, c < 4 ? x : y, c % 4);                     \
    e##c = vfmsq_laneq_f32(e##c, w, c < 4 ? x : y, c % 4);
#define STORE(c)                                                               \
    vst1q_f32(acc + c * ROWS, a##c);                                           \
    vst1q_f32(acc + c * ROWS + 4, b##c);                                       \
    vst1q_f32(acc + c * ROWS + 8, e##c);
#define MULTIPLY(STEP)                                                         \
    for (int r = 0; r < ROWS; r += 12, acc += 12, d += 12) {                   \
        EACH_COLUMN(LOAD)                                                      \
        for (size_t k = 0; k < n; k++) {                                       \
            const float *from = d + k * ROWS;                                  \
            float32x4_t u = vld1q_f32(from), v = vld1q_f32(from + 4);          \
            float32x4_t w = vld1q_f32(from + 8);                               \
            float32x4_t x = vld1q_f32(l + k * ld);                             \
            float32x4_t y = vld1q_f32(l + k * ld + 4);                         \
                                                                               \
            EACH_COLUMN(STEP)                                                  \
        }                                                                      \
        EACH_COLUMN(STORE)                                                     \
    }

static void product_neon(float *acc, const float *d, const float *l, size_t n)
{
    const size_t ld = COLS;

    MULTIPLY(STEP)
}

static void subtract_neon(float *acc, const float *d, const float *l, size_t n,
                          size_t ld)
{
    MULTIPLY(STEP_BACK)
}

/* Compiled for aarch64 the plain functions are NEON code. */
static const struct solve_kernels neon = { product_neon,  panel_plain,
                                           nearest_plain, subtract_neon,
                                           divide_plain,  back_plain };
#endif

const struct solve_kernels *solve_kernels_best(void)
{
#if defined(__x86_64__)
    if (cpu_uses(CPU_AVX512))
        return &avx512;
    if (cpu_uses(CPU_AVX2))
        return &avx2;
#elif defined(__aarch64__)
    if (cpu_uses(CPU_NEON))
        return &neon;
#endif
    return &plain;
}
