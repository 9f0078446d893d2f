/* peak.h - what the machine's multiply-adds reach, all threads at once: of f32,
 * and of pairs of bf16.  Benchmarks of matrix arithmetic are held against it. */
#ifndef FORGE_PEAK_H
#define FORGE_PEAK_H

#include <time.h>

#include "common/threads.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { PEAK_ROUNDS = 40000000 };

static inline double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#ifdef __x86_64__
/* Ten chains hide the latency; the asm keeps them in registers. */
#define PEAK_LOOP(type, set, fma)                                              \
    type a[10], x = set(0.999999f), y = set(1e-6f);                            \
                                                                               \
    for (int i = 0; i < 10; i++)                                               \
        a[i] = set((float)i);                                                  \
    for (long r = 0; r < PEAK_ROUNDS / 10; r++) {                              \
        a[0] = fma(a[0], x, y), a[1] = fma(a[1], x, y);                        \
        a[2] = fma(a[2], x, y), a[3] = fma(a[3], x, y);                        \
        a[4] = fma(a[4], x, y), a[5] = fma(a[5], x, y);                        \
        a[6] = fma(a[6], x, y), a[7] = fma(a[7], x, y);                        \
        a[8] = fma(a[8], x, y), a[9] = fma(a[9], x, y);                        \
    }                                                                          \
    for (int i = 0; i < 10; i++)                                               \
    __asm__ volatile("" : : "x"(a[i]))

__attribute__((target("avx512f"))) static inline void peak_avx512(void)
{
    PEAK_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps);
}

/* Its latency is longer. */
__attribute__((target("avx512f,avx512bf16"))) static inline void peak_bf16(void)
{
    enum { CHAINS = 20 };
    __m512bh one = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    __m512 a[CHAINS];

#pragma GCC unroll 20
    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (long r = 0; r < PEAK_ROUNDS / CHAINS; r++)
#pragma GCC unroll 20
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm512_dpbf16_ps(a[i], one, one);
#pragma GCC unroll 20
    for (int i = 0; i < CHAINS; i++)
        __asm__ volatile("" : : "x"(a[i]));
}

__attribute__((target("avx2,fma"))) static inline void peak_avx2(void)
{
    PEAK_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps);
}
#endif

enum peak { PEAK_NONE, PEAK_AVX2, PEAK_AVX512, PEAK_BF16 };

static inline void peak_part(void *kind, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
#ifdef __x86_64__
        if (*(enum peak *)kind == PEAK_BF16)
            peak_bf16();
        else if (*(enum peak *)kind == PEAK_AVX512)
            peak_avx512();
        else
            peak_avx2();
#endif
    }
}

/* The best of some rounds; `each` operations an instruction. */
static inline double peak_of(enum peak kind, double each)
{
    double best = 0;

    for (int i = 0; i < 3 && kind != PEAK_NONE; i++) {
        size_t n = (size_t)threads_count() * 2;
        double t = seconds(), rate;

        threads_for(n, 1, peak_part, &kind);
        rate = (double)n * PEAK_ROUNDS * each / (seconds() - t);
        best = rate > best ? rate : best;
    }
    return best;
}

/* FLOP/s of all threads; 0 where it cannot be measured. */
static inline double peak_f32(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return peak_of(PEAK_AVX512, 32);
    if (__builtin_cpu_supports("fma"))
        return peak_of(PEAK_AVX2, 16);
#endif
    return peak_of(PEAK_NONE, 0);
}

/* The same of products of bf16 with sums in f32. */
static inline double peak_pairs(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16"))
        return peak_of(PEAK_BF16, 64);
#endif
    return peak_of(PEAK_NONE, 0);
}

#endif
