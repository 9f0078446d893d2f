/* kernels_x86.c - see kernels.h: AVX2 and AVX-512. */
#include "common/math/lanes.h"
#include "w4a16/kernels.h"

#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

static inline int32_t load_four(const int8_t *p)
{
    int32_t x;

    memcpy(&x, p, sizeof(x));
    return x;
}

#define NAME(x)  avx2_##x
#define W        8
#define TARGET   __attribute__((target("avx2,fma,f16c")))
#define V_SET(x) ((NAME(vf))_mm256_set1_ps(x))
/* flipping bit 3 makes code - 8 a 4-bit two's complement number */
#define V_WORDS(u) ((u) ^ 0x88888888u)
#define V_CODES(u, j)                                                          \
    __builtin_convertvector((NAME(vi))((u) << (28 - 4 * (j))) >> 28, NAME(vf))
#define V_LANES(u) V_CODES((u) ^ 8, 0)
#define V_HALF(x)  ((NAME(vf))_mm256_cvtph_ps((__m128i)(x)))
#define V_GATHER(p, at)                                                        \
    ((NAME(vf))_mm256_i32gather_ps(                                            \
        p, _mm256_loadu_si256((const __m256i *)(const void *)(at)), 4))
#define V_TILE 2
#define V_BYTES(u, d)                                                          \
    ((NAME(vh))_mm256_maddubs_epi16((__m256i)(u), (__m256i)(d)))
#define V_PAIRS(h, d) ((NAME(vi))_mm256_madd_epi16((__m256i)(h), (__m256i)(d)))
#define V_LOW8(a, b)                                                           \
    ((NAME(vu))_mm256_unpacklo_epi8((__m256i)(a), (__m256i)(b)))
#define V_HIGH8(a, b)                                                          \
    ((NAME(vu))_mm256_unpackhi_epi8((__m256i)(a), (__m256i)(b)))
#define V_LOW16(a, b)  _mm256_unpacklo_epi16((__m256i)(a), (__m256i)(b))
#define V_HIGH16(a, b) _mm256_unpackhi_epi16((__m256i)(a), (__m256i)(b))
#define V_LOW32(a, b)  _mm256_unpacklo_epi32((__m256i)(a), (__m256i)(b))
#define V_HIGH32(a, b) _mm256_unpackhi_epi32((__m256i)(a), (__m256i)(b))
#define V_BROADCAST(p) ((NAME(vu))_mm256_set1_epi32(load_four(p)))
#include "w4a16/kernels.inc"
#undef NAME
#undef TARGET
#define NAME(x) avx2vnni_##x
#define TARGET  __attribute__((target("avx2,fma,f16c,avxvnni")))
#define V_DOT(a, u, d)                                                         \
    ((NAME(vi))_mm256_dpbusd_avx_epi32((__m256i)(a), (__m256i)(u),             \
                                       (__m256i)(d)))
#include "w4a16/kernels.inc"
#undef V_DOT
#undef NAME
#undef W
#undef TARGET
#undef V_SET
#undef V_WORDS
#undef V_CODES
#undef V_LANES
#undef V_GATHER
#undef V_HALF
#undef V_TILE
#undef V_BYTES
#undef V_PAIRS
#undef V_LOW8
#undef V_HIGH8
#undef V_LOW16
#undef V_HIGH16
#undef V_LOW32
#undef V_HIGH32
#undef V_BROADCAST

/* vpermps with the low four bits of each lane as index: a table of code - 8. */
#define NAME(x)    avx512_##x
#define W          16
#define TARGET     __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define V_SET(x)   ((NAME(vf))_mm512_set1_ps(x))
#define V_WORDS(u) (u)
#define V_LANES(u)                                                             \
    ((NAME(vf))_mm512_permutexvar_ps(                                          \
        (__m512i)(u), _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2,  \
                                     3, 4, 5, 6, 7)))
#define V_CODES(u, j) V_LANES((u) >> (4 * (j)))
#define V_HALF(x)     ((NAME(vf))_mm512_cvtph_ps((__m256i)(x)))
#define V_GATHER(p, at)                                                        \
    ((NAME(vf))_mm512_permutexvar_ps(_mm512_loadu_si512(at),                   \
                                     _mm512_loadu_ps(p)))
#define V_TILE 4
#define V_BYTES(u, d)                                                          \
    ((NAME(vh))_mm512_maddubs_epi16((__m512i)(u), (__m512i)(d)))
#define V_PAIRS(h, d) ((NAME(vi))_mm512_madd_epi16((__m512i)(h), (__m512i)(d)))
#define V_LOW8(a, b)                                                           \
    ((NAME(vu))_mm512_unpacklo_epi8((__m512i)(a), (__m512i)(b)))
#define V_HIGH8(a, b)                                                          \
    ((NAME(vu))_mm512_unpackhi_epi8((__m512i)(a), (__m512i)(b)))
#define V_LOW16(a, b)  _mm512_unpacklo_epi16((__m512i)(a), (__m512i)(b))
#define V_HIGH16(a, b) _mm512_unpackhi_epi16((__m512i)(a), (__m512i)(b))
#define V_LOW32(a, b)  _mm512_unpacklo_epi32((__m512i)(a), (__m512i)(b))
#define V_HIGH32(a, b) _mm512_unpackhi_epi32((__m512i)(a), (__m512i)(b))
#define V_BROADCAST(p) ((NAME(vu))_mm512_set1_epi32(load_four(p)))
#include "w4a16/kernels.inc"
#undef NAME
#undef TARGET
#define NAME(x) avx512vnni_##x
#define TARGET                                                                 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define V_QUADS
#define V_DOT(a, u, d)                                                         \
    ((NAME(vi))_mm512_dpbusd_epi32((__m512i)(a), (__m512i)(u), (__m512i)(d)))
#include "w4a16/kernels.inc"
#undef NAME
#undef TARGET
#define NAME(x) avx512bf16_##x
#define TARGET                                                                 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
/* two rounded vectors, one behind the other, taken in turn */
#define V_NARROW(a, b)                                                         \
    ((NAME(vu))_mm512_permutexvar_epi16(                                       \
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25,   \
                         9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,   \
                         17, 1, 16, 0),                                        \
        (__m512i)_mm512_cvtne2ps_pbh((__m512)(b), (__m512)(a))))
#include "w4a16/kernels.inc"

const struct w4_kernels w4_kernels_avx2[2] = {
    { avx2_few, avx2_values, false }, { avx2vnni_few, avx2_values, false }
};
const struct w4_kernels w4_kernels_avx512[3] = {
    { avx512_few, avx512_values, false },
    { avx512vnni_few, avx512_values, true },
    { avx512vnni_few, avx512bf16_values, true }
};
#endif
