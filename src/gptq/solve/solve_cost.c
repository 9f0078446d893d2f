/* solve_cost.c - see solve_cost.h. */
#include "gptq/solve/solve_cost.h"

#include "common/math/quant.h"

static int starts(const struct effort_plan *p)
{
    return p->starts ? p->starts : 1;
}

double solve_cost_input(const struct solve_cost *c, double cols)
{
    const struct effort_plan p = effort_plan(c->effort);

    return starts(&p) * cols * cols * cols / 3;
}

double solve_cost_linear(const struct solve_cost *c, double rows, double cols)
{
    const struct effort_plan p = effort_plan(c->effort);
    const struct block_params b = { .symmetric = c->symmetric,
                                    .negative = true,
                                    .factors =
                                        c->symmetric ? p.factors : p.shrinks };
    double whole = rows * cols * cols; /* a product of [rows, cols] with H */
    double group = rows * cols * (double)quant_group(c->group, (uint64_t)cols);
    double compared = whole / (double)solve_compare_step((uint64_t)rows);
    double sum = starts(&p) * whole + compared;

    if (p.starts) /* plus plain GPTQ to compare with; candidates; sweeps */
        sum += compared +
               p.starts * (block_candidates(&b) * group + 2 * p.sweeps * whole);
    return sum + (c->corrected ? 4 * whole : 0);
}

double solve_cost_fisher(double rows, double cols, int sweeps)
{
    return 2.0 * sweeps * rows * cols * (rows + cols);
}
