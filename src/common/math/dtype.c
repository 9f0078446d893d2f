/* dtype.c - see dtype.h.  The plain C version of each conversion defines the
 * result; vector versions give the same bits, NaNs included. */
#include "common/math/dtype.h"

#include <math.h>
#include <string.h>

#include "common/math/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static const struct {
    const char *name;
    unsigned char bits;
    bool is_float;
} types[DT_COUNT] = {
    [DT_NONE] = { "?", 0, false },
    [DT_F32] = { "F32", 32, true },
    [DT_F16] = { "F16", 16, true },
    [DT_BF16] = { "BF16", 16, true },
    [DT_F64] = { "F64", 64, true },
    [DT_I8] = { "I8", 8, false },
    [DT_U8] = { "U8", 8, false },
    [DT_I16] = { "I16", 16, false },
    [DT_U16] = { "U16", 16, false },
    [DT_I32] = { "I32", 32, false },
    [DT_U32] = { "U32", 32, false },
    [DT_I64] = { "I64", 64, false },
    [DT_U64] = { "U64", 64, false },
    [DT_BOOL] = { "BOOL", 8, false },
    [DT_F8_E4M3] = { "F8_E4M3", 8, true },
    [DT_F8_E5M2] = { "F8_E5M2", 8, true },
    [DT_F8_E8M0] = { "F8_E8M0", 8, true },
    [DT_U4] = { "U4", 4, false },
    [DT_QMETA4] = { "QMETA4", 32, false },
};

static bool known(enum dtype t)
{
    return (unsigned)t < DT_COUNT;
}

unsigned dtype_bits(enum dtype t)
{
    return known(t) ? types[t].bits : 0;
}

const char *dtype_name(enum dtype t)
{
    return known(t) ? types[t].name : "?";
}

enum dtype dtype_parse(const char *name)
{
    for (int t = DT_NONE + 1; t < DT_COUNT; t++)
        if (!strcmp(name, types[t].name))
            return (enum dtype)t;
    return DT_NONE;
}

bool dtype_is_float(enum dtype t)
{
    return known(t) && types[t].is_float;
}

bool dtype_size(enum dtype t, int ndim, const uint64_t *dims, uint64_t *bytes)
{
    uint64_t n = dtype_bits(t);
    bool empty = false;

    if (!n)
        return false;
    for (int i = 0; i < ndim; i++)
        if (!dims[i])
            empty = true;
    for (int i = 0; i < ndim && !empty; i++)
        if (size_mul(n, dims[i], &n))
            return false;
    if (n % 8)
        return false;
    *bytes = empty ? 0 : n / 8;
    return true;
}

/* ---- single elements ---- */

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

float f32_from_bf16(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

float f32_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, mant = x & 0x3ff;
    uint32_t e = x >> 10 & 31;

    if (e == 31) /* signalling NaN becomes quiet, as with F16C */
        return float_of(sign | 0x7f800000 | mant << 13 |
                        (mant ? 0x00400000 : 0));
    if (e)
        return float_of(sign | (e + 112) << 23 | mant << 13);
    /* subnormal: mant * 2^-24 is exact */
    return float_of(sign | bits_of((float)mant * 0x1p-24f));
}

uint16_t bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Round a float to ebits of exponent and mbits of mantissa, half to even.
 * Overflow gives an exponent of all ones. */
static uint32_t narrow(float x, int ebits, int mbits)
{
    uint32_t u = bits_of(x) & 0x7fffffff;
    int bias = (1 << (ebits - 1)) - 1;
    int e = (int)(u >> 23) - 127 + bias;
    int shift = 23 - mbits;
    uint32_t mant = (u & 0x7fffff) | 0x800000, half, q;

    if (u < 0x00800000 || e < -mbits) /* below half of the smallest subnormal */
        return 0;
    if (e <= 0) {
        shift += 1 - e;
        e = 0;
    } else {
        mant &= 0x7fffff;
    }
    q = mant >> shift;
    half = 1u << (shift - 1);
    mant &= (1u << shift) - 1;
    q += mant > half || (mant == half && (q & 1));
    q += (uint32_t)e << mbits; /* a carry of the mantissa moves into the
                                * exponent */
    return q < (uint32_t)((1 << ebits) - 1) << mbits ?
               q :
               (uint32_t)((1 << ebits) - 1) << mbits;
}

uint16_t f16_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000;

    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    return (uint16_t)(sign | narrow(x, 5, 10));
}

bool f16_holds(float x, uint16_t *h)
{
    *h = f16_from_f32(x);
    return f32_from_f16(*h) == x;
}

float f32_from_f8_e4m3(uint8_t x)
{
    uint32_t sign = (uint32_t)(x & 0x80) << 24, mant = x & 7;
    uint32_t e = x >> 3 & 15;

    if (e == 15 && mant == 7)
        return float_of(sign | 0x7fc00000);
    if (e)
        return float_of(sign | (e + 120) << 23 | mant << 20);
    return float_of(sign | bits_of((float)mant * 0x1p-9f));
}

static float f32_from_f8_e5m2(uint8_t x)
{
    return f32_from_f16((uint16_t)(x << 8));
}

static float f32_from_f8_e8m0(uint8_t x)
{
    return x == 255 ? float_of(0x7fc00000) :
           x        ? float_of((uint32_t)x << 23) :
                      0x1p-127f;
}

/* E4M3FN has no infinity: what rounds beyond 448 becomes NaN, as in PyTorch. */
static uint8_t f8_e4m3_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 24 & 0x80, q;
    int e;

    u &= 0x7fffffff;
    /* 464, half way from 448 to 480, whose code is NaN */
    if (u >= 0x43e80000) {
        if (u == 0x43e80000)
            return (uint8_t)(sign | 0x7e);
        return (uint8_t)(sign | 0x7f);
    }
    e = (int)(u >> 23) - 127;
    if (e < 8)
        return (uint8_t)(sign | narrow(x, 4, 3));
    q = 15 << 3 | (((u & 0x7fffff) + 0x7ffff + (u >> 20 & 1)) >> 20);
    return (uint8_t)(sign | q);
}

static uint8_t f8_e5m2_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 24 & 0x80;

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint8_t)(sign | 0x7f);
    return (uint8_t)(sign | narrow(x, 5, 2));
}

/* The nearest power of two, half up; NaN for numbers that are not positive. */
static uint8_t f8_e8m0_from_f32(float x)
{
    uint32_t u = bits_of(x), e = u >> 23, rest = u & 0x3fffff;

    if (u >> 31 || e == 255)
        return 255;
    if (u & 0x400000 && (rest || e))
        e++;
    return (uint8_t)e;
}

/* ---- rows ---- */

#ifdef __x86_64__
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define AVX2   __attribute__((target("avx2,f16c")))

AVX512 static size_t widen_avx512(float *d, const uint8_t *s, bool half,
                                  size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256i x = _mm256_loadu_si256((const void *)(s + 2 * i));

        _mm512_storeu_ps(d + i, half ? _mm512_cvtph_ps(x) :
                                       _mm512_castsi512_ps(_mm512_slli_epi32(
                                           _mm512_cvtepu16_epi32(x), 16)));
    }
    return i;
}

AVX2 static size_t widen_avx2(float *d, const uint8_t *s, bool half, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m128i x = _mm_loadu_si128((const void *)(s + 2 * i));

        _mm256_storeu_ps(d + i, half ? _mm256_cvtph_ps(x) :
                                       _mm256_castsi256_ps(_mm256_slli_epi32(
                                           _mm256_cvtepu16_epi32(x), 16)));
    }
    return i;
}

AVX512 static size_t narrow_avx512(uint8_t *d, const float *s, bool half,
                                   size_t n)
{
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i bias = _mm512_set1_epi32(0x7fff);
    const __m512i quiet = _mm512_set1_epi32(0x400000);
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m512 x = _mm512_loadu_ps(s + i);
        __m512i u = _mm512_castps_si512(x), r;
        __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

        if (half) {
            _mm256_storeu_si256((void *)(d + 2 * i),
                                _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT |
                                                       _MM_FROUND_NO_EXC));
            continue;
        }
        r = _mm512_and_epi32(_mm512_srli_epi32(u, 16), one);
        r = _mm512_add_epi32(u, _mm512_add_epi32(r, bias));
        r = _mm512_mask_or_epi32(r, nan, u, quiet);
        _mm256_storeu_si256((void *)(d + 2 * i),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
    }
    return i;
}

AVX2 static size_t narrow_avx2(uint8_t *d, const float *s, bool half, size_t n)
{
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i bias = _mm256_set1_epi32(0x7fff);
    const __m256i quiet = _mm256_set1_epi32(0x400000);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(s + i);
        __m256i u = _mm256_castps_si256(x), r, nan;

        if (half) {
            _mm_storeu_si128((void *)(d + 2 * i),
                             _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT |
                                                    _MM_FROUND_NO_EXC));
            continue;
        }
        nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        r = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
        r = _mm256_add_epi32(u, _mm256_add_epi32(r, bias));
        r = _mm256_blendv_epi8(r, _mm256_or_si256(u, quiet), nan);
        r = _mm256_srli_epi32(r, 16);
        r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
        _mm_storeu_si128((void *)(d + 2 * i), _mm256_castsi256_si128(r));
    }
    return i;
}

#elif defined(__aarch64__)
static size_t widen_neon(float *d, const uint8_t *s, bool half, size_t n)
{
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        uint16x4_t x = vreinterpret_u16_u8(vld1_u8(s + 2 * i));

        vst1q_f32(d + i, half ? vcvt_f32_f16(vreinterpret_f16_u16(x)) :
                                vreinterpretq_f32_u32(vshll_n_u16(x, 16)));
    }
    return i;
}

static size_t narrow_neon(uint8_t *d, const float *s, bool half, size_t n)
{
    const uint32x4_t one = vdupq_n_u32(1), bias = vdupq_n_u32(0x7fff);
    const uint32x4_t quiet = vdupq_n_u32(0x400000);
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        float32x4_t x = vld1q_f32(s + i);
        uint32x4_t u = vreinterpretq_u32_f32(x), r;
        uint16x4_t to;

        r = vaddq_u32(vandq_u32(vshrq_n_u32(u, 16), one), bias);
        r = vbslq_u32(vceqq_f32(x, x), vaddq_u32(u, r), vorrq_u32(u, quiet));
        to = half ? vreinterpret_u16_f16(vcvt_f16_f32(x)) : vshrn_n_u32(r, 16);
        vst1_u8(d + 2 * i, vreinterpret_u8_u16(to));
    }
    return i;
}
#endif

/* Convert as many elements as fill vectors; returns how many. */
static size_t widen_most(float *d, const uint8_t *s, bool half, size_t n)
{
#if defined(__x86_64__)
    if (cpu_uses(CPU_AVX512))
        return widen_avx512(d, s, half, n);
    if (cpu_uses(CPU_AVX2))
        return widen_avx2(d, s, half, n);
#elif defined(__aarch64__)
    if (cpu_uses(CPU_NEON))
        return widen_neon(d, s, half, n);
#endif
    return 0;
}

static size_t narrow_most(uint8_t *d, const float *s, bool half, size_t n)
{
#if defined(__x86_64__)
    if (cpu_uses(CPU_AVX512))
        return narrow_avx512(d, s, half, n);
    if (cpu_uses(CPU_AVX2))
        return narrow_avx2(d, s, half, n);
#elif defined(__aarch64__)
    if (cpu_uses(CPU_NEON))
        return narrow_neon(d, s, half, n);
#endif
    return 0;
}

static void widen16(float *d, const uint8_t *s, bool half, size_t n)
{
    for (size_t i = widen_most(d, s, half, n); i < n; i++) {
        uint16_t x;

        memcpy(&x, s + 2 * i, sizeof(x));
        d[i] = half ? f32_from_f16(x) : f32_from_bf16(x);
    }
}

static void narrow16(uint8_t *d, const float *s, bool half, size_t n)
{
    for (size_t i = narrow_most(d, s, half, n); i < n; i++) {
        uint16_t x = half ? f16_from_f32(s[i]) : bf16_from_f32(s[i]);

        memcpy(d + 2 * i, &x, sizeof(x));
    }
}

static void widen8(float *d, const uint8_t *s, float (*one)(uint8_t), size_t n)
{
    float table[256];

    if (n < ARRAY_LEN(table)) {
        for (size_t i = 0; i < n; i++)
            d[i] = one(s[i]);
        return;
    }
    for (unsigned i = 0; i < ARRAY_LEN(table); i++)
        table[i] = one((uint8_t)i);
    for (size_t i = 0; i < n; i++)
        d[i] = table[s[i]];
}

static void narrow8(uint8_t *d, const float *s, uint8_t (*one)(float), size_t n)
{
    for (size_t i = 0; i < n; i++)
        d[i] = one(s[i]);
}

bool to_f32(float *dst, const void *src, enum dtype t, size_t n)
{
    const uint8_t *s = src;

    switch (t) {
    case DT_F32: memmove(dst, src, n * sizeof(float)); return true;
    case DT_F16: widen16(dst, s, true, n); return true;
    case DT_BF16: widen16(dst, s, false, n); return true;
    case DT_F64:
        for (size_t i = 0; i < n; i++) {
            double x;

            memcpy(&x, s + sizeof(x) * i, sizeof(x));
            dst[i] = (float)x;
        }
        return true;
    case DT_F8_E4M3: widen8(dst, s, f32_from_f8_e4m3, n); return true;
    case DT_F8_E5M2: widen8(dst, s, f32_from_f8_e5m2, n); return true;
    case DT_F8_E8M0: widen8(dst, s, f32_from_f8_e8m0, n); return true;
    default: return false;
    }
}

bool from_f32(void *dst, enum dtype t, const float *src, size_t n)
{
    uint8_t *d = dst;

    switch (t) {
    case DT_F32: memmove(dst, src, n * sizeof(float)); return true;
    case DT_F16: narrow16(d, src, true, n); return true;
    case DT_BF16: narrow16(d, src, false, n); return true;
    case DT_F64:
        for (size_t i = 0; i < n; i++) {
            double x = (double)src[i];

            memcpy(d + sizeof(x) * i, &x, sizeof(x));
        }
        return true;
    case DT_F8_E4M3: narrow8(d, src, f8_e4m3_from_f32, n); return true;
    case DT_F8_E5M2: narrow8(d, src, f8_e5m2_from_f32, n); return true;
    case DT_F8_E8M0: narrow8(d, src, f8_e8m0_from_f32, n); return true;
    default: return false;
    }
}

/* ---- the largest ---- */

enum { MOST_PIECE = 1024 }; /* words */

/* The largest word << shift without its first bit: floats without their signs compare as
 * integers.  In lanes, of which compilers make vectors; signed ones, which every vector
 * unit compares. */
static uint32_t most_word(const uint32_t x[MOST_PIECE], int shift)
{
    enum { LANES = 32 };
    int32_t lane[LANES] = { 0 }, most = 0;

    for (size_t i = 0; i < MOST_PIECE; i += LANES)
        for (int k = 0; k < LANES; k++) {
            int32_t v = (int32_t)(x[i + k] << shift & 0x7fffffff);

            lane[k] = v > lane[k] ? v : lane[k];
        }
    for (int k = 0; k < LANES; k++)
        most = lane[k] > most ? lane[k] : most;
    return (uint32_t)most;
}

float dtype_most(const void *x, enum dtype t, size_t n)
{
    bool half = t == DT_F16 || t == DT_BF16; /* two in a word */
    size_t item = dtype_bits(t) / 8, piece = MOST_PIECE * (half ? 2 : 1);
    uint32_t most = 0;
    float wide;

    for (size_t at = 0; at < n; at += piece) {
        size_t k = n - at < piece ? n - at : piece;
        const char *from = (const char *)x + at * item;
        union {
            float f[MOST_PIECE];
            uint32_t word[MOST_PIECE];
        } p;
        uint32_t v;

        if (k < piece)
            memset(&p, 0, sizeof(p));
        if (half)
            memcpy(&p, from, k * item);
        else if (!to_f32(p.f, from, t, k))
            return 0;
        v = most_word(p.word, 0);
        most = v > most ? v : most;
        v = half ? most_word(p.word, 16) : 0;
        most = v > most ? v : most;
    }
    memcpy(&wide, &most, sizeof(wide));
    return t == DT_F16  ? f32_from_f16((uint16_t)(most >> 16)) :
           t == DT_BF16 ? f32_from_bf16((uint16_t)(most >> 16)) :
                          wide;
}
