/* budget.h - chooses a grid for each unit of linears, so that the sum of costs is
 * small and the bits stay within a budget.
 *
 * A unit starts on its cheapest grid and moves along the lower convex hull of its
 * (bits, cost); of all next moves the one that saves most cost for each bit goes
 * first, and one that does not fit is left out.  Until then it is the least sum of
 * costs for the bits that are taken. */
#ifndef FORGE_BITS_BUDGET_H
#define FORGE_BITS_BUDGET_H

#include "gptq/bits/errors.h"

struct bits_unit {
    double bits[BITS_GRIDS], cost[BITS_GRIDS]; /* cost infinite: cannot be */
    int chosen;                                /* out: index of a grid */
};

/* Set unit[n].chosen within `budget` bits.  false: the cheapest grids take
 * more. */
bool bits_choose(struct bits_unit *unit, size_t n, int grids, double budget);

#endif
