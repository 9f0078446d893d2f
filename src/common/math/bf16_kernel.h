/* bf16_kernel.h - the innermost part of products of bf16 with sums in f32, once
 * for each level of CPU (cpu.h).
 *
 * A kernel makes rows x KERNEL_COLS of y from a strip of the left side and a
 * panel of the right one.  A panel holds pairs of neighbours along the sum:
 *
 *     pair t:  w[0][2t] w[0][2t+1] w[1][2t] w[1][2t+1] ... w[31][2t+1]
 *
 * bf16 x bf16 is exact in f32, so only the order of sums counts.  Of each pair
 * the odd product is added first, then the even one, each rounded to f32, as
 * vdpbf16ps does (Intel SDM): plain, avx2, avx512, avx512bf16 and neon give
 * equal bytes.  amx adds 16 odd and 16 even products apart, then their sum
 * (TDPBF16PS).  vdpbf16ps and amx take numbers below 2^-126 for 0. */
#ifndef FORGE_BF16_KERNEL_H
#define FORGE_BF16_KERNEL_H

#include "common/base.h"

enum {
    KERNEL_COLS = 32,       /* of y, and a panel's */
    KERNEL_ROWS_MAX = 32,   /* of any kernel */
    KERNEL_DEPTH_MAX = 384, /* multiples of 32 */
    KERNEL_AHEAD = 4        /* pairs for a line that is asked for */
};

/* What becomes of y. */
enum kernel_sum {
    SUM_NEW,   /* y = sum */
    SUM_GO_ON, /* the sum begins with y: as if it were one */
    SUM_ADD    /* y += sum: sums in pieces round less (amx: as SUM_GO_ON) */
};

/* Rows of the left side: pair t of row r at p + r * row + t * step bytes, two
 * bf16, where the kernel widens two f32.  For amx 16 pairs are 64 bytes side by
 * side, from every 16th pair on, and there are 32 rows, whatever they hold. */
struct kernel_strip {
    const void *p;
    int64_t row, step;
};

struct bf16_kernel {
    int rows;    /* of a strip at most */
    int step;    /* pairs come in multiples of it, filled up with zeros */
    bool widens; /* the strip is f32 */
    /* What the caches are used best with: inputs of which a strip and a panel
     * share the first, and a tile of y, whose sums and right side of as many
     * inputs share the second. */
    int depth, tile_rows, tile_cols;
    /* rows: 1..k->rows; lines from `ahead` on, one for KERNEL_AHEAD pairs, will
     * be read later: a hint. */
    void (*run)(int rows, float *y, int64_t ldy, struct kernel_strip a,
                const uint16_t *panel, int64_t pairs, enum kernel_sum how,
                const void *ahead);
};

/* That of cpu_level(). */
const struct bf16_kernel *bf16_kernel(void);
/* The calling thread begins and ends using kernels (amx: the tiles' shape). */
void bf16_kernel_begin(void);
void bf16_kernel_end(void);

#endif
