/* bf16_kernel_x86.c - see bf16_kernel.h: kernels avx2, avx512, avx512bf16.
 *
 * avx2 computes 6 x 16 of y in 12 registers, the others 12 x 32 in 24: per
 * pair of inputs two loads of W and twelve broadcasts of x for 24 products. */
#include "common/math/bf16_kernel.h"
#include "common/math/bf16_kernel_list.h"

#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

/* ---- widened ---- */

/* a b + c in c's register: GCC moves sums to that of a or b, and runs out of
 * registers. */
__attribute__((target("avx2,fma"), always_inline)) static inline __m256
avx2_fma(__m256 a, __m256 b, __m256 c)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
}

#define NAME(x) avx2_##x
#define W       8
#define NV      2
#define ROWS    6
#define FEW
#define V_FMA(a, b, c)                                                         \
    ((avx2_vf)avx2_fma((__m256)(a), (__m256)(b), (__m256)(c)))
#define V_SET(x) _mm256_set1_ps(x)
#define TARGET   __attribute__((target("avx2,fma")))
#include "common/math/bf16_widened.inc"
#include "common/math/bf16_six.inc"
#undef FEW
#undef NAME
#undef W
#undef ROWS
#undef V_FMA
#undef V_SET
#undef TARGET

#define NAME(x) avx512_##x
#define W       16
#define ROWS    12
#define V_FMA(a, b, c)                                                         \
    ((avx512_vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define V_SET(x) _mm512_set1_ps(x)
#define TARGET   __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#include "common/math/bf16_widened.inc"

const struct bf16_kernel kernel_avx2 = { 6, 1, true, 256, 192, 256, avx2_tile };
const struct bf16_kernel kernel_avx512 = { 12,  1,   true,      384,
                                           192, 512, avx512_run };

/* ---- products of pairs ---- */

enum { PAIR_ROWS = 12 };

#define PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* n rows; n is a compile-time constant. */
PAIRS static inline __attribute__((always_inline)) void
pairs_rows(const int n, float *y, int64_t ldy, const struct kernel_strip *s,
           const uint16_t *w, int64_t pairs, enum kernel_sum how,
           const char *ahead)
{
    const char *a = s->p, *b = a + 4 * s->row, *c = b + 4 * s->row;
    int64_t row = s->row, row3 = 3 * s->row;
    __m512 sum[PAIR_ROWS][2];

#pragma GCC unroll 12
    for (int r = 0; r < n; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++)
            sum[r][v] = how == SUM_CONTINUE ?
                            _mm512_loadu_ps(y + r * ldy + 16 * v) :
                            _mm512_setzero_ps();
    for (int64_t t = 0; t < pairs; t++) {
        __m512bh u = (__m512bh)_mm512_loadu_si512(w);
        __m512bh v = (__m512bh)_mm512_loadu_si512(w + KERNEL_COLS);

        if (t % KERNEL_AHEAD == 0) {
            __builtin_prefetch(ahead, 0, 2);
            ahead += 64;
        }
#pragma GCC unroll 12
        for (int r = 0; r < n; r++) {
            const char *at = r < 4 ? a : r < 8 ? b : c;
            __m512bh z;
            int pair;

            at += r % 4 == 3 ? row3 : r % 4 * row;
            memcpy(&pair, at, sizeof(pair));
            z = (__m512bh)_mm512_set1_epi32(pair);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], z, u);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], z, v);
        }
        a += s->step;
        b += s->step;
        c += s->step;
        w += 2 * KERNEL_COLS;
    }
#pragma GCC unroll 12
    for (int r = 0; r < n; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            float *to = y + r * ldy + 16 * v;

            if (how == SUM_ADD)
                sum[r][v] = _mm512_add_ps(sum[r][v], _mm512_loadu_ps(to));
            _mm512_storeu_ps(to, sum[r][v]);
        }
}

PAIRS static void pairs_run(int rows, float *y, int64_t ldy,
                            const struct kernel_strip *s, const uint16_t *w,
                            int64_t pairs, enum kernel_sum how,
                            const void *ahead)
{
    switch (rows) {
#define ROWS_CASE(n)                                                           \
    case n: pairs_rows(n, y, ldy, s, w, pairs, how, ahead); break;
        ROWS_CASE(1)
        ROWS_CASE(2)
        ROWS_CASE(3)
        ROWS_CASE(4)
        ROWS_CASE(5)
        ROWS_CASE(6)
        ROWS_CASE(7)
        ROWS_CASE(8)
        ROWS_CASE(9)
        ROWS_CASE(10)
        ROWS_CASE(11)
        ROWS_CASE(12)
    default: break;
    }
}

const struct bf16_kernel kernel_avx512bf16 = { PAIR_ROWS, 1,   false,    384,
                                               192,       512, pairs_run };
#endif
