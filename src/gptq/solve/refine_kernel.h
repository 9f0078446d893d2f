/* refine_kernel.h - the inner loop of refine.c: one panel of FACTOR_PANEL
 * inputs of SOLVE_ROWS rows, vectors over rows, as in solve_kernel.h. */
#ifndef FORGE_REFINE_KERNEL_H
#define FORGE_REFINE_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

struct refine_panel {
    const float *acc;          /* [8][48]: g = (w - q) H before the moves */
    const float *h;            /* [8][8]: H among the panel's inputs */
    const float *scale, *zero; /* [48] */
    float top;                 /* the largest code */
    const float *w;            /* [8][48] */
    float *d;                  /* [8][48]: w - q, kept up to date */
    uint8_t *codes;            /* [8][48] */
    float *moved;              /* [8][48]: out, the changes of d */
    float *change;             /* [48]: += the changes of the loss */
};

/* Move each code to its minimum (refine.h), one input after another.  True when
 * one moved. */
typedef bool refine_fn(const struct refine_panel *p);

/* The fastest variant for the CPU level in use (common/math/cpu.h). */
refine_fn *refine_kernel_best(void);

#endif
