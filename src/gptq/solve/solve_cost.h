/* solve_cost.h - what solving computes, in operations, as the solver does it: from the
 * same plans that it follows.  For estimates. */
#ifndef FORGE_SOLVE_COST_H
#define FORGE_SOLVE_COST_H

#include "gptq/solve/solve_refined.h"

/* Sweeps over rows together, at most; experts are many, and a third brings
 * nothing. */
enum { FISHER_SWEEPS = 6, FISHER_EXPERT_SWEEPS = 2 };

struct solve_cost {
    enum effort effort;
    uint64_t group;
    bool symmetric;
    bool corrected; /* targets are moved: there are cross moments */
};

/* Factors of the Hessian of `cols` inputs. */
double solve_cost_input(const struct solve_cost *c, double cols);
/* Codes of one linear. */
double solve_cost_linear(const struct solve_cost *c, double rows, double cols);
/* Its rows together, `sweeps` times. */
double solve_cost_fisher(double rows, double cols, int sweeps);

#endif
