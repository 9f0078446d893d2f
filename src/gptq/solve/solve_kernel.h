/* solve_kernel.h - the inner loops of the solver and of the Cholesky
 * factorization.
 *
 * Rows of W are independent, so SIMD lanes are rows: the values of SOLVE_ROWS
 * rows at one input are contiguous, and an element of the factor is
 * broadcast. */
#ifndef FORGE_SOLVE_KERNEL_H
#define FORGE_SOLVE_KERNEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    SOLVE_ROWS = 48,
    FACTOR_PANEL = 8 /* columns of a panel of the factor, see factor.h */
};

/* Operands of quantizing FACTOR_PANEL inputs of SOLVE_ROWS rows; first index:
 * column c of the panel, second: row. */
struct solve_panel {
    const float *acc; /* [8][48]: error feedback from the columns quantized
                         before this panel, sum over t of d_t L_tc */
    const float *l;   /* [8][8]: the panel's diagonal triangle of L */
    const float *scale[FACTOR_PANEL], *zero[FACTOR_PANEL]; /* [48] each */
    float top;          /* the largest code */
    float *d;           /* [8][48]: w in, w - q out */
    uint8_t *codes;     /* [8][48] */
    float *loss, *dist; /* [48]: += L_cc² (w* - q)², += (w - q)² */
};

struct solve_kernels {
    /* acc[8][48] += d[n][48]ᵀ l[n][8] */
    void (*product)(float *acc, const float *d, const float *l, size_t n);
    /* Quantize the panel, columns 7 down to 0. */
    void (*panel)(const struct solve_panel *p);
    /* Round w[48] of one input to nearest: codes[48], and d = w - q in w's
     * place. */
    void (*nearest)(float *d, const float *scale, const float *zero, float top,
                    uint8_t *codes);
    /* acc[8][48] -= d[n][48]ᵀ l[n][8], rows of l `ld` apart (in cholesky.h's
     * panels ld is 48) */
    void (*subtract)(float *acc, const float *d, const float *l, size_t n,
                     size_t ld);
    /* Triangular solve in place: x <- the solution y of y Lᵀ = x, x[8][48];
     * l[8][8] by columns, `ld` apart */
    void (*divide)(float *x, const float *l, size_t ld);
    /* x <- the solution y of y L = x, x[8][48]; l[8][8] by rows */
    void (*back)(float *x, const float *l);
};

/* The fastest kernels for the CPU level in use (common/math/cpu.h). */
const struct solve_kernels *solve_kernels_best(void);

#endif
