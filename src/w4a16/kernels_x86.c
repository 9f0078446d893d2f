/* kernels_x86.c - see kernels.h: AVX2 and AVX-512. */
#include "w4a16/kernels.h"

#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

#define V_REGISTER "x"
#define NAME(x)    avx2_##x
#define W          8
#define TARGET     __attribute__((target("avx2,fma")))
#define V_FMA(a, b, c)                                                         \
    ((avx2_vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define S_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define V_SET(x)       ((avx2_vf)_mm256_set1_ps(x))
/* flipping bit 3 makes code - 8 a 4-bit two's complement number */
#define V_WORDS(u) ((u) ^ 0x88888888u)
#define V_CODES(u, j)                                                          \
    __builtin_convertvector((avx2_vi)((u) << (28 - 4 * (j))) >> 28, avx2_vf)
#define V_LANES(u) V_CODES((u) ^ 8, 0)
#define V_GATHER(p, at)                                                        \
    ((avx2_vf)_mm256_i32gather_ps(                                             \
        p, _mm256_loadu_si256((const __m256i *)(const void *)(at)), 4))
#include "w4a16/kernels.inc"
#undef NAME
#undef W
#undef TARGET
#undef V_FMA
#undef V_SET
#undef V_WORDS
#undef V_CODES
#undef V_LANES
#undef V_GATHER
#undef V_REGISTER

/* vpermps with the low four bits of each lane as index: a table of code - 8. */
#define V_REGISTER "v"
#define NAME(x)    avx512_##x
#define W          16
#define TARGET     __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define V_FMA(a, b, c)                                                         \
    ((avx512_vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define V_SET(x)   ((avx512_vf)_mm512_set1_ps(x))
#define V_WORDS(u) (u)
#define V_LANES(u)                                                             \
    ((avx512_vf)_mm512_permutexvar_ps(                                         \
        (__m512i)(u), _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2,  \
                                     3, 4, 5, 6, 7)))
#define V_CODES(u, j) V_LANES((u) >> (4 * (j)))
#define V_GATHER(p, at)                                                        \
    ((avx512_vf)_mm512_permutexvar_ps(_mm512_loadu_si512(at),                  \
                                      _mm512_loadu_ps(p)))
#include "w4a16/kernels.inc"

const struct w4_kernels w4_kernels_avx2 = { avx2_few, avx2_values };
const struct w4_kernels w4_kernels_avx512 = { avx512_few, avx512_values };
#endif
