/* split.c - see split.h.
 *
 * 48 rows x 16 columns of a sum in three tiles.  For 32 terms six tiles of the
 * left side and two of the right one are loaded for nine products; products into
 * one tile wait for each other, so the three take turns.  PIECE terms of the right
 * side stay in the second-level cache while all sums pass.  Shorter pieces load and
 * store sums more often: 128 terms are up to a seventh slower. */
#include "gptq/solve/split.h"

#include <string.h>

#include "common/math/bf16_kernel.h"
#include "common/math/cpu.h"
#include "common/math/dtype.h"
#include "common/math/lanes.h"

#ifdef __x86_64__
#include <immintrin.h>

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512dq,avx512bf16")))

enum {
    ROWS = SOLVE_ROWS,
    THIRDS = ROWS / LANES,
    TILE = LANES * SPLIT_DEPTH, /* bf16: 16 x 64 bytes */
    LINE = 64,
    BLOCK = TILE * sizeof(uint16_t), /* bytes from one to the next of a panel */
    PIECE = 256                      /* terms */
};

bool split_is_there(void)
{
    return cpu_uses(CPU_AMX);
}

/* x as bf16, rounded to nearest even, each in the low half of 32 bits. */
AMX static inline __m512i narrow(__m512 x)
{
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
}

AMX static inline __m512 rest(__m512 x, __m512i part)
{
    return _mm512_sub_ps(x, (__m512)_mm512_slli_epi32(part, 16));
}

/* hi and lo of 16 pairs (a, b). */
AMX static inline void split_pairs(uint16_t *hi, uint16_t *lo, __m512 a,
                                   __m512 b)
{
    __m512i p = narrow(a), q = narrow(b);

    _mm512_storeu_si512(hi, _mm512_or_si512(p, _mm512_slli_epi32(q, 16)));
    p = narrow(rest(a, p));
    q = narrow(rest(b, q));
    _mm512_storeu_si512(lo, _mm512_or_si512(p, _mm512_slli_epi32(q, 16)));
}

/* Terms of 16 rows to lines of a row: a tile's row r is x[0..31][r]. */
AMX static void left_tile(uint16_t *hi, uint16_t *lo, const float *x,
                          float sign)
{
    lanes_transpose_fn *transpose = lanes_transpose_best();
    float part[2][LANES][LANES];
    __m512 by = _mm512_set1_ps(sign);

    for (int h = 0; h < 2; h++) {
        const float *from[LANES];
        float *to[LANES];

        for (int i = 0; i < LANES; i++) {
            from[i] = x + (h * LANES + i) * ROWS;
            to[i] = part[h][i];
        }
        transpose(to, from);
    }
    for (int r = 0; r < LANES; r++) {
        __m512 a = _mm512_mul_ps(by, _mm512_loadu_ps(part[0][r]));
        __m512 b = _mm512_mul_ps(by, _mm512_loadu_ps(part[1][r]));

        _mm512_storeu_si512(hi + r * SPLIT_DEPTH,
                            (__m512i)_mm512_cvtne2ps_pbh(b, a));
        a = rest(a, narrow(a));
        b = rest(b, narrow(b));
        _mm512_storeu_si512(lo + r * SPLIT_DEPTH,
                            (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

void split_left(uint16_t *left, const float *x, size_t n, bool minus)
{
    for (size_t k = 0; k < n; k += SPLIT_DEPTH, x += SPLIT_DEPTH * ROWS)
        for (int i = 0; i < THIRDS; i++, left += 2 * TILE)
            left_tile(left, left + TILE, x + i * LANES, minus ? -1 : 1);
}

/* A tile's row is a pair of rows, side by side. */
AMX static void split_block(float *low, float *high)
{
    uint16_t hi[TILE], lo[TILE];

    for (int i = 0; i < SPLIT_DEPTH * FACTOR_PANEL; i += 2 * FACTOR_PANEL) {
        __m512 a = _mm512_loadu_ps(low + i), b = _mm512_loadu_ps(high + i);

        split_pairs(hi + 2 * i, lo + 2 * i, _mm512_shuffle_f32x4(a, b, 0x44),
                    _mm512_shuffle_f32x4(a, b, 0xee));
    }
    memcpy(low, hi, sizeof(hi));
    memcpy(high, lo, sizeof(lo));
}

void split_right(const struct split_part *p)
{
    for (uint64_t c = p->c0; c < p->c1; c += SPLIT_COLS)
        for (uint64_t k = p->k0; k < p->k1; k += SPLIT_DEPTH)
            split_block(p->at(p->of, c, k), p->at(p->of, c + FACTOR_PANEL, k));
}

float split_element(const struct split_part *p, uint64_t c, uint64_t k)
{
    uint64_t first = c / SPLIT_COLS * SPLIT_COLS, row = k % SPLIT_DEPTH;
    uint64_t i = row / 2 * SPLIT_DEPTH + (c - first) * 2 + row % 2;
    const uint16_t *hi = (uint16_t *)p->at(p->of, first, k - row);
    const uint16_t *lo =
        (uint16_t *)p->at(p->of, first + FACTOR_PANEL, k - row);

    return f32_from_bf16(hi[i]) + f32_from_bf16(lo[i]);
}

/* GCC's intrinsics do not say that they read and write memory. */
#define MEMORY_IS_USED __asm__ volatile("" : : : "memory")

/* sum[48][16] += left right over n blocks of terms, hi and lo of the right side, and of
 * the left one, or with `bf16` of that hi alone.  The next block is requested: a tenth
 * faster, with one sum 1.5 times. */
AMX static inline __attribute__((always_inline)) void
multiply(float *sum, const uint16_t *left, const char *hi, const char *lo,
         uint64_t n, const bool bf16)
{
    MEMORY_IS_USED;
    _tile_loadd(0, sum, LINE);
    _tile_loadd(1, sum + LANES * LANES, LINE);
    _tile_loadd(2, sum + 2 * LANES * LANES, LINE);
    for (uint64_t k = 0; k < n; k++, left += SPLIT_LEFT) {
        _tile_loadd(3, hi, LINE);
        _tile_loadd(5, left, LINE);
        _tile_dpbf16ps(0, 5, 3);
        _tile_loadd(6, left + 2 * TILE, LINE);
        _tile_dpbf16ps(1, 6, 3);
        _tile_loadd(7, left + 4 * TILE, LINE);
        _tile_dpbf16ps(2, 7, 3);
        _tile_loadd(4, lo, LINE);
        _tile_dpbf16ps(0, 5, 4);
        if (!bf16)
            _tile_loadd(5, left + TILE, LINE);
        _tile_dpbf16ps(1, 6, 4);
        if (!bf16)
            _tile_loadd(6, left + 3 * TILE, LINE);
        _tile_dpbf16ps(2, 7, 4);
        if (!bf16)
            _tile_loadd(7, left + 5 * TILE, LINE);
        hi += BLOCK;
        lo += BLOCK;
        for (int i = 0; i < BLOCK; i += LINE) {
            __builtin_prefetch(hi + i, 0, 3);
            __builtin_prefetch(lo + i, 0, 3);
        }
        if (bf16)
            continue;
        _tile_dpbf16ps(0, 5, 3);
        _tile_dpbf16ps(1, 6, 3);
        _tile_dpbf16ps(2, 7, 3);
    }
    _tile_stored(0, sum, LINE);
    _tile_stored(1, sum + LANES * LANES, LINE);
    _tile_stored(2, sum + 2 * LANES * LANES, LINE);
    MEMORY_IS_USED;
}

AMX static void multiply_f32(float *sum, const uint16_t *left, const char *hi,
                             const char *lo, uint64_t n)
{
    multiply(sum, left, hi, lo, n, false);
}

AMX static void multiply_bf16(float *sum, const uint16_t *left, const char *hi,
                              const char *lo, uint64_t n)
{
    multiply(sum, left, hi, lo, n, true);
}

/* sum[c][48] += work[48][c], for 16 columns. */
static void gather(float *sum, const float *work)
{
    lanes_transpose_fn *transpose = lanes_transpose_best();

    for (int i = 0; i < THIRDS; i++, work += LANES * LANES) {
        float part[LANES][LANES];
        const float *from[LANES];
        float *to[LANES];

        for (int r = 0; r < LANES; r++) {
            from[r] = work + r * LANES;
            to[r] = part[r];
        }
        transpose(to, from);
        for (int c = 0; c < LANES; c++)
            for (int r = 0; r < LANES; r++)
                sum[c * ROWS + i * LANES + r] += part[c][r];
    }
}

/* Up to SPLIT_COLS_MAX columns of all sums.  The first to use a piece asks for the
 * next one. */
static void add_columns(const struct split_sum *s, int n,
                        const struct split_part *p, uint64_t c0, uint64_t c1)
{
    for (int i = 0; i < n; i++)
        memset(s[i].work, 0, (c1 - c0) * ROWS * sizeof(float));
    for (uint64_t k = p->k0, terms; k < p->k1; k += terms) {
        terms = p->k1 - k < PIECE ? p->k1 - k : PIECE;
        for (int i = 0; i < n; i++)
            for (uint64_t c = c0; c < c1; c += SPLIT_COLS)
                (p->bf16 ? multiply_bf16 : multiply_f32)(
                    s[i].work + (c - c0) * ROWS,
                    s[i].left + k / SPLIT_DEPTH * SPLIT_LEFT,
                    (const char *)p->at(p->of, c, k),
                    (const char *)p->at(p->of, c + FACTOR_PANEL, k),
                    terms / SPLIT_DEPTH);
    }
    for (int i = 0; i < n; i++)
        for (uint64_t c = c0; c < c1; c += SPLIT_COLS)
            gather(s[i].sum + (c - p->c0) * ROWS, s[i].work + (c - c0) * ROWS);
}

void split_add(const struct split_sum *s, int n, const struct split_part *p)
{
    if (p->k1 == p->k0)
        return;
    bf16_kernel_begin();
    for (uint64_t c = p->c0, end; c < p->c1; c = end) {
        end = p->c1 - c < SPLIT_COLS_MAX ? p->c1 : c + SPLIT_COLS_MAX;
        add_columns(s, n, p, c, end);
    }
    bf16_kernel_end();
}
#else
bool split_is_there(void)
{
    return false;
}

void split_left(uint16_t *left, const float *x, size_t n, bool minus)
{
    (void)left, (void)x, (void)n, (void)minus;
}

void split_right(const struct split_part *p)
{
    (void)p;
}

float split_element(const struct split_part *p, uint64_t c, uint64_t k)
{
    (void)p, (void)c, (void)k;
    return 0;
}

void split_add(const struct split_sum *s, int n, const struct split_part *p)
{
    (void)s, (void)n, (void)p;
}
#endif
