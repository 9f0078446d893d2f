/* solve_kernel.c - see solve_kernel.h.
 *
 * product on AVX-512: 48 rows x 8 columns in 24 accumulators of 16 floats.  Per
 * element of the factor: one broadcast and three fused multiply-adds; per eight
 * elements (one t): three loads of d.  So 24 of 35 instructions are arithmetic.
 * AVX2 has half the registers and takes 16 rows x 4 columns at a time; NEON
 * 12 x 8. */
#include "gptq/solve/solve_kernel.h"

#include <stdbool.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))
/* x + ROUNDER - ROUNDER rounds x to an integer, half to even (1.5 * 2^23) */
#define ROUNDER 12582912.0f

enum { COLS = FACTOR_PANEL, ROWS = SOLVE_ROWS, NEAR = 24 };

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint8_t vb __attribute__((vector_size(16)));

#define SELECT(mask, yes, no)                                                  \
    ((vf)(((mask) & (vi)(yes)) | (~(mask) & (vi)(no))))

/* Quantize column c of 16 rows from r on.  t: the error feedback onto it. */
INLINE void quantize(const struct solve_panel *p, int c, int r, const vf *t,
                     vf *loss, vf *dist)
{
    float diag = p->l[c * COLS + c];
    vf w, s, z, star, x, lo, hi, q;
    vb code;

    memcpy(&w, p->d + c * ROWS + r, sizeof(w));
    memcpy(&s, p->scale[c] + r, sizeof(s));
    memcpy(&z, p->zero[c] + r, sizeof(z));
    star = w + *t / diag;
    x = star / s;
    lo = 0.0f - z;
    hi = p->top - z;
    x = SELECT(x < lo, lo, x);
    x = SELECT(x > hi, hi, x);
    x = (x + ROUNDER) - ROUNDER;
    q = x * s;
    star = (star - q) * diag;
    w -= q;
    *loss += star * star;
    *dist += w * w;
    memcpy(p->d + c * ROWS + r, &w, sizeof(w));
    code = __builtin_convertvector(__builtin_convertvector(x + z, vi), vb);
    memcpy(p->codes + c * ROWS + r, &code, sizeof(code));
}

/* All rows of a column before the next column: the columns of a row are a chain
 * of dependencies, rows are independent. */
INLINE void panel(const struct solve_panel *p)
{
    enum { N = ROWS / LANES };
    vf loss[N], dist[N];

    memcpy(loss, p->loss, sizeof(loss));
    memcpy(dist, p->dist, sizeof(dist));
    for (int c = COLS - 1; c >= 0; c--) {
        vf t[N];

        memcpy(t, p->acc + c * ROWS, sizeof(t));
        for (int k = COLS - 1; k > c; k--) {
            vf d[N];

            memcpy(d, p->d + k * ROWS, sizeof(d));
#pragma GCC unroll 3
            for (int i = 0; i < N; i++)
                t[i] += d[i] * p->l[k * COLS + c];
        }
#pragma GCC unroll 3
        for (int i = 0; i < N; i++)
            quantize(p, c, i * LANES, &t[i], &loss[i], &dist[i]);
    }
    memcpy(p->loss, loss, sizeof(loss));
    memcpy(p->dist, dist, sizeof(dist));
}

INLINE void nearest(float *d, const float *scale, const float *zero, float top,
                    uint8_t *codes)
{
    for (int r = 0; r < ROWS; r += LANES) {
        vf w, s, z, x, lo, hi;
        vb code;

        memcpy(&w, d + r, sizeof(w));
        memcpy(&s, scale + r, sizeof(s));
        memcpy(&z, zero + r, sizeof(z));
        x = w / s;
        lo = 0.0f - z;
        hi = top - z;
        x = SELECT(x < lo, lo, x);
        x = SELECT(x > hi, hi, x);
        x = (x + ROUNDER) - ROUNDER;
        w -= x * s;
        memcpy(d + r, &w, sizeof(w));
        code = __builtin_convertvector(__builtin_convertvector(x + z, vi), vb);
        memcpy(codes + r, &code, sizeof(code));
    }
}

/* x_c = (x_c - sum over t = from .. to-1 of x_t l_tc) / l_cc */
INLINE void divide_column(float *x, const float *l, size_t ld, int c, int from,
                          int to)
{
    enum { N = ROWS / LANES };
    vf t[N];

    memcpy(t, x + c * ROWS, sizeof(t));
    for (int k = from; k < to; k++) {
        vf d[N];

        memcpy(d, x + k * ROWS, sizeof(d));
#pragma GCC unroll 3
        for (int i = 0; i < N; i++)
            t[i] -= d[i] * l[(size_t)k * ld + (size_t)c];
    }
#pragma GCC unroll 3
    for (int i = 0; i < N; i++)
        t[i] /= l[(size_t)c * (ld + 1)];
    memcpy(x + c * ROWS, t, sizeof(t));
}

INLINE void divide(float *x, const float *l, size_t ld)
{
    for (int c = 0; c < COLS; c++)
        divide_column(x, l, ld, c, 0, c);
}

INLINE void back(float *x, const float *l)
{
    for (int c = COLS - 1; c >= 0; c--)
        divide_column(x, l, COLS, c, c + 1, COLS);
}

static void panel_plain(const struct solve_panel *p)
{
    panel(p);
}

static void nearest_plain(float *d, const float *scale, const float *zero,
                          float top, uint8_t *codes)
{
    nearest(d, scale, zero, top, codes);
}

static void product_plain(float *acc, const float *d, const float *l, size_t n)
{
    for (size_t k = 0; k < n; k++)
        for (int c = 0; c < COLS; c++)
            for (int r = 0; r < ROWS; r++)
                acc[c * ROWS + r] += d[k * ROWS + r] * l[k * COLS + c];
}

static void subtract_plain(float *acc, const float *d, const float *l, size_t n,
                           size_t ld)
{
    for (size_t k = 0; k < n; k++)
        for (int c = 0; c < COLS; c++)
            for (int r = 0; r < ROWS; r++)
                acc[c * ROWS + r] -= d[k * ROWS + r] * l[k * ld + (size_t)c];
}

static void divide_plain(float *x, const float *l, size_t ld)
{
    divide(x, l, ld);
}

static void back_plain(float *x, const float *l)
{
    back(x, l);
}

static const struct solve_kernels plain = { product_plain, panel_plain,
                                            nearest_plain, subtract_plain,
                                            divide_plain,  back_plain };

#if defined(__x86_64__)
#define AVX2   __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw")))

/* acc += dᵀ l, or acc -= dᵀ l with `minus`; rows of l are ld apart. */
AVX2 INLINE void multiply_avx2(float *acc, const float *d, const float *l,
                               size_t n, size_t ld, bool minus)
{
    for (int r = 0; r < ROWS; r += 16)
        for (int c = 0; c < COLS; c += 4) {
            float *to = acc + c * ROWS + r;
            __m256 sum[4][2];

            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 2; j++)
                    sum[i][j] = _mm256_loadu_ps(to + i * ROWS + j * 8);
            for (size_t k = 0; k < n; k++) {
                __m256 a = _mm256_loadu_ps(d + k * ROWS + r);
                __m256 b = _mm256_loadu_ps(d + k * ROWS + r + 8);

                for (int i = 0; i < 4; i++) {
                    __m256 x =
                        _mm256_broadcast_ss(l + k * ld + (size_t)(c + i));

                    sum[i][0] = minus ? _mm256_fnmadd_ps(a, x, sum[i][0]) :
                                        _mm256_fmadd_ps(a, x, sum[i][0]);
                    sum[i][1] = minus ? _mm256_fnmadd_ps(b, x, sum[i][1]) :
                                        _mm256_fmadd_ps(b, x, sum[i][1]);
                }
            }
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 2; j++)
                    _mm256_storeu_ps(to + i * ROWS + j * 8, sum[i][j]);
        }
}

AVX2 static void product_avx2(float *acc, const float *d, const float *l,
                              size_t n)
{
    multiply_avx2(acc, d, l, n, COLS, false);
}

AVX2 static void subtract_avx2(float *acc, const float *d, const float *l,
                               size_t n, size_t ld)
{
    multiply_avx2(acc, d, l, n, ld, true);
}

AVX2 static void divide_avx2(float *x, const float *l, size_t ld)
{
    divide(x, l, ld);
}

AVX2 static void back_avx2(float *x, const float *l)
{
    back(x, l);
}

AVX2 static void panel_avx2(const struct solve_panel *p)
{
    panel(p);
}

AVX2 static void nearest_avx2(float *d, const float *scale, const float *zero,
                              float top, uint8_t *codes)
{
    nearest(d, scale, zero, top, codes);
}

static const struct solve_kernels avx2 = { product_avx2, panel_avx2,
                                           nearest_avx2, subtract_avx2,
                                           divide_avx2,  back_avx2 };

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

AVX512 static void divide_avx512(float *x, const float *l, size_t ld)
{
    divide(x, l, ld);
}

AVX512 static void back_avx512(float *x, const float *l)
{
    back(x, l);
}

AVX512 static void panel_avx512(const struct solve_panel *p)
{
    panel(p);
}

AVX512 static void nearest_avx512(float *d, const float *scale,
                                  const float *zero, float top, uint8_t *codes)
{
    nearest(d, scale, zero, top, codes);
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
