/* refine_kernel.h - the inner loop of refine.c: one panel of FACTOR_PANEL
 * inputs of SOLVE_ROWS rows, vectors over rows, as in solve_kernel.h. */
#ifndef FORGE_REFINE_KERNEL_H
#define FORGE_REFINE_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

struct refine_panel {
    const float *acc;          /* [8][48]: (w - q) H before */
    const float *h;            /* [8][8]: H among the panel's inputs */
    const float *scale, *zero; /* [48] */
    const float *w;            /* [8][48] */
    float *d;                  /* [8][48]: w - q, kept up to date */
    uint8_t *codes;            /* [8][48] */
    float *moved;              /* [8][48]: what was added to d */
    float *change;             /* [48]: of the loss, added */
};

/* Each code to its best place, one input after another; true when one moved. */
typedef bool refine_fn(const struct refine_panel *p);

/* The fastest of the level in use. */
refine_fn *refine_kernel_best(void);

#endif
