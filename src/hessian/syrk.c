/* syrk.c - see syrk.h.
 *
 * The kernel makes 8 x 48 of a tile in 24 registers; for each pair of tokens it
 * loads three vectors and eight broadcasts for 24 products of pairs.  On the
 * diagonal it makes 16 or 32 columns where the rest would lie above.  Pieces of
 * DEPTH pairs keep both sides in the caches, and their sums are added, which
 * makes the rounding error of a long sum smaller: 1e-6 instead of 9e-6.  The
 * next piece is asked for beforehand, a line for every fourth pair: many at once
 * would keep the kernel's own loads waiting (a tenth of the time). */
#include "hessian/syrk.h"

#include <string.h>

enum { THREAD_BYTES = 2 << 20 }; /* packed by one thread at least */
enum {
    ROWS = 8,
    COLS = 48,
    DEPTH = 128,
    STEP = 4, /* pairs from one line asked for to the next */
    PACK = 32
};

static uint64_t pairs_of(uint64_t tokens)
{
    return (tokens + 1) / 2;
}

/* From panel to panel; not a power of two, or all would share few lines of
 * the caches. */
static uint64_t stride_of(uint64_t room)
{
    return (pairs_of(room) + 2) * 2 * SYRK_PANEL;
}

uint64_t syrk_panels(uint64_t cols)
{
    return (cols + SYRK_PANEL - 1) / SYRK_PANEL;
}

uint64_t syrk_packed(uint64_t room, uint64_t cols)
{
    uint64_t spare = COLS / SYRK_PANEL - 1; /* read, but not used */

    return (syrk_panels(cols) + spare) * stride_of(room);
}

uint64_t syrk_packed_at(uint64_t room, uint64_t panel)
{
    return panel * stride_of(room);
}

size_t syrk_pack_grain(uint64_t tokens)
{
    return THREAD_BYTES / (tokens * SYRK_PANEL * sizeof(uint16_t)) + 1;
}

#ifdef __x86_64__
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512bf16")))

bool syrk_usable(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512bf16");
}

/* 16 columns of two tokens, interleaved.  False: an element is not finite. */
TARGET static bool interleave(uint16_t *to, const uint16_t *a,
                              const uint16_t *b)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __m256i x = _mm256_loadu_si256((const __m256i *)a);
    __m256i y = _mm256_loadu_si256((const __m256i *)b);
    __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(y), 16);
    __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(x), high);

    _mm512_storeu_si512(to, both);
    return !_mm512_cmpeq_epi16_mask(_mm512_and_si512(both, exponent), exponent);
}

/* The second token of a pair, the first being there already. */
TARGET static bool complete(uint16_t *to, const uint16_t *b)
{
    uint16_t a[SYRK_PANEL];

    for (int i = 0; i < SYRK_PANEL; i++)
        a[i] = to[2 * i];
    return interleave(to, a, b);
}

/* p[8][16 n] = or += i[t pairs][8 columns] * j[t pairs][n panels, stride apart];
 * n is a constant.  Lines from `ahead` on will be read later. */
TARGET static inline __attribute__((always_inline)) void
multiply(const int n, bool add, float *p, const uint16_t *i, const uint16_t *j,
         uint64_t stride, uint64_t t, const uint16_t *ahead)
{
    __m512 sum[ROWS][COLS / SYRK_PANEL];

#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
        for (int c = 0; c < n; c++)
            sum[r][c] = _mm512_setzero_ps();
    for (; t; t--) {
        __m512bh column[COLS / SYRK_PANEL];

        if (t % STEP == 0) {
            __builtin_prefetch(ahead, 0, 2);
            ahead += 2 * SYRK_PANEL;
        }
#pragma GCC unroll 3
        for (int c = 0; c < n; c++)
            column[c] = (__m512bh)_mm512_loadu_si512(j + c * stride);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            __m512bh row;
            int pair;

            memcpy(&pair, i + 2 * r, sizeof(pair));
            row = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 3
            for (int c = 0; c < n; c++)
                sum[r][c] = _mm512_dpbf16_ps(sum[r][c], row, column[c]);
        }
        i += 2 * SYRK_PANEL;
        j += 2 * SYRK_PANEL;
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
        for (int c = 0; c < n; c++) {
            float *to = p + r * SYRK_TILE + c * SYRK_PANEL;

            if (add)
                sum[r][c] = _mm512_add_ps(sum[r][c], _mm512_loadu_ps(to));
            _mm512_storeu_ps(to, sum[r][c]);
        }
}

TARGET static void kernel(uint64_t panels, bool add, float *p,
                          const uint16_t *i, const uint16_t *j, uint64_t stride,
                          uint64_t n, const uint16_t *ahead)
{
    if (panels == 1)
        multiply(1, add, p, i, j, stride, n, ahead);
    else if (panels == 2)
        multiply(2, add, p, i, j, stride, n, ahead);
    else
        multiply(3, add, p, i, j, stride, n, ahead);
}
#else
bool syrk_usable(void)
{
    return false;
}

static bool interleave(uint16_t *to, const uint16_t *a, const uint16_t *b)
{
    (void)to, (void)a, (void)b;
    return false;
}

static bool complete(uint16_t *to, const uint16_t *b)
{
    (void)to, (void)b;
    return false;
}

static void kernel(uint64_t panels, bool add, float *p, const uint16_t *i,
                   const uint16_t *j, uint64_t stride, uint64_t n,
                   const uint16_t *ahead)
{
    (void)panels, (void)add, (void)p, (void)i, (void)j, (void)stride, (void)n;
    (void)ahead;
}
#endif

/* Of a panel, n columns of tokens t.. as pairs: a token at an odd place belongs
 * to the pair that is there. */
static bool pack_panel(uint16_t *to, bool odd, const uint16_t *x,
                       uint64_t tokens, uint64_t cols, uint64_t n)
{
    static const uint16_t none[SYRK_PANEL];
    uint16_t a[SYRK_PANEL] = { 0 }, b[SYRK_PANEL] = { 0 };
    bool good = true;

    for (uint64_t t = 0; t < tokens; t += 2 - odd, odd = false) {
        const uint16_t *from = x + t * cols;
        const uint16_t *next = t + 1 < tokens ? from + cols : none;

        if (n < SYRK_PANEL) {
            memcpy(a, from, n * sizeof(*a));
            memcpy(b, next, n * sizeof(*b));
            from = a;
            next = b;
        }
        good &= odd ? complete(to, from) : interleave(to, from, next);
        to += 2 * SYRK_PANEL;
    }
    return good;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Ask for what the next piece of a panel reads and writes: too many streams to
 * be foreseen. */
static void ahead(const uint16_t *x, uint64_t cols, uint64_t n, uint16_t *to)
{
    for (uint64_t t = 0; t < n; t++)
        __builtin_prefetch(x + t * cols);
    for (uint64_t t = 0; t < n; t += 2)
        __builtin_prefetch(to + t * SYRK_PANEL, 1);
}

bool syrk_pack(uint16_t *packed, uint64_t room, uint64_t first,
               const uint16_t *x, uint64_t tokens, uint64_t cols,
               uint64_t begin, uint64_t end)
{
    uint64_t stride = stride_of(room);
    bool good = true;

    for (uint64_t t = 0; t < tokens;) { /* pieces, each read by lines */
        uint64_t at = first + t, n = PACK - at % 2;

        n = n < tokens - t ? n : tokens - t;
        for (uint64_t p = begin; p < end; p++) {
            uint64_t c = p * SYRK_PANEL, width = cols - c;

            ahead(x + (t + n) * cols + c, cols,
                  t + n < tokens ? least(tokens - t - n, PACK) : 0,
                  packed + p * stride + (at + n) / 2 * 2 * SYRK_PANEL);

            good &= pack_panel(packed + p * stride + at / 2 * 2 * SYRK_PANEL,
                               at % 2, x + t * cols + c, n, cols,
                               width < SYRK_PANEL ? width : SYRK_PANEL);
        }
        t += n;
    }
    return good;
}

/* A piece of the tokens, of the panels that a tile reads. */
struct piece {
    const uint16_t *row, *column;
    uint64_t stride, rows, columns; /* panels */
};

/* What kernel number m asks for: a part of a panel of the next piece. */
static const uint16_t *part_of(const struct piece *x, uint64_t m)
{
    uint64_t panel = m / STEP % (x->rows + x->columns);
    const uint16_t *from = panel < x->rows ?
                               x->row + panel * x->stride :
                               x->column + (panel - x->rows) * x->stride;

    return from + m % STEP * (DEPTH / STEP) * 2 * SYRK_PANEL;
}

void syrk_tile(float *p, const uint16_t *packed, uint64_t room, uint64_t tokens,
               uint64_t i, uint64_t j, uint64_t rows, uint64_t cols)
{
    uint64_t pairs = pairs_of(tokens), stride = stride_of(room);
    struct piece x = { .row = packed + i / SYRK_PANEL * stride,
                       .column = packed + j / SYRK_PANEL * stride,
                       .stride = stride,
                       .rows = syrk_panels(rows),
                       .columns = syrk_panels(cols) };
    bool diagonal = i == j;

    for (uint64_t t = 0; t < pairs; t += DEPTH) {
        uint64_t n = pairs - t < DEPTH ? pairs - t : DEPTH, m = 0;
        const uint16_t *a = x.row, *b = x.column;

        if (n < pairs - t) {
            x.row += DEPTH * 2 * SYRK_PANEL;
            x.column += DEPTH * 2 * SYRK_PANEL;
        }
        for (uint64_t c = 0; c < cols; c += COLS)
            for (uint64_t r = diagonal ? c : 0; r < rows; r += ROWS) {
                uint64_t last = diagonal && r < c + COLS ? r : cols - 1;

                kernel(
                    (last - c) / SYRK_PANEL + 1, t > 0, p + r * SYRK_TILE + c,
                    a + r / SYRK_PANEL * stride + r % SYRK_PANEL * 2,
                    b + c / SYRK_PANEL * stride, stride, n, part_of(&x, m++));
            }
    }
}
