/* split.h - products of f32 matrices by AMX, whose tiles multiply bf16 with sums
 * in f32: each operand is a sum of two bf16 parts, x = hi(x) + lo(x), and
 *
 *     x y ~ hi(x) hi(y) + hi(x) lo(y) + lo(x) hi(y)
 *
 * is within 2^-15 |x y| of x y: 2^-17 for what the two parts leave of either
 * operand, 2^-16 for lo(x) lo(y).  Level amx alone; parts below 2^-126 count as 0. */
#ifndef FORGE_SPLIT_H
#define FORGE_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gptq/solve/solve_kernel.h"

enum {
    SPLIT_DEPTH = 32, /* terms of a sum, and */
    SPLIT_COLS = 16,  /* columns of the right side that are split together */
    SPLIT_COLS_MAX = 128, /* columns whose sums are formed together */
    /* Elements of the left side for each SPLIT_DEPTH terms, and of what
     * split_add() works in for each sum. */
    SPLIT_LEFT = 2 * SOLVE_ROWS * SPLIT_DEPTH,
    SPLIT_WORK = SPLIT_COLS_MAX * SOLVE_ROWS
};

/* Whether the level in use has these products. */
bool split_is_there(void);

/* The left side of n (a multiple of SPLIT_DEPTH) terms x[n][SOLVE_ROWS], or of
 * -x: left[n / SPLIT_DEPTH][SPLIT_LEFT], aligned to 64 bytes, as many bytes as x. */
void split_left(uint16_t *left, const float *x, size_t n, bool minus);

/* Where the panel of FACTOR_PANEL columns of the right side that column c is in
 * has its row k; the panel's next row lies FACTOR_PANEL floats further. */
typedef float *split_at(const void *of, uint64_t c, uint64_t k);

/* Columns c0..c1-1 and rows k0..k1-1 of the right side: c0 and c1 are multiples of
 * SPLIT_COLS, k0 and k1 of SPLIT_DEPTH. */
struct split_part {
    split_at *at;
    const void *of;
    uint64_t c0, c1, k0, k1;
    bool bf16; /* x is bf16, so that lo(x) is 0 and its products are left out */
};

/* Split a part in place: of SPLIT_DEPTH rows of two panels hi takes the first's
 * memory, lo the second's. */
void split_right(const struct split_part *p);
/* Element (k, c) of a part that has been split: hi + lo. */
float split_element(const struct split_part *p, uint64_t c, uint64_t k);

struct split_sum {
    float *sum;           /* [c1 - c0][SOLVE_ROWS] */
    const uint16_t *left; /* of x from term 0 on */
    float *work;          /* [SPLIT_WORK], aligned to 64 bytes */
};

/* Each of n sums += x[k0..k1-1]ᵀ times the part, which has been split. */
void split_add(const struct split_sum *s, int n, const struct split_part *p);

#endif
