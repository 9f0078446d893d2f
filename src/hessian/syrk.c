/* syrk.c - see syrk.h.
 *
 * The kernel makes 8 x 48 of a tile in 24 registers; for each pair of tokens it
 * loads three vectors and eight broadcasts for 24 products of pairs.  Pieces of
 * DEPTH pairs keep both sides in the caches, and their sums are added, which
 * makes the rounding error of a long sum smaller: 1e-6 instead of 9e-6. */
#include "hessian/syrk.h"

#include <string.h>

enum { ROWS = 8, COLS = 48, DEPTH = 128, PACK = 16 };

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

#define EACH_ROW(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7)
#define CLEAR(r)    __m512 a##r = zero, b##r = zero, c##r = zero;
#define STEP(r)                                                                \
    memcpy(&pair, i + 2 * (r), sizeof(pair));                                  \
    y = (__m512bh)_mm512_set1_epi32(pair);                                     \
    a##r = _mm512_dpbf16_ps(a##r, y, u);                                       \
    b##r = _mm512_dpbf16_ps(b##r, y, v);                                       \
    c##r = _mm512_dpbf16_ps(c##r, y, w);
#define ADD(at, sum)                                                           \
    _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), sum))
#define STORE(r)                                                               \
    ADD(p + r * SYRK_TILE, a##r);                                              \
    ADD(p + r * SYRK_TILE + 16, b##r);                                         \
    ADD(p + r * SYRK_TILE + 32, c##r);

/* p[8][48] += i[n pairs][8 columns] * j[n pairs][3 panels, stride apart] */
TARGET static void kernel(float *p, const uint16_t *i, const uint16_t *j,
                          uint64_t stride, uint64_t n)
{
    const __m512 zero = _mm512_setzero_ps();

    EACH_ROW(CLEAR)
    for (uint64_t t = 0; t < n; t++) {
        __m512bh u = (__m512bh)_mm512_loadu_si512(j);
        __m512bh v = (__m512bh)_mm512_loadu_si512(j + stride);
        __m512bh w = (__m512bh)_mm512_loadu_si512(j + 2 * stride), y;
        int pair;

        EACH_ROW(STEP)
        i += 2 * SYRK_PANEL;
        j += 2 * SYRK_PANEL;
    }
    EACH_ROW(STORE)
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

static void kernel(float *p, const uint16_t *i, const uint16_t *j,
                   uint64_t stride, uint64_t n)
{
    (void)p, (void)i, (void)j, (void)stride, (void)n;
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

            good &= pack_panel(packed + p * stride + at / 2 * 2 * SYRK_PANEL,
                               at % 2, x + t * cols + c, n, cols,
                               width < SYRK_PANEL ? width : SYRK_PANEL);
        }
        t += n;
    }
    return good;
}

void syrk_tile(float *p, const uint16_t *packed, uint64_t room, uint64_t tokens,
               uint64_t i, uint64_t j, uint64_t rows, uint64_t cols)
{
    uint64_t pairs = pairs_of(tokens), stride = stride_of(room);

    memset(p, 0, SYRK_TILE * SYRK_TILE * sizeof(*p));
    for (uint64_t t = 0; t < pairs; t += DEPTH) {
        uint64_t n = pairs - t < DEPTH ? pairs - t : DEPTH;
        const uint16_t *from = packed + t * 2 * SYRK_PANEL;

        for (uint64_t c = 0; c < cols; c += COLS)
            for (uint64_t r = i == j ? c / ROWS * ROWS : 0; r < rows; r += ROWS)
                kernel(p + r * SYRK_TILE + c,
                       from + (i + r) / SYRK_PANEL * stride +
                           (i + r) % SYRK_PANEL * 2,
                       from + (j + c) / SYRK_PANEL * stride, stride, n);
    }
}
