/* resemble.h - does a 4-bit linear still mean what its source meant?
 *
 * No exact comparison exists: GPTQ moves weights on purpose, by up to a few
 * steps, to make up for the errors of others.  What it cannot do is to lose
 * the weights' order, their zero or their scale.  So three figures, over the
 * inputs that are not dead (one whose codes are all zero was given up by the
 * solver).  The ranges are of GPTQ on made-up weights: normal and heavy-tailed,
 * 4 to 4096 tokens, clipping by 1 and 0.7, inputs from independent to one
 * direction with 300 times the rest:
 *
 *   slope  median over the groups of <w, w'> / <w', w'>: 0.76 to 1.02; rounding
 *          alone 0.99.  Nibbles in AWQ's order where GPTQ's belong, or the
 *          other way round, leave two weights of eight in place: 0.24.
 *   bias   mean of (w - w') in steps of the scale: within 0.03.  A zero that
 *          is off by one, as between GPTQ v1 and v2, gives exactly 1.
 *   spread of that ratio over the groups, as the median distance from its
 *          median: up to 0.13.  Scales of other rows or groups give what
 *          scales differ by among themselves: 0.33 to 0.43. */
#ifndef FORGE_RESEMBLE_H
#define FORGE_RESEMBLE_H

#include "checkpoint/checkpoint.h"

struct resemblance {
    double slope, bias, spread;
    double rms;      /* of w - w' in steps: rounding alone gives 0.29 */
    double relative; /* RMS of w - w' over RMS of w, all elements */
    uint64_t groups; /* that entered slope and spread */
};

/* w: the source's weight, [q->rows, q->cols]. */
MUST_CHECK int resemble(struct resemblance *r, const struct ck_quantized *q,
                        const float *w, struct err *e);
/* NULL: within the limits; else what is wrong, in words. */
const char *resemble_verdict(const struct resemblance *r);

#endif
