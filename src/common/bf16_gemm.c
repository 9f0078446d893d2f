/* bf16_gemm.c - see bf16_gemm.h.
 *
 * The kernel makes 12 x 32 of y in 24 registers: for each pair of inputs two
 * loads and twelve broadcasts for 24 products of pairs.  W streams from the
 * second-level cache, 128 bytes in the 12 cycles of a step; 12 rows of x stay
 * in the first. */
#include "common/bf16_gemm.h"

#include <string.h>

enum { ROWS = GEMM_ROWS, COLS = GEMM_COLS };

size_t bf16_gemm_packed(int64_t n, int64_t k)
{
    return (size_t)((n + COLS - 1) / COLS * COLS * k);
}

/* 32-bit words are moved: pairs. */
void bf16_gemm_pack(uint16_t *w, int64_t n, int64_t k, int64_t begin,
                    int64_t end, uint16_t *room)
{
    enum { STEP = 16 };

    for (int64_t p = begin; p < end; p++) {
        int64_t rows = n - p * COLS < COLS ? n - p * COLS : COLS;
        uint16_t *to = w + p * COLS * k;

        memcpy(room, to, (size_t)(rows * k) * sizeof(*to));
        if (rows < COLS)
            memset(to, 0, (size_t)(COLS * k) * sizeof(*to));
        for (int64_t t0 = 0; t0 < k / 2; t0 += STEP) {
            int64_t t1 = t0 + STEP < k / 2 ? t0 + STEP : k / 2;

            for (int64_t r = 0; r < rows; r++)
                for (int64_t t = t0; t < t1; t++)
                    memcpy(to + (t * COLS + r) * 2, room + r * k + t * 2,
                           2 * sizeof(*to));
        }
    }
}

#ifdef __x86_64__
#include <immintrin.h>

#define TARGET                                                                 \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,prfchw")))

bool bf16_gemm_usable(int64_t k)
{
    __builtin_cpu_init();
    return k % 2 == 0 && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
}

/* y[n rows][32] of one panel; n is a constant. */
TARGET static inline __attribute__((always_inline)) void
kernel(const int n, float *y, int64_t ldy, const uint16_t *x, int64_t ldx,
       const uint16_t *w, int64_t pairs)
{
    const char *a = (const char *)x, *b = a + 8 * ldx, *c = b + 8 * ldx;
    int64_t row = 2 * ldx, row3 = 6 * ldx;
    __m512 sum[ROWS][2];

#pragma GCC unroll 12
    for (int r = 0; r < n; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t t = 0; t < pairs; t++) {
        __m512bh u = (__m512bh)_mm512_loadu_si512(w);
        __m512bh v = (__m512bh)_mm512_loadu_si512(w + COLS);

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
        a += 4;
        b += 4;
        c += 4;
        w += 2 * COLS;
    }
#pragma GCC unroll 12
    for (int r = 0; r < n; r++) {
        _mm512_storeu_ps(y + r * ldy, sum[r][0]);
        _mm512_storeu_ps(y + r * ldy + 16, sum[r][1]);
    }
}

typedef void kernel_fn(float *y, int64_t ldy, const uint16_t *x, int64_t ldx,
                       const uint16_t *w, int64_t pairs);

#define KERNEL(n)                                                              \
    TARGET static void kernel_##n(float *y, int64_t ldy, const uint16_t *x,    \
                                  int64_t ldx, const uint16_t *w,              \
                                  int64_t pairs)                               \
    {                                                                          \
        kernel(n, y, ldy, x, ldx, w, pairs);                                   \
    }
#define EACH(x)  x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) x(12)
#define ENTRY(n) kernel_##n,

EACH(KERNEL)

static kernel_fn *const kernels[ROWS + 1] = { NULL, EACH(ENTRY) };

/* The last columns of a matrix whose n is no multiple of COLS. */
static void few_columns(kernel_fn *f, int64_t rows, int64_t n, float *y,
                        int64_t ldy, const uint16_t *x, int64_t ldx,
                        const uint16_t *w, int64_t pairs)
{
    float part[ROWS * COLS];

    f(part, COLS, x, ldx, w, pairs);
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * ldy, part + r * COLS, (size_t)n * sizeof(*y));
}

void bf16_gemm(const struct bf16_gemm *g)
{
    int64_t pairs = g->k / 2;

    for (int64_t r = 0; r < g->m; r += ROWS) {
        int64_t rows = g->m - r < ROWS ? g->m - r : ROWS;
        kernel_fn *f = kernels[rows];
        const uint16_t *x = g->x + r * g->ldx;

        for (int64_t c = 0; c < g->n; c += COLS) {
            const uint16_t *w = g->packed + (g->first + c) * g->k;
            float *y = g->y + r * g->ldy + c;

            if (g->n - c < COLS)
                few_columns(f, rows, g->n - c, y, g->ldy, x, g->ldx, w, pairs);
            else
                f(y, g->ldy, x, g->ldx, w, pairs);
        }
    }
}
#else
bool bf16_gemm_usable(int64_t k)
{
    (void)k;
    return false;
}

void bf16_gemm(const struct bf16_gemm *g)
{
    (void)g;
}
#endif
