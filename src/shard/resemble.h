/* resemble.h - does a 4-bit linear still mean what its source meant?
 *
 * No exact comparison exists: GPTQ moves weights on purpose, by up to a few
 * steps, to make up for the errors of others.  What it cannot do is to lose
 * the weights' order, their zero or their scale.  So three figures, each taken
 * over the elements of inputs that are not dead (an input whose codes are all
 * zero was given up by the solver):
 *
 *   rms    of (w - w') in steps of the group's scale.  Rounding alone: 0.29;
 *          GPTQ with clipping: 0.3 to 1.2 measured.  Nibbles in a wrong order
 *          give 3 to 6, as codes of unlike weights are compared.
 *   bias   mean of (w - w') in steps: 0 but for noise.  A zero that is off by
 *          one, as between GPTQ v1 and v2, gives exactly 1.
 *   spread of the ratio <w, w'> / <w', w'> over the groups, as the median
 *          distance from its median: 0.01 to 0.05.  Scales of the wrong
 *          groups or rows give what scales differ by among themselves. */
#ifndef FORGE_RESEMBLE_H
#define FORGE_RESEMBLE_H

#include "checkpoint/checkpoint.h"

struct resemblance {
    double rms, bias, spread;
    double relative; /* RMS of w - w' over RMS of w, all elements */
    uint64_t groups; /* that entered the spread */
};

/* w: the source's weight, [q->rows, q->cols]. */
MUST_CHECK int resemble(struct resemblance *r, const struct ck_quantized *q,
                        const float *w, struct err *e);
/* NULL: within the limits; else what is wrong, in words. */
const char *resemble_verdict(const struct resemblance *r);

#endif
