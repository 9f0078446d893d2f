/* solve_cost.h - the number of multiply-adds of a solve, from the effort plans
 * that the solver follows.  For estimates of time (forge plan). */
#ifndef FORGE_SOLVE_COST_H
#define FORGE_SOLVE_COST_H

#include "gptq/solve/solve_refined.h"

/* Sweeps of Fisher descent, at most.  Experts are many, and a third sweep gains
 * nothing for them. */
enum {
    FISHER_SWEEPS_BEST = 6,
    FISHER_SWEEPS_DEFAULT = 4,
    FISHER_SWEEPS_EXPERT = 2
};

struct solve_cost {
    enum effort effort;
    uint64_t group;
    bool symmetric;
    bool corrected; /* targets are moved by cross moments (target.h) */
};

/* Factoring a Hessian of `cols` inputs, once per order. */
double solve_cost_input(const struct solve_cost *c, double cols);
/* Choosing the codes of one linear [rows, cols]. */
double solve_cost_linear(const struct solve_cost *c, double rows, double cols);
/* Fisher descent on one linear, `sweeps` sweeps. */
double solve_cost_fisher(double rows, double cols, int sweeps);

#endif
