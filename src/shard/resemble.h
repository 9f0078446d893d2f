/* resemble.h - does a 4-bit linear still mean what its source meant?
 *
 * No exact comparison exists: GPTQ moves weights on purpose, by up to a few
 * steps, to make up for the errors of others.  What it cannot do is to lose
 * the weights' order, their zero or their scale.  So three figures, over the
 * inputs that are not dead (one whose codes are all zero was given up by the
 * solver).  The ranges are those of real and made-up weights, GPTQ with and
 * without corrected targets, 4 to 65,536 tokens, where w' was up to 0.8 of w
 * away from it:
 *
 *   slope  median over the groups of <w, w'> / <w, w>: 0.97 to 1.00.  What the
 *          solver adds to make up for errors does not depend on w, so it falls
 *          out (of <w, w'> / <w', w'>, tried first, it does not: 0.64 to
 *          1.01).  Nibbles in AWQ's order where GPTQ's belong, or the other way
 *          round, leave two weights of eight in place: 0.24.
 *   bias   mean of (w - w') in steps of the scale: within 0.07.  A zero that
 *          is off by one, as between GPTQ v1 and v2, gives exactly 1.
 * Neither has a say where w' is within a sixteenth of w: a few huge weights make
 * the others of their groups zeros, and what makes up for that, in other groups,
 * is larger than those are (slope 0.21, bias 0.57, sound).
 *
 *   trend  regression, over the groups, of the log of that ratio on the log
 *          of the scale: within 0.04, as rounding does not know how large a
 *          group is; up to d^2 / (1 + d^2) more where w' is d of w away, since
 *          a group that was moved far has a larger scale, too (0.27 with 0.80,
 *          0.22 with 0.61).  Scales of other rows or groups are too large where
 *          the right one is small: 0.3 to 1, also where scales differ little
 *          (a spread of the ratio, tried first, could not tell the 0.13 of a
 *          small model's scales rolled by a row from the worst sound 0.13). */
#ifndef FORGE_RESEMBLE_H
#define FORGE_RESEMBLE_H

#include "checkpoint/checkpoint.h"

struct resemblance {
    double slope, bias, trend;
    double trend_error; /* standard error of the trend */
    double rms;         /* of w - w' in steps: rounding alone gives 0.29 */
    double relative;    /* RMS of w - w' over RMS of w, all elements */
    uint64_t groups;    /* that entered slope and trend */
};

/* w: the source's weight in bf16, [q->rows, q->cols].  Of more than 1,024 rows
 * as many, evenly spread, are looked at. */
MUST_CHECK int resemble(struct resemblance *r, const struct ck_quantized *q,
                        const uint16_t *w, struct err *e);
/* NULL: within the limits; else what is wrong, in words. */
const char *resemble_verdict(const struct resemblance *r);

#endif
