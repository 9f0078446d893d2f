/* bf16_gemm.h - matrix product y = x Wᵀ of bf16 x and W with sums in f32, on
 * any CPU.
 *
 * x [m, k] row-major, W [n, k] row-major, y [m, n] row-major.  W is packed
 * once:
 *
 *     groups    of bf16_gemm_group() rows of W (columns of y); in each
 *     blocks    of inputs (a part of k); in each
 *     panels    of GEMM_COLS rows of W in the format of bf16_kernel.h
 *
 * so that what one tile of y reads from W is contiguous.  The last panel and
 * the last block are padded with zeros.
 *
 * Where bf16_gemm_strips() is true (amx), a product of many columns is faster with x
 * packed, too:
 *
 *     strips    of GEMM_STRIP = 32 rows of x; in each
 *     steps     of 32 inputs: 32 rows of 64 bytes, which are two tiles
 *
 * padded with zeros.  Else, and without it, each product copies its rows of x.
 *
 * Each sum runs over the inputs in ascending order, so an element of y depends
 * only on its row of x, on W, and on the CPU level as bf16_kernel.h says: not
 * on m, tiles or threads. */
#ifndef FORGE_BF16_GEMM_H
#define FORGE_BF16_GEMM_H

#include "common/math/bf16_kernel.h"

/* Rows of W in a panel, of x in a strip. */
enum { GEMM_COLS = KERNEL_COLS, GEMM_STRIP = KERNEL_ROWS_MAX };

/* Rows of W in a group: the kernel's tile_cols. */
int64_t bf16_gemm_group(void);
/* k rounded up to the kernel's step: inputs of a packed row. */
int64_t bf16_gemm_depth(int64_t k);
/* Elements (bf16) of W [n, k] packed.  The group that begins at row r begins
 * at element r * bf16_gemm_depth(k). */
size_t bf16_gemm_packed(int64_t n, int64_t k);
/* Pack panels begin..end-1 of one group, whose rows are w [n, k].  to: start
 * of the group in the packed W; does not overlap w. */
void bf16_gemm_pack(uint16_t *to, const uint16_t *w, int64_t n, int64_t k,
                    int64_t begin, int64_t end);

/* Whether products read x in strips. */
bool bf16_gemm_strips(void);
/* Elements (bf16) of x [m, k] in strips.  The strip of row r, a multiple of
 * GEMM_STRIP, begins at element r * bf16_gemm_depth(k). */
size_t bf16_gemm_strips_packed(int64_t m, int64_t k);
/* Pack x [m, k], whose leading dimension is ldx, by all threads.  to: 64-aligned. */
void bf16_gemm_pack_strips(uint16_t *to, const uint16_t *x, int64_t ldx,
                           int64_t m, int64_t k);

/* Arguments of one product. */
struct bf16_gemm {
    const uint16_t *x; /* [m, k], leading dimension ldx */
    int64_t ldx, m, k;
    const uint16_t *packed; /* all of W, packed */
    int64_t all;            /* rows of W */
    int64_t first, n;       /* columns first..first+n-1 of x Wᵀ are computed;
                             * first is a multiple of GEMM_COLS */
    float *y;               /* [m, n], leading dimension ldy */
    int64_t ldy;
    const uint16_t *second; /* a second packed W of the same shape, or NULL:
                             * the same columns of its product follow, y is
                             * [m, 2 n] */
    bool continues;         /* sums start from y instead of 0, to continue
                             * over further inputs */
    const uint16_t *strips; /* the strips of x, from the first row on, or
                             * NULL: x is read */
    /* bf16_gemm_depth() of all inputs of x, if only some of them, from a multiple of
     * 32 on, are multiplied; `strips` points at these then.  Else 0. */
    int64_t strip_depth;
};
/* Compute it in the calling thread.  Fastest for m up to bf16_kernel()'s
 * tile_rows and n up to its tile_cols (of both W together). */
void bf16_gemm(const struct bf16_gemm *g);

#endif
