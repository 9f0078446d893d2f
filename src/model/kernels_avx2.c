/* kernels_avx2.c - kernels for x86-64 with AVX2 and FMA. */
#include "model/kernels.h"
#include "model/kernels_list.h"

#ifdef __x86_64__
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))),              \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define W  8
#define NV 2
#define V_FMA(a, b, c)                                                         \
    ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define V_MAX(a, b) ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define V_MIN(a, b) ((vf)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define V_WIDEN(a)  ((vu)_mm256_cvtepu16_epi32((__m128i)(a)))
#define KERNELS     kernels_avx2
#define NAME        "avx2"

#include "model/kernels.inc"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
