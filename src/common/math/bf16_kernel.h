/* bf16_kernel.h - micro-kernels of bf16 products with sums in f32, one for
 * each CPU level (cpu.h).  Used by bf16_gemm.h and by the Hessians
 * (hessian/syrk.h).
 *
 * A kernel computes y [rows, KERNEL_COLS] from a strip (rows of the left
 * operand) and a panel (KERNEL_COLS = 32 rows of the right one).  A panel
 * stores pairs of neighbouring inputs:
 *
 *     pair t:  w[0][2t] w[0][2t+1] w[1][2t] w[1][2t+1] ... w[31][2t+1]
 *
 * A product of two bf16 is exact in f32, so only the order of additions
 * matters.  Of each pair the odd product is added first, then the even one,
 * each rounded to f32, as vdpbf16ps does (Intel SDM): plain, avx2, avx512,
 * avx512bf16 and neon give equal bytes.  amx (TDPBF16PS) adds 16 odd and 16
 * even products separately, then the two sums.  vdpbf16ps and amx take numbers
 * below 2^-126 as 0. */
#ifndef FORGE_BF16_KERNEL_H
#define FORGE_BF16_KERNEL_H

#include "common/base.h"

enum {
    KERNEL_COLS = 32,       /* columns of y; rows of W in a panel */
    KERNEL_ROWS_MAX = 32,   /* rows of a strip, of any kernel */
    KERNEL_DEPTH_MAX = 384, /* inputs of a block, of any kernel; a multiple
                             * of 32 */
    KERNEL_AHEAD = 4,       /* pairs per cache line that a kernel prefetches */
    KERNEL_AHEAD_STRIP = 128
};

/* How the result is combined with what y holds. */
enum kernel_sum {
    SUM_NEW,      /* y = sum */
    SUM_CONTINUE, /* sums start from y: same bits as one longer sum */
    SUM_ADD       /* y += sum: a long sum in pieces has smaller rounding errors
                * (amx: as SUM_CONTINUE) */
};

/* Rows of the left operand: pair t of row r is at byte p + r * row + t * step;
 * it is two bf16, or two f32 if the kernel widens.  amx: each 16 pairs from a
 * multiple of 16 on are 64 contiguous bytes, and memory for 32 rows must be
 * readable. */
struct kernel_strip {
    const void *p;
    int64_t row, step;
    const void *next; /* hint: amx prefetches KERNEL_AHEAD_STRIP bytes of it
                       * for every 16 pairs; NULL: none */
};

/* A micro-kernel and the block sizes that suit it. */
struct bf16_kernel {
    int rows;    /* most rows of a strip */
    int step;    /* the number of pairs must be a multiple of it (pad with
                  * zeros) */
    bool widens; /* the strip is f32, not bf16 */
    /* Blocking: a strip and a panel of `depth` inputs fit into the first-level
     * cache; y [tile_rows, tile_cols] with its part of the packed W of `depth`
     * inputs into the second-level cache. */
    int depth, tile_rows, tile_cols;
    /* rows: 1..the field above.  y has leading dimension ldy.  ahead: hint,
     * one cache line from here on is prefetched for every KERNEL_AHEAD
     * pairs. */
    void (*run)(int rows, float *y, int64_t ldy, const struct kernel_strip *a,
                const uint16_t *panel, int64_t pairs, enum kernel_sum how,
                const void *ahead);
};

/* The kernel of cpu_level(). */
const struct bf16_kernel *bf16_kernel(void);
/* Bracket the use of kernels in each thread: amx configures and releases the
 * tile registers. */
void bf16_kernel_begin(void);
void bf16_kernel_end(void);

#endif
