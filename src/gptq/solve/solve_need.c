/* solve_need.c - see solve_need.h. */
#include "gptq/solve/solve_need.h"

#include "common/math/quant.h"
#include "gptq/solve/solve_room.h"

static uint64_t sum(const uint64_t *bytes, int n)
{
    uint64_t all = 0;

    for (int i = 0; i < n; i++)
        all += bytes[i];
    return all;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What targets and rows together take beside the rows. */
static uint64_t moving(const struct solve_need *n, uint64_t padded, bool least)
{
    uint64_t square = n->fisher && !least ? fisher_room(n->rows) : 0;

    if (n->moved)
        square = larger(square, target_room(padded)) + inverse_room(padded) +
                 (n->drift ? drift_room(1, padded) : 0);
    return square;
}

uint64_t solve_need_bytes(const struct solve_need *n, bool least)
{
    const struct effort_plan p = effort_plan(n->effort);
    uint64_t rows =
        least && p.starts && n->rows > SOLVE_TILE ? SOLVE_TILE : n->rows;
    const struct solve_size s =
        solve_size(1, 1, rows, n->cols, quant_group(n->group, n->cols));
    uint64_t factor[FACTOR_ROOMS], solve[SOLVE_ROOMS], refined[REFINED_ROOMS];
    /* where it does not lie on the device: the Hessian, then D */
    uint64_t fill =
        larger(n->cols * (n->cols + 1) / 2, n->drift ? n->cols * n->cols : 0);

    factor_rooms(1, n->cols, p.starts > 0, factor);
    fill = fill * sizeof(float) +
           (uint64_t)(p.starts ? p.starts : 1) * sum(factor, FACTOR_ROOMS);
    if (!p.starts) {
        solve_rooms(&s, solve);
        return fill + sum(solve, SOLVE_ROOMS);
    }
    refined_rooms(&s, (uint64_t)(n->symmetric ? p.factors : p.shrinks),
                  refined);
    return fill + sum(refined, REFINED_ROOMS) + moving(n, s.padded, least);
}
