/* bf16_gemm.c - see bf16_gemm.h.
 *
 * Loops: blocks of inputs, then strips of rows of x, then panels of W.  A
 * block of W (tile_cols columns) stays in the second-level cache while all
 * strips pass; a strip stays in the first-level cache: it is copied to a buffer and
 * its rows' parts of the next strip are asked for, or it is packed already, then the
 * panels prefetch the next one into the second level.
 * The first strips prefetch the next block of W. */
#include "common/math/bf16_gemm.h"

#include <string.h>

#include "common/math/dtype.h"
#include "common/math/threads.h"

enum {
    COLS = GEMM_COLS,
    SPARE = 32, /* padding of a strip's rows: they map to different cache
                 * sets */
    /* A panel has 2 cache lines per pair; a strip prefetches one line for
     * KERNEL_AHEAD pairs, so so many strips prefetch a whole panel. */
    AHEAD_STRIPS = 2 * KERNEL_AHEAD,
    STRIP_STEP = 32 /* inputs of a step of packed x */
};

int64_t bf16_gemm_group(void)
{
    return bf16_kernel()->tile_cols;
}

int64_t bf16_gemm_depth(int64_t k)
{
    int64_t step = 2 * bf16_kernel()->step;

    return (k + step - 1) / step * step;
}

static int64_t panels_of(int64_t n)
{
    return (n + COLS - 1) / COLS;
}

size_t bf16_gemm_packed(int64_t n, int64_t k)
{
    return (size_t)(panels_of(n) * COLS * bf16_gemm_depth(k));
}

/* Inputs of a block: blocks are equal but for the last one. */
static int64_t block_of(int64_t depth)
{
    int64_t most = bf16_kernel()->depth, blocks = (depth + most - 1) / most;
    int64_t n = (depth + blocks - 1) / blocks;

    return (n + SPARE - 1) / SPARE * SPARE;
}

/* ---- packing ---- */

/* Pack inputs at..at+len-1 of n <= COLS rows as pairs: 32-bit words are
 * moved. */
static void pack_piece(uint16_t *to, const uint16_t *w, int64_t n, int64_t k,
                       int64_t at, int64_t len)
{
    enum { STEP = 16 };
    int64_t there = k - at < len ? k - at : len;

    if (n < COLS || there < len)
        memset(to, 0, (size_t)(COLS * len) * sizeof(*to));
    w += at;
    for (int64_t t0 = 0; t0 < there / 2; t0 += STEP) {
        int64_t t1 = t0 + STEP < there / 2 ? t0 + STEP : there / 2;

        for (int64_t r = 0; r < n; r++)
            for (int64_t t = t0; t < t1; t++)
                memcpy(to + (t * COLS + r) * 2, w + r * k + t * 2,
                       2 * sizeof(*to));
    }
    for (int64_t r = 0; r < n && there % 2; r++)
        to[(there / 2 * COLS + r) * 2] = w[r * k + there - 1];
}

void bf16_gemm_pack(uint16_t *to, const uint16_t *w, int64_t n, int64_t k,
                    int64_t begin, int64_t end)
{
    int64_t depth = bf16_gemm_depth(k), block = block_of(depth), len;
    int64_t panels = panels_of(n);

    for (int64_t at = 0; at < depth; at += len) {
        len = depth - at < block ? depth - at : block;
        for (int64_t p = begin; p < end; p++)
            pack_piece(to + (at * panels + p * len) * COLS, w + p * COLS * k,
                       n - p * COLS < COLS ? n - p * COLS : COLS, k, at, len);
    }
}

bool bf16_gemm_strips(void)
{
    return bf16_kernel()->rows == GEMM_STRIP;
}

size_t bf16_gemm_strips_packed(int64_t m, int64_t k)
{
    int64_t strips = (m + GEMM_STRIP - 1) / GEMM_STRIP;

    return (size_t)(strips * GEMM_STRIP * bf16_gemm_depth(k));
}

struct packing {
    uint16_t *to;
    const uint16_t *x;
    int64_t ldx, m, k;
};

static void pack_some(void *ctx, size_t begin, size_t end)
{
    const struct packing *j = ctx;
    int64_t depth = bf16_gemm_depth(j->k);

    for (int64_t s = (int64_t)begin; s < (int64_t)end; s++)
        for (int64_t at = 0; at < depth; at += STRIP_STEP) {
            int64_t n = j->k - at < STRIP_STEP ? j->k - at : STRIP_STEP;
            uint16_t *step = j->to + s * GEMM_STRIP * depth + at * GEMM_STRIP;

            for (int64_t i = 0; i < GEMM_STRIP; i++, step += STRIP_STEP) {
                int64_t r = s * GEMM_STRIP + i;

                if (r < j->m && n == STRIP_STEP) {
                    memcpy(step, j->x + r * j->ldx + at,
                           STRIP_STEP * sizeof(*step));
                    continue;
                }
                memset(step, 0, STRIP_STEP * sizeof(*step));
                if (r < j->m)
                    memcpy(step, j->x + r * j->ldx + at,
                           (size_t)n * sizeof(*step));
            }
        }
}

void bf16_gemm_pack_strips(uint16_t *to, const uint16_t *x, int64_t ldx,
                           int64_t m, int64_t k)
{
    struct packing j = { to, x, ldx, m, k };

    threads_for((size_t)((m + GEMM_STRIP - 1) / GEMM_STRIP), 1, pack_some, &j);
}

/* ---- products ---- */

/* Inputs at..at+n-1 of all columns: one step of the outermost loop. */
struct block {
    const struct bf16_gemm *g;
    const struct bf16_kernel *kernel;
    int64_t depth, group; /* of the packed W */
    int64_t at, n, next;  /* next: inputs of the following block */
};

/* Address of this block's part of the panel of column c, and the number of
 * panels in its group. */
static const uint16_t *piece_of(const struct block *b, const uint16_t *packed,
                                int64_t c, int64_t *panels)
{
    int64_t begin = c / b->group * b->group, left = b->g->all - begin;

    *panels = panels_of(left < b->group ? left : b->group);
    return packed + begin * b->depth + b->at * *panels * COLS +
           (c - begin) * b->n;
}

/* Rows r.. of packed x, inputs of this block.  next: the next rows, or the first
 * ones of the next block. */
static struct kernel_strip packed_strip(const struct block *b, int64_t r)
{
    const struct bf16_gemm *g = b->g;
    int64_t depth = g->strip_depth ? g->strip_depth : b->depth;
    const uint16_t *p = g->strips + r * depth + b->at * GEMM_STRIP;
    const uint16_t *next = r + GEMM_STRIP < g->m ? p + GEMM_STRIP * depth :
                           b->next ? g->strips + (b->at + b->n) * GEMM_STRIP :
                                     NULL;

    return (struct kernel_strip){ p, STRIP_STEP * sizeof(*p),
                                  2 * GEMM_STRIP * sizeof(*p), next };
}

/* Copy rows r..r+m-1 of x, inputs of this block, into room as the kernel reads
 * them. */
static struct kernel_strip copied_strip(const struct block *b, int64_t r,
                                        int64_t m, void *room)
{
    const struct bf16_gemm *g = b->g;
    int64_t n = g->k - b->at < b->n ? g->k - b->at : b->n;
    int64_t ld = KERNEL_DEPTH_MAX + SPARE;
    uint16_t *h = room;
    float *f = room;

    for (int64_t i = 0; i < m; i++) {
        const uint16_t *x = g->x + (r + i) * g->ldx + b->at;
        /* of the strip that follows, or of the next block's first one */
        const uint16_t *next = r + i + m < g->m ? x + m * g->ldx :
                               b->next          ? x - r * g->ldx + b->n :
                                                  x;

        for (int64_t t = 0; t < n; t += STRIP_STEP)
            __builtin_prefetch(next + t, 0, 2);
        if (b->kernel->widens) {
            (void)!to_f32(f + i * ld, x, DT_BF16, (size_t)n);
            memset(f + i * ld + n, 0, (size_t)(b->n - n) * sizeof(*f));
        } else {
            memcpy(h + i * ld, x, (size_t)n * sizeof(*h));
            memset(h + i * ld + n, 0, (size_t)(b->n - n) * sizeof(*h));
        }
    }
    return b->kernel->widens ?
               (struct kernel_strip){ f, ld * (int64_t)sizeof(*f),
                                      2 * sizeof(*f), NULL } :
               (struct kernel_strip){ h, ld * (int64_t)sizeof(*h),
                                      2 * sizeof(*h), NULL };
}

/* The last n < COLS columns: the kernel writes full panels, so go through a
 * buffer. */
static void few_columns(const struct block *b, int rows, int64_t n, float *y,
                        const struct kernel_strip *s, const uint16_t *w,
                        enum kernel_sum how)
{
    int64_t ldy = b->g->ldy;
    float part[KERNEL_ROWS_MAX * COLS] = { 0 };

    for (int r = 0; r < rows; r++)
        memcpy(part + r * COLS, y + r * ldy, (size_t)n * sizeof(*y));
    b->kernel->run(rows, part, COLS, s, w, b->n / 2, how, w);
    for (int r = 0; r < rows; r++)
        memcpy(y + r * ldy, part + r * COLS, (size_t)n * sizeof(*y));
}

/* The lines of the next block that this strip prefetches while it uses panel
 * w: the next block of the group lies behind all panels of this one. */
static const uint16_t *prefetch_of(const struct block *b, int64_t strip,
                                   int64_t c, const uint16_t *w, int64_t panels)
{
    int64_t in = c % b->group;

    if (!b->next || strip >= AHEAD_STRIPS)
        return w;
    return w - in * b->n + panels * COLS * b->n + in * b->next +
           strip * (b->next / AHEAD_STRIPS) * COLS;
}

/* The part of the next strip that panel number n prefetches. */
static const uint16_t *part_of(const struct block *b, const uint16_t *strip,
                               int64_t n)
{
    enum {
        PARTS = STRIP_STEP * GEMM_STRIP * sizeof(*strip) / KERNEL_AHEAD_STRIP
    };

    return strip && n < PARTS ? strip + n * b->n * GEMM_STRIP / PARTS : NULL;
}

/* before: panels of the strip that other columns had. */
static void run_columns(const struct block *b, int64_t r, int rows,
                        struct kernel_strip s, const uint16_t *packed, float *y,
                        int64_t before)
{
    const struct bf16_gemm *g = b->g;
    enum kernel_sum how = b->at || g->continues ? SUM_CONTINUE : SUM_NEW;
    int64_t strip = r / b->kernel->rows, panels;
    const uint16_t *next = s.next;

    for (int64_t c = 0; c < g->n; c += COLS) {
        const uint16_t *w = piece_of(b, packed, g->first + c, &panels);

        s.next = part_of(b, next, before + c / COLS);
        if (g->n - c < COLS)
            few_columns(b, rows, g->n - c, y + c, &s, w, how);
        else
            b->kernel->run(rows, y + c, g->ldy, &s, w, b->n / 2, how,
                           prefetch_of(b, strip, g->first + c, w, panels));
    }
}

static void run_strip(const struct block *b, int64_t r, int rows, void *room)
{
    const struct bf16_gemm *g = b->g;
    struct kernel_strip s =
        g->strips ? packed_strip(b, r) : copied_strip(b, r, rows, room);
    float *y = g->y + r * g->ldy;

    run_columns(b, r, rows, s, g->packed, y, 0);
    if (g->second)
        run_columns(b, r, rows, s, g->second, y + g->n, panels_of(g->n));
}

void bf16_gemm(const struct bf16_gemm *g)
{
    union {
        uint16_t h[KERNEL_ROWS_MAX * (KERNEL_DEPTH_MAX + SPARE)];
        float f[KERNEL_ROWS_MAX / 2 * (KERNEL_DEPTH_MAX + SPARE)];
    } room __attribute__((aligned(64)));
    struct block b = { .g = g, .kernel = bf16_kernel() };
    int64_t most;

    b.depth = bf16_gemm_depth(g->k);
    b.group = bf16_gemm_group();
    most = block_of(b.depth);
    bf16_kernel_begin();
    for (b.at = 0; b.at < b.depth; b.at += b.n) {
        b.n = b.depth - b.at < most ? b.depth - b.at : most;
        b.next = b.depth - b.at - b.n < most ? b.depth - b.at - b.n : most;
        for (int64_t r = 0; r < g->m; r += b.kernel->rows)
            run_strip(
                &b, r,
                (int)(g->m - r < b.kernel->rows ? g->m - r : b.kernel->rows),
                &room);
    }
    bf16_kernel_end();
}
