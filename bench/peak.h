/* peak.h - what the machine's f32 multiply-adds reach, all threads at once:
 * the ceiling that benchmarks of matrix arithmetic are held against. */
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

__attribute__((target("avx2,fma"))) static inline void peak_avx2(void)
{
    PEAK_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps);
}
#endif

static inline void peak_part(void *wide, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
#ifdef __x86_64__
        if (*(bool *)wide)
            peak_avx512();
        else
            peak_avx2();
#endif
    }
}

/* FLOP/s of all threads; 0 where it cannot be measured. */
static inline double peak_f32(void)
{
    bool wide = false;
    double best = 0;

#ifdef __x86_64__
    __builtin_cpu_init();
    wide = __builtin_cpu_supports("avx512f");
    if (!wide && !__builtin_cpu_supports("fma"))
        return 0;
    for (int i = 0; i < 3; i++) {
        size_t n = (size_t)threads_count() * 2;
        double t = seconds(), rate;

        threads_for(n, 1, peak_part, &wide);
        rate = (double)n * PEAK_ROUNDS * 2 * (wide ? 16 : 8) / (seconds() - t);
        best = rate > best ? rate : best;
    }
#else
    (void)wide;
#endif
    return best;
}

#endif
