/* cholesky.c - see cholesky.h.
 *
 * Left-looking: before a block of columns is made, everything to its left is
 * taken off it, by the kernel that the solver uses.  Blocks of BLOCK columns;
 * products in pieces of DEPTH columns, so that a piece of the rows above stays
 * in the second-level cache for all rows below, and one of 48 rows in the
 * first. */
#include "gptq/cholesky.h"

#include <math.h>
#include <stdbool.h>

#include "common/threads.h"

enum {
    ROWS = CHOLESKY_ROWS,
    COLS = FACTOR_PANEL,
    BLOCK = 4 * ROWS,
    DEPTH = 128,
    GROUP = 8 /* panels whose sums stay in the second-level cache */
};

struct step {
    float *a;
    const struct solve_kernels *k;
    uint64_t c0, c1; /* the block's columns */
};

static float *column(float *a, uint64_t q, uint64_t c)
{
    return a + cholesky_at(q) + c * ROWS;
}

/* Column c of the factor, from row `row` on. */
static const float *right(float *a, uint64_t row, uint64_t c)
{
    return column(a, row / ROWS, c) + row % ROWS;
}

/* While column c of panel q is made, ask for a share of what comes after: the
 * next panel's piece, and the block's own next one.  Their streams are too
 * short for the hardware to foresee. */
static void prefetch(const struct step *s, uint64_t q, uint64_t k, uint64_t c,
                     bool first)
{
    uint64_t lines = DEPTH * ROWS / 16, n = (s->c1 - s->c0) / COLS;
    uint64_t i = (c - s->c0) / COLS;
    const float *next = column(s->a, q + 1, k);

    if (k + DEPTH > s->c0)
        return;
    for (uint64_t j = lines * i / n; j < lines * (i + 1) / n; j++)
        __builtin_prefetch(next + 16 * j, 0, 2);
    if (k + 2 * DEPTH > s->c0 || !first)
        return;
    next = column(s->a, c / ROWS, k + DEPTH) + c % ROWS / COLS * DEPTH * COLS;
    for (uint64_t j = 0; j < DEPTH * COLS / 16; j++)
        __builtin_prefetch(next + 16 * j, 0, 2);
}

/* Take columns 0..c0-1 off the block, in panels from `first` on. */
static void update(const struct step *s, uint64_t first, uint64_t end)
{
    for (uint64_t k = 0; k < s->c0; k += DEPTH) {
        uint64_t n = s->c0 - k < DEPTH ? s->c0 - k : DEPTH;

        for (uint64_t q = first; q < end; q++) {
            uint64_t last = (q + 1) * ROWS < s->c1 ? (q + 1) * ROWS : s->c1;

            for (uint64_t c = s->c0; c < last; c += COLS) {
                const float *l = right(s->a, c + COLS < last ? c + COLS : c, k);

                if (q + 1 < end)
                    prefetch(s, q, k, c, q == first);
                for (uint64_t j = 0; j < 32; j++)
                    __builtin_prefetch(l + j * ROWS);
                s->k->subtract(column(s->a, q, c), column(s->a, q, k),
                               right(s->a, c, k), n);
            }
        }
    }
}

static void update_panels(void *ctx, size_t begin, size_t end)
{
    const struct step *s = ctx;
    uint64_t q0 = s->c0 / ROWS;

    for (uint64_t q = begin; q < end; q += GROUP)
        update(s, q0 + q, q0 + (end - q < GROUP ? end : q + GROUP));
}

/* Columns c0..c1-1 of panel q, whose own triangle lies further right. */
static void solve_columns(const struct step *s, uint64_t q, uint64_t c1)
{
    for (uint64_t c = s->c0; c < c1; c += COLS) {
        s->k->subtract(column(s->a, q, c), column(s->a, q, s->c0),
                       right(s->a, c, s->c0), c - s->c0);
        s->k->divide(column(s->a, q, c), right(s->a, c, c));
    }
}

static void solve_panels(void *ctx, size_t begin, size_t end)
{
    const struct step *s = ctx;

    for (uint64_t q = begin; q < end; q++)
        solve_columns(s, s->c1 / ROWS + q, s->c1);
}

/* Columns c..c+7 of the panel in which their own rows lie, all else being taken
 * off.  Rows above the diagonal get numbers without meaning, which reach only
 * others like them. */
static int finish_columns(float *x, uint64_t row)
{
    for (uint64_t c = 0; c < COLS; c++) {
        float *to = x + c * ROWS, pivot;

        for (uint64_t k = 0; k < c; k++) {
            float l = x[k * ROWS + row + c];

            for (uint64_t r = 0; r < ROWS; r++)
                to[r] -= x[k * ROWS + r] * l;
        }
        pivot = to[row + c];
        if (!(pivot > 0) || !isfinite(pivot))
            return 1;
        pivot = sqrtf(pivot);
        for (uint64_t r = 0; r < ROWS; r++)
            to[r] /= pivot;
        to[row + c] = pivot;
    }
    return 0;
}

static int solve_triangle(const struct step *s, uint64_t q)
{
    uint64_t first = q * ROWS;

    solve_columns(s, q, first);
    for (uint64_t c = first; c < first + ROWS; c += COLS) {
        s->k->subtract(column(s->a, q, c), column(s->a, q, s->c0),
                       right(s->a, c, s->c0), c - s->c0);
        if (finish_columns(column(s->a, q, c), c - first))
            return 1;
    }
    return 0;
}

int cholesky(float *a, uint64_t panels)
{
    struct step s = { .a = a, .k = solve_kernels_best() };

    for (uint64_t q = 0; q < panels; q = s.c1 / ROWS) {
        s.c0 = q * ROWS;
        s.c1 = (q + BLOCK / ROWS < panels ? q + BLOCK / ROWS : panels) * ROWS;
        threads_for(panels - q, 1, update_panels, &s);
        for (; q < s.c1 / ROWS; q++)
            if (solve_triangle(&s, q))
                return 1;
        threads_for(panels - q, 1, solve_panels, &s);
    }
    return 0;
}
