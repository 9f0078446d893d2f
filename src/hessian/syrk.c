/* syrk.c - see syrk.h.
 *
 * A tile is computed in pieces of DEPTH token pairs, whose operands stay in the
 * caches.  Adding the pieces' sums also lowers the rounding error of a long
 * sum, from 9e-6 to 1e-6.  Panels above the diagonal are left out.  Each kernel
 * call prefetches a part of the next piece, one cache line for every fourth
 * pair: more prefetches at once would delay the kernel's own loads (by a tenth
 * of the time). */
#include "hessian/syrk.h"

#include <string.h>

#include "common/math/cpu.h"
#include "common/math/dtype.h"
#include "common/math/threads.h"

enum { THREAD_BYTES = 2 << 20 }; /* least work of packing for one thread */
enum {
    DEPTH = 128, /* pairs of a piece */
    PACK = 32,
    STEP = 16 /* pairs in one step of a tile kernel's left operand */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t pairs_of(uint64_t tokens)
{
    return (tokens + 1) / 2;
}

/* Pairs that kernels read: rounded up to whole steps. */
static uint64_t pairs_read(uint64_t tokens)
{
    uint64_t step = (uint64_t)bf16_kernel()->step;

    return (pairs_of(tokens) + step - 1) / step * step;
}

static bool has_left(void)
{
    return bf16_kernel()->step > 1;
}

/* Elements of a panel's right operand.  Never a power of two, so that panels do
 * not map to the same cache sets. */
static uint64_t pairs_room(uint64_t room)
{
    return (pairs_read(room) + 2) * 2 * SYRK_PANEL;
}

/* Elements from one panel to the next. */
static uint64_t stride_of(uint64_t room)
{
    return pairs_room(room) * (has_left() ? 2 : 1);
}

uint64_t syrk_panels(uint64_t cols)
{
    return (cols + SYRK_PANEL - 1) / SYRK_PANEL;
}

uint64_t syrk_packed(uint64_t room, uint64_t cols)
{
    return syrk_panels(cols) * stride_of(room);
}

uint64_t syrk_packed_at(uint64_t room, uint64_t panel)
{
    return panel * stride_of(room);
}

size_t syrk_pack_grain(uint64_t tokens)
{
    return THREAD_BYTES / (tokens * SYRK_PANEL * sizeof(uint16_t)) + 1;
}

/* ---- packing ---- */

typedef uint16_t half_row __attribute__((vector_size(32), aligned(2)));
typedef uint32_t half_pairs __attribute__((vector_size(64), aligned(4)));

/* to = 32 columns of the tokens a and b, interleaved; *bad gets the sign bit of
 * each element that is not finite: an exponent of ones carries into it.  (Compilers
 * compare the lanes of vectors wider than the CPU's one by one.) */
static inline __attribute__((always_inline)) void
interleave(uint16_t *to, const uint16_t *a, const uint16_t *b, half_pairs *bad)
{
    for (int i = 0; i < SYRK_PANEL; i += SYRK_PANEL / 2) {
        half_pairs x =
            __builtin_convertvector(*(const half_row *)(a + i), half_pairs);
        half_pairs y =
            __builtin_convertvector(*(const half_row *)(b + i), half_pairs);
        half_pairs both = x | y << 16;

        *(half_pairs *)(void *)(to + 2 * i) = both;
        *bad |= (both & 0x7f807f80) + 0x00800080;
    }
}

/* a = the first token of a pair. */
static inline void first_of(uint16_t *a, const uint16_t *pairs)
{
    for (int i = 0; i < SYRK_PANEL; i++)
        a[i] = pairs[2 * i];
}

/* Pack n columns of a panel as pairs.  odd: x's first token completes the pair
 * at `to`.  False: an element is not finite. */
static inline __attribute__((always_inline)) bool
pack_pairs(uint16_t *to, bool odd, const uint16_t *x, uint64_t tokens,
           uint64_t cols, uint64_t n)
{
    static const uint16_t none[SYRK_PANEL];
    uint16_t a[SYRK_PANEL] = { 0 }, b[SYRK_PANEL] = { 0 };
    uint16_t begun[SYRK_PANEL];
    half_pairs bad = { 0 };
    uint32_t any = 0;

    for (uint64_t t = 0; t < tokens; t += 2 - odd, odd = false) {
        const uint16_t *from = x + t * cols;
        const uint16_t *next = t + 1 < tokens ? from + cols : none;

        if (n < SYRK_PANEL) {
            memcpy(a, from, n * sizeof(*a));
            memcpy(b, next, n * sizeof(*b));
            from = a;
            next = b;
        }
        if (odd) {
            first_of(begun, to);
            next = from;
            from = begun;
        }
        interleave(to, from, next, &bad);
        to += 2 * SYRK_PANEL;
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(any); i++)
        any |= bad[i];
    return !(any & 0x80008000);
}

#ifdef __x86_64__
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) static bool
pack_avx512(uint16_t *to, bool odd, const uint16_t *x, uint64_t tokens,
            uint64_t cols, uint64_t n)
{
    return pack_pairs(to, odd, x, tokens, cols, n);
}

__attribute__((target("avx2"))) static bool pack_avx2(uint16_t *to, bool odd,
                                                      const uint16_t *x,
                                                      uint64_t tokens,
                                                      uint64_t cols, uint64_t n)
{
    return pack_pairs(to, odd, x, tokens, cols, n);
}
#endif

static bool pack_panel(uint16_t *to, bool odd, const uint16_t *x,
                       uint64_t tokens, uint64_t cols, uint64_t n)
{
#ifdef __x86_64__
    if (cpu_uses(CPU_AVX512))
        return pack_avx512(to, odd, x, tokens, cols, n);
    if (cpu_uses(CPU_AVX2))
        return pack_avx2(to, odd, x, tokens, cols, n);
#endif
    return pack_pairs(to, odd, x, tokens, cols, n);
}

/* Prefetch the next piece of a panel, source and destination: more streams than
 * the hardware prefetcher follows. */
static void prefetch_piece(const uint16_t *x, uint64_t cols, uint64_t n,
                           uint16_t *to)
{
    for (uint64_t t = 0; t < n; t++)
        __builtin_prefetch(x + t * cols);
    for (uint64_t t = 0; t < n; t++)
        __builtin_prefetch(to + t * SYRK_PANEL, 1);
}

bool syrk_pack(uint16_t *packed, uint64_t room, uint64_t first,
               const uint16_t *x, uint64_t tokens, uint64_t cols,
               uint64_t begin, uint64_t end)
{
    uint64_t stride = stride_of(room);
    bool good = true;

    for (uint64_t t = 0; t < tokens;) { /* pieces of up to PACK tokens */
        uint64_t at = first + t, n = PACK - at % 2;

        n = n < tokens - t ? n : tokens - t;
        for (uint64_t p = begin; p < end; p++) {
            uint64_t c = p * SYRK_PANEL, width = cols - c;

            prefetch_piece(x + (t + n) * cols + c, cols,
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

/* STEP pairs of a panel for the left operand of tile kernels: to[SYRK_PANEL
 * columns] [STEP pairs]. */
static void transpose(uint32_t *to, const uint32_t *from)
{
    for (int c = 0; c < SYRK_PANEL; c++)
        for (int t = 0; t < STEP; t++)
            to[c * STEP + t] = from[t * SYRK_PANEL + c];
}

struct preparing {
    uint16_t *packed;
    uint64_t room, tokens;
};

static void prepare_panels(void *ctx, size_t begin, size_t end)
{
    enum { PAIR = 2 * SYRK_PANEL };
    const struct preparing *j = ctx;
    uint64_t pairs = pairs_of(j->tokens), all = pairs_read(j->tokens);

    for (size_t p = begin; p < end; p++) {
        uint16_t *panel = j->packed + p * stride_of(j->room);
        uint16_t *left = panel + pairs_room(j->room);

        memset(panel + pairs * PAIR, 0, (all - pairs) * PAIR * sizeof(*panel));
        for (uint64_t t = 0; t < all; t += STEP)
            transpose((uint32_t *)(void *)(left + t * PAIR),
                      (const uint32_t *)(const void *)(panel + t * PAIR));
    }
}

void syrk_prepare(uint16_t *packed, uint64_t room, uint64_t tokens,
                  uint64_t panels)
{
    struct preparing j = { packed, room, tokens };

    if (has_left())
        threads_for(panels, 1, prepare_panels, &j);
}

/* ---- tiles ---- */

/* A piece of n token pairs, of the panels that a tile reads. */
struct piece {
    const struct bf16_kernel *kernel;
    const uint16_t *row, *column; /* first panels of the two operands */
    uint64_t stride;              /* elements from panel to panel */
    uint64_t rows, columns;       /* panels of either operand */
    uint64_t left;                /* offset of the left operand in a panel */
    uint64_t n;                   /* pairs */
};

/* The part of the next piece that kernel call number m prefetches. */
static const uint16_t *part_of(const struct piece *x, uint64_t m, bool last)
{
    /* a pair is two cache lines, and a call prefetches one line per four
     * pairs */
    enum { PARTS = 2 * KERNEL_AHEAD };
    uint64_t panel = m / PARTS % (x->rows + x->columns);
    const uint16_t *from = panel < x->rows ?
                               x->row + panel * x->stride :
                               x->column + (panel - x->rows) * x->stride;

    from += m % PARTS * (DEPTH / PARTS) * 2 * SYRK_PANEL;
    return last ? from : from + DEPTH * 2 * SYRK_PANEL;
}

/* Columns that are copied together, at most: all of a strip; kernels that need a
 * copy have at most half of KERNEL_ROWS_MAX rows. */
enum { AT_ONCE = KERNEL_ROWS_MAX / 2 };

/* Memory for a strip. */
struct strip_room {
    uint16_t pairs[AT_ONCE * 2 * DEPTH + 2 * AT_ONCE];
    float wide[AT_ONCE * 2 * DEPTH];
};

/* Copy columns of a panel from a on: `rows` of n pairs.  Those behind them may be
 * copied, too: that of a fixed size is a move. */
static void copy_columns(uint16_t *to, const uint16_t *a, uint64_t rows,
                         uint64_t n)
{
    enum { ALL = 2 * AT_ONCE * sizeof(*to) };

    for (uint64_t t = 0; t < n; t++, to += 2 * rows, a += 2 * SYRK_PANEL)
        if (rows <= AT_ONCE / 2)
            memcpy(to, a, ALL / 2);
        else
            memcpy(to, a, ALL);
}

/* The kernel's left operand: columns r..r+rows-1 of the piece, which may lie in
 * two panels, as the rows of a strip. */
static struct kernel_strip strip_of(const struct piece *x, uint64_t r,
                                    uint64_t rows, struct strip_room *room)
{
    bool widens = x->kernel->widens;
    size_t item = widens ? sizeof(float) : sizeof(uint16_t);
    uint64_t here = least(SYRK_PANEL - r % SYRK_PANEL, rows);
    const uint16_t *a = x->row + r / SYRK_PANEL * x->stride;
    const uint16_t *b = a + x->stride;
    uint16_t *to = room->pairs;

    if (has_left())
        return (struct kernel_strip){ a + x->left, STEP * 2 * sizeof(*a),
                                      SYRK_PANEL * 2 * sizeof(*a), NULL };
    a += r % SYRK_PANEL * 2;
    if (r % SYRK_PANEL + (rows <= AT_ONCE / 2 ? AT_ONCE / 2 : AT_ONCE) <=
        SYRK_PANEL)
        copy_columns(to, a, rows, x->n);
    else
        for (uint64_t t = 0; t < x->n; t++, to += 2 * rows) {
            memcpy(to, a, 2 * here * sizeof(*to));
            memcpy(to + 2 * here, b, 2 * (rows - here) * sizeof(*to));
            a += 2 * SYRK_PANEL;
            b += 2 * SYRK_PANEL;
        }
    if (widens)
        (void)!to_f32(room->wide, room->pairs, DT_BF16, 2 * rows * x->n);
    return (struct kernel_strip){ widens ? (void *)room->wide : room->pairs,
                                  (int64_t)(2 * item),
                                  (int64_t)(2 * rows * item), NULL };
}

static void run_piece(const struct piece *x, float *p, uint64_t rows,
                      uint64_t cols, bool diagonal, bool first, bool last)
{
    struct strip_room room __attribute__((aligned(64)));
    uint64_t step = (uint64_t)x->kernel->rows, m = 0;

    for (uint64_t r = 0; r < rows; r += step) {
        uint64_t n = least(rows - r, step);
        struct kernel_strip s = strip_of(x, r, n, &room);
        uint64_t end = diagonal ? least(cols, r + n) : cols;

        for (uint64_t c = 0; c < end; c += SYRK_PANEL)
            x->kernel->run((int)n, p + r * SYRK_TILE + c, SYRK_TILE, &s,
                           x->column + c / SYRK_PANEL * x->stride,
                           (int64_t)x->n, first ? SUM_NEW : SUM_ADD,
                           part_of(x, m++, last));
    }
}

void syrk_tile(float *p, const uint16_t *packed, uint64_t room, uint64_t tokens,
               uint64_t i, uint64_t j, uint64_t rows, uint64_t cols)
{
    uint64_t pairs = pairs_read(tokens), stride = stride_of(room);
    struct piece x = { .kernel = bf16_kernel(),
                       .row = packed + i / SYRK_PANEL * stride,
                       .column = packed + j / SYRK_PANEL * stride,
                       .stride = stride,
                       .left = pairs_room(room),
                       .rows = syrk_panels(rows),
                       .columns = syrk_panels(cols) };

    bf16_kernel_begin();
    for (uint64_t t = 0; t < pairs; t += DEPTH) {
        bool last = pairs - t <= DEPTH;

        x.n = least(pairs - t, DEPTH);
        run_piece(&x, p, rows, cols, i == j, t == 0, last);
        x.row += DEPTH * 2 * SYRK_PANEL;
        x.column += DEPTH * 2 * SYRK_PANEL;
    }
    bf16_kernel_end();
}
