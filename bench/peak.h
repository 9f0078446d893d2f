/* peak.h - what the machine's multiply-adds reach at a level of CPU, all threads
 * at once.  Benchmarks of matrix arithmetic are held against it. */
#ifndef FORGE_PEAK_H
#define FORGE_PEAK_H

#include <time.h>

#include "common/math/bf16_kernel.h"
#include "common/math/cpu.h"
#include "common/math/threads.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum {
    PEAK_ROUNDS = 5000000,
    PEAK_PARTS =
        16 /* for each thread: who is slowed down leaves some to others,
                     * as with the tiles of a product */
};

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

#ifdef __x86_64__
/* One instruction makes 16 x 16 sums of 32 products: of numbers as products have,
 * since the unit is up to 2.4 times faster where all are zero.  loads: with those of
 * its operands from the first-level cache, one for each, as 2 x 2 tiles need. */
__attribute__((target("amx-tile,amx-bf16"))) static inline void
peak_amx(bool loads)
{
    uint16_t x[16 * 32] __attribute__((aligned(64)));

    for (int i = 0; i < 16 * 32; i++) /* -2 to -1 and 1 to 2 */
        x[i] = (uint16_t)(0x3f80 + (i * 40503u >> 5 & 0x7f) + (i % 3 << 15));
    bf16_kernel_begin();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, x, 64);
    _tile_loadd(5, x, 64);
    _tile_loadd(6, x, 64);
    _tile_loadd(7, x, 64);
    for (long r = 0; r < PEAK_ROUNDS / 10 / 4; r++) {
        if (loads) {
            _tile_loadd(4, x, 64);
            _tile_loadd(5, x, 64);
            _tile_loadd(6, x, 64);
            _tile_loadd(7, x, 64);
        }
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    bf16_kernel_end();
}
#endif

typedef float peak_four __attribute__((vector_size(16)));

/* Without fused multiply-adds: a product and a sum; ten chains.  Those of GCC
 * for four floats are what plain kernels are made of. */
static inline void peak_plain(void)
{
    peak_four a[10], x = { 0.999999f, 0.999999f, 0.999999f, 0.999999f };
    peak_four y = x * 1e-6f;

    for (int i = 0; i < 10; i++)
        a[i] = x * (float)i;
    for (long r = 0; r < PEAK_ROUNDS / 10; r++) {
        a[0] = a[0] * x + y, a[1] = a[1] * x + y;
        a[2] = a[2] * x + y, a[3] = a[3] * x + y;
        a[4] = a[4] * x + y, a[5] = a[5] * x + y;
        a[6] = a[6] * x + y, a[7] = a[7] * x + y;
        a[8] = a[8] * x + y, a[9] = a[9] * x + y;
    }
    for (int i = 0; i < 10; i++)
        __asm__ volatile("" : : "m"(a[i]));
}

struct peak {
    enum cpu_level level;
    bool loads; /* of amx */
};

/* PEAK_ROUNDS instructions of a level (amx: a tenth). */
static inline void peak_part(void *ctx, size_t begin, size_t end)
{
    const struct peak *p = (const struct peak *)ctx;

    for (size_t i = begin; i < end; i++)
        switch (p->level) {
#ifdef __x86_64__
        case CPU_AVX2: peak_avx2(); break;
        case CPU_AVX512: peak_avx512(); break;
        case CPU_AVX512BF16: peak_bf16(); break;
        case CPU_AMX: peak_amx(p->loads); break;
#endif
        default: peak_plain(); break;
        }
}

/* FLOP/s of all threads, once, with the multiply-adds of a level: of f32, from
 * avx512bf16 on of bf16. */
static inline double peak_run(struct peak p)
{
    static const double flop[CPU_LEVELS] = { 8, 16, 32, 64, 16 * 16 * 64 / 10.0,
                                             8, 8 };
    size_t n = (size_t)threads_count() * PEAK_PARTS;
    double t = seconds();

    threads_for(n, 1, peak_part, &p);
    return (double)n * PEAK_ROUNDS * flop[p.level] / (seconds() - t);
}

static inline double peak_once(enum cpu_level level)
{
    return peak_run((struct peak){ level, false });
}

/* The best of some rounds. */
static inline double peak_rate(enum cpu_level level)
{
    double best = 0;

    for (int i = 0; i < 3; i++) {
        double rate = peak_once(level);

        best = rate > best ? rate : best;
    }
    return best;
}

/* The level whose multiply-adds are the peak of a level: f32's where a CPU's
 * products of pairs are slow. */
static inline enum cpu_level peak_level(enum cpu_level level)
{
    return level == CPU_AVX512BF16 &&
                   peak_rate(CPU_AVX512) > peak_rate(CPU_AVX512BF16) ?
               CPU_AVX512 :
               level;
}

static inline double peak_of(enum cpu_level level)
{
    return peak_rate(peak_level(level));
}

static inline double peak_f32(void)
{
    return peak_rate(cpu_level() > CPU_AVX512 ? CPU_AVX512 : cpu_level());
}

/* Of products of bf16 with sums in f32. */
static inline double peak_pairs(void)
{
    return peak_of(cpu_level());
}

#endif
