/* resemble.h - checks that a dequantized 4-bit linear w' still resembles its
 * source w, to find packing errors: wrong order of nibbles, zeros off by one,
 * scales of other groups.
 *
 * An exact comparison is not possible: GPTQ moves weights by up to a few steps,
 * to compensate the errors of others.  It does not, however, change the
 * weights' order, their mean or their scale.  So three statistics, over the
 * inputs that are not dead (dead: all codes are the zero point).  The ranges
 * given are those of sound results: real and random weights, GPTQ with and
 * without moved targets, 4 to 65,536 tokens, |w - w'| up to 0.8 |w|.
 *
 *   slope  median over the groups of <w, w'> / <w, w>: 0.97 to 1.00.  GPTQ's
 *          compensation is nearly uncorrelated with w and cancels (in
 *          <w, w'> / <w', w'> it does not: 0.64 to 1.01).  AWQ's order of
 *          nibbles in place of GPTQ's, or the reverse, leaves two of eight
 *          weights in place: 0.24.
 *   bias   mean of (w - w') in steps of the scale: within 0.07.  A zero that is
 *          off by one, as between GPTQ v1 and v2, gives exactly 1.
 *
 *   trend  slope of the regression, over the groups, of log(<w, w'> / <w, w>)
 *          on log(scale): within 0.04, since rounding is independent of a
 *          group's scale; with d = |w - w'| / |w| up to d² / (1 + d²) more,
 *          since a group that was moved far has a larger scale too (0.27 with d
 *          = 0.80, 0.22 with 0.61).  Scales of other rows or groups are too
 *          large where the right one is small: 0.3 to 1, even if scales differ
 *          little.  (The spread of the ratio does not separate the two: 0.13
 *          for a small model's scales rolled by a row, and 0.13 for the worst
 *          sound result.)  Scales within 1 % of each other have no trend:
 *          a linear of equal weights has w' / w in proportion to the scale.
 *
 * None counts if |w - w'| < |w| / 16 (8 bits: / 64): in a group with a few huge
 * weights the others become zero, and the compensation in other groups is larger
 * than those groups' weights (slope 0.21, bias 0.57, trend 0.53, and sound). */
#ifndef FORGE_RESEMBLE_H
#define FORGE_RESEMBLE_H

#include "checkpoint/checkpoint.h"

struct resemblance {
    double slope, bias, trend;
    double trend_error; /* standard error of the trend */
    double rms;         /* RMS of w - w' in steps; rounding to nearest: 0.29 */
    double relative;    /* d = RMS of w - w' over RMS of w, all elements */
    double near;        /* none of the three counts where d is less */
    uint64_t groups;    /* number of groups in slope and trend */
};

/* The rows that are compared: of more than 1,024 as many, in runs that are evenly
 * spread. */
struct ck_rows resemble_rows(uint64_t rows);
/* Compute *r of q and these rows of the source's weight, w in bf16, [resemble_rows(),
 * q->cols].  E_TEMP. */
MUST_CHECK int resemble(struct resemblance *r, const struct ck_quantized *q,
                        const uint16_t *w, struct err *e);
/* NULL: within the limits; else a description of what is wrong. */
const char *resemble_verdict(const struct resemblance *r);

#endif
