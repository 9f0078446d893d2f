/* kernels_avx512bf16.c - kernels for x86-64 with AVX-512 and its bf16 part. */
#include "model/kernels.h"
#include "model/kernels_list.h"

#ifdef __x86_64__
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(                                                  \
    __attribute__((                                                            \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"))),         \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")
#endif

#define W  16
#define NV 4
#define V_FMA(a, b, c)                                                         \
    ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define V_MAX(a, b) ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define V_MIN(a, b) ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define V_DOT(acc, a, b)                                                       \
    ((vf)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)(a), (__m512bh)(b)))
#define V_BF16(a)     ((vh)_mm512_cvtneps_pbh((__m512)(a)))
#define V_NEAREST(a)  ((vf)_mm512_roundscale_ps((__m512)(a), 0))
#define V_SCALE(a, n) ((vf)_mm512_scalef_ps((__m512)(a), (__m512)(n)))
#define V_WIDEN(a)    ((vu)_mm512_cvtepu16_epi32((__m256i)(a)))
#define KERNELS       kernels_avx512bf16
#define NAME          "avx512bf16"

#include "model/kernels.inc"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
