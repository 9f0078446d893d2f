/* budget.c - see budget.h. */
#include "gptq/bits/budget.h"

#include <math.h>

/* The grid with the fewest bits; of equal ones the one of least cost. */
static int cheapest(const struct bits_unit *u, int grids)
{
    int at = 0;

    for (int i = 1; i < grids; i++)
        if (isfinite(u->cost[i]) &&
            (!isfinite(u->cost[at]) || u->bits[i] < u->bits[at] ||
             (u->bits[i] == u->bits[at] && u->cost[i] < u->cost[at])))
            at = i;
    return at;
}

/* Cost saved for each bit by going from the chosen grid to grid i. */
static double gain(const struct bits_unit *u, int i)
{
    double bits = u->bits[i] - u->bits[u->chosen];

    return bits > 0 && isfinite(u->cost[i]) ?
               (u->cost[u->chosen] - u->cost[i]) / bits :
               0;
}

/* The next grid on the hull; -1: none is better. */
static int next(const struct bits_unit *u, int grids)
{
    int best = -1;

    for (int i = 0; i < grids; i++)
        if (gain(u, i) > (best < 0 ? 0 : gain(u, best)))
            best = i;
    return best;
}

bool bits_choose(struct bits_unit *unit, size_t n, int grids, double budget)
{
    double taken = 0;

    for (size_t i = 0; i < n; i++) {
        unit[i].chosen = cheapest(&unit[i], grids);
        taken += unit[i].bits[unit[i].chosen];
    }
    if (taken > budget)
        return false;
    for (;;) {
        double best = 0;
        size_t at = n;
        int to = -1;

        for (size_t i = 0; i < n; i++) {
            int k = next(&unit[i], grids);

            if (k < 0 || gain(&unit[i], k) <= best ||
                taken + unit[i].bits[k] - unit[i].bits[unit[i].chosen] > budget)
                continue;
            best = gain(&unit[i], k);
            at = i;
            to = k;
        }
        if (at == n)
            return true;
        taken += unit[at].bits[to] - unit[at].bits[unit[at].chosen];
        unit[at].chosen = to;
    }
}
