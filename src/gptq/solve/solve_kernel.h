/* solve_kernel.h - the inner loops of the solver and of the factorization.
 *
 * Rows of W are independent, so vectors run over rows: SOLVE_ROWS rows of one
 * input lie together, and an element of the factor is broadcast. */
#ifndef FORGE_SOLVE_KERNEL_H
#define FORGE_SOLVE_KERNEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    SOLVE_ROWS = 48,
    FACTOR_PANEL = 8 /* columns of the factor that lie together, see factor.h */
};

/* What quantizing FACTOR_PANEL inputs of SOLVE_ROWS rows reads and writes;
 * index c counts columns of the panel, r rows. */
struct solve_panel {
    const float *acc; /* [8][48]: sum over earlier t of d_t L_tc */
    const float *l;   /* [8][8]: the panel's triangle */
    const float *scale[FACTOR_PANEL], *zero[FACTOR_PANEL]; /* [48] each */
    float *d;           /* [8][48]: w in, w - q out */
    uint8_t *codes;     /* [8][48] */
    float *loss, *dist; /* [48]: += L_cc² (w* - q)², += (w - q)² */
};

struct solve_kernels {
    /* acc[8][48] += d[n][48]ᵀ l[n][8] */
    void (*product)(float *acc, const float *d, const float *l, size_t n);
    void (*panel)(const struct solve_panel *p);
    /* Round w[48] of one input to nearest: codes[48], and d = w - q in w's
     * place. */
    void (*nearest)(float *d, const float *scale, const float *zero,
                    uint8_t *codes);
    /* acc[8][48] -= d[n][48]ᵀ l[n][the first 8 of ld]: the factorization keeps
     * SOLVE_ROWS rows of one column together in both operands */
    void (*subtract)(float *acc, const float *d, const float *l, size_t n,
                     size_t ld);
    /* x[8][48]: x Lᵀ = x in place, l[8][the first 8 of ld] by columns */
    void (*divide)(float *x, const float *l, size_t ld);
    /* x[8][48]: x L = x in place, l[8][8] by rows */
    void (*back)(float *x, const float *l);
};

/* The fastest of the level in use. */
const struct solve_kernels *solve_kernels_best(void);

#endif
