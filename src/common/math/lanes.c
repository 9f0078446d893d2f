/* lanes.c - see lanes.h. */
#include "common/math/lanes.h"

#include <stdatomic.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/threads.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

void lanes_transpose_plain(float *const to[LANES],
                           const float *const from[LANES])
{
    for (int c = 0; c < LANES; c++)
        for (int r = 0; r < LANES; r++)
            to[c][r] = from[r][c];
}

#ifdef __x86_64__
#define EACH_FOUR(x) x(0) x(4) x(8) x(12)
/* Transpose 4 x 4 blocks of four rows within their 128-bit parts. */
#define QUARTERS(r)                                                            \
    {                                                                          \
        __m512 a = _mm512_loadu_ps(from[r]);                                   \
        __m512 b = _mm512_loadu_ps(from[(r) + 1]);                             \
        __m512 c = _mm512_loadu_ps(from[(r) + 2]);                             \
        __m512 d = _mm512_loadu_ps(from[(r) + 3]);                             \
        __m512d e = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));                \
        __m512d f = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));                \
        __m512d g = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));                \
        __m512d h = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));                \
                                                                               \
        x[r] = _mm512_castpd_ps(_mm512_unpacklo_pd(e, f));                     \
        x[(r) + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(e, f));               \
        x[(r) + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(g, h));               \
        x[(r) + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(g, h));               \
    }
#define PICK(a, b, how) _mm512_shuffle_f32x4(a, b, how)
/* Gather the 128-bit parts of columns i, i + 4, i + 8, i + 12. */
#define COLUMNS(i)                                                             \
    {                                                                          \
        __m512 a = PICK(x[i], x[(i) + 4], 0x88);                               \
        __m512 b = PICK(x[(i) + 8], x[(i) + 12], 0x88);                        \
        __m512 c = PICK(x[i], x[(i) + 4], 0xdd);                               \
        __m512 d = PICK(x[(i) + 8], x[(i) + 12], 0xdd);                        \
                                                                               \
        _mm512_storeu_ps(to[i], PICK(a, b, 0x88));                             \
        _mm512_storeu_ps(to[(i) + 4], PICK(c, d, 0x88));                       \
        _mm512_storeu_ps(to[(i) + 8], PICK(a, b, 0xdd));                       \
        _mm512_storeu_ps(to[(i) + 12], PICK(c, d, 0xdd));                      \
    }

__attribute__((target("avx512f"))) static void
transpose_avx512(float *const to[LANES], const float *const from[LANES])
{
    __m512 x[LANES];

    EACH_FOUR(QUARTERS)
    COLUMNS(0) COLUMNS(1) COLUMNS(2) COLUMNS(3)
}
#endif

lanes_transpose_fn *lanes_transpose_best(void)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return transpose_avx512;
#endif
    return lanes_transpose_plain;
}

typedef uint8_t vb __attribute__((vector_size(LANES)));

/* Interleaving the halves of all 256 bytes four times is a transposition. */
void lanes_transpose_bytes(uint8_t *to, size_t ld, const uint8_t *from)
{
    vb x[LANES], y[LANES];

    memcpy(x, from, sizeof(x));
    for (int step = 0; step < 4; step++) {
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            vb a = x[i], b = x[i + LANES / 2];

            y[2 * i] = SHUFFLE(a, b, vb, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                               21, 6, 22, 7, 23);
            y[2 * i + 1] = SHUFFLE(a, b, vb, 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                   28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(x, y, sizeof(x));
    }
    for (int i = 0; i < LANES; i++)
        memcpy(to + i * ld, &x[i], sizeof(x[i]));
}

void lanes_add(float *restrict to, const float *restrict from, size_t n,
               const float *next)
{
    typedef float vf __attribute__((vector_size(4 * LANES)));
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        vf a, b;

        __builtin_prefetch(next + i, 1);
        memcpy(&a, to + i, sizeof(a));
        memcpy(&b, from + i, sizeof(b));
        a += b;
        memcpy(to + i, &a, sizeof(a));
    }
    for (; i < n; i++)
        to[i] += from[i];
}

/* An exponent of ones, plus one, is the sign bit: compilers compare the lanes of vectors
 * that are wider than the machine's one by one. */
bool lanes_finite(const float *x, size_t n)
{
    typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
    vu v, bad = { 0 };
    uint32_t any = 0, last;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        memcpy(&v, x + i, sizeof(v));
        bad |= (v & 0x7f800000) + 0x00800000;
    }
    for (int k = 0; k < LANES; k++)
        any |= bad[k];
    for (; i < n; i++) {
        memcpy(&last, x + i, sizeof(last));
        any |= (last & 0x7f800000) + 0x00800000;
    }
    return !(any >> 31);
}

bool lanes_finite_bf16(const uint16_t *x, size_t n)
{
    typedef uint16_t vs __attribute__((vector_size(2 * 2 * LANES)));
    vs v, bad = { 0 };
    unsigned any = 0;
    size_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        memcpy(&v, x + i, sizeof(v));
        bad |= (v & 0x7f80) + 0x0080;
    }
    for (int k = 0; k < 2 * LANES; k++)
        any |= bad[k];
    for (; i < n; i++)
        any |= (x[i] & 0x7f80u) + 0x0080u;
    return !(any >> 15);
}

struct look {
    const void *x;
    enum dtype t;
    atomic_bool bad;
};

static void look_at(void *ctx, size_t begin, size_t end)
{
    struct look *l = ctx;

    if (!(l->t == DT_BF16 ?
              lanes_finite_bf16((const uint16_t *)l->x + begin, end - begin) :
              lanes_finite((const float *)l->x + begin, end - begin)))
        atomic_store(&l->bad, true);
}

bool lanes_all_finite(const void *x, enum dtype t, uint64_t n)
{
    struct look l = { .x = x, .t = t };

    threads_for(n, 1 << 17, look_at, &l);
    return !l.bad;
}
