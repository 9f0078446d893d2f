/* solve_refined.h - the solver that chooses its grids as it goes and then refines
 * codes and scales: block_grid.h, then refine.h, from one or more orders; each
 * row keeps the start that came out best. */
#ifndef FORGE_SOLVE_REFINED_H
#define FORGE_SOLVE_REFINED_H

#include "gptq/solve/block_grid.h"
#include "gptq/solve/solve.h"
#include "gptq/solve/target.h"

enum { REFINED_STARTS = 2 };

/* How much is tried.  EFFORT_FAST is not this solver's: static grids, one
 * pass. */
enum effort { EFFORT_FAST, EFFORT_DEFAULT, EFFORT_BEST };
#define EFFORT_WORDS "fast|default|best"

struct effort_plan {
    int starts;  /* orders: group, inside */
    int factors; /* of symmetric candidates, see block_grid.h */
    int shrinks; /* of asymmetric ones, of each end */
    int sweeps;  /* at most, see refine.h */
};
/* What an effort tries; zeros for EFFORT_FAST. */
struct effort_plan effort_plan(enum effort e);

struct refined_params {
    struct solve_params solve; /* nearest, compare: not looked at */
    struct block_params block;
    int sweeps;
    bool gap;            /* output is F */
    double alpha, beta;  /* see target.h */
    const float *output; /* G or F [rows, cols], or NULL */
    float *target; /* out: what was solved for [rows, cols], inputs as stored;
                      NULL: nobody asks */
};

/* What is done once for all modules of one Hessian.  Zeroed, it may be
 * closed. */
struct refined_hessian {
    struct factor *factor[REFINED_STARTS];
    struct tile_plan plan[REFINED_STARTS];
    struct target target; /* opened by who has cross moments */
    int starts;
};
/* Factors of h in `starts` orders, on the open GPU or on the CPU; p->order is
 * not looked at, p->group must pass tile_fits().  0, or 1: no damping helped;
 * best[0] then says what was tried.  E_DATA, E_TEMP as factor_build();
 * E_CONFIG: not on the GPU. */
MUST_CHECK int refined_open(struct refined_hessian *b,
                            const struct factor_params *p, int starts,
                            const float *h, bool gpu, struct err *e);
void refined_close(struct refined_hessian *b);

static inline bool refined_on_gpu(const struct refined_hessian *b)
{
    return b->factor[0]->gpu;
}

struct refined_result {
    struct solve_result solve;
    double loss_plain; /* of plain GPTQ */
};

/* codes[rows, cols / 2] of w[rows, cols], where b's factors are;
 * meta[rows, groups]: in, the grids of round-to-nearest and plain GPTQ, which
 * are measured beside; out, those that the codes are on; kept as they are on
 * errors.  All three losses are distances from the same target, the moved one:
 * only the choice of grids and codes differs.
 * E_DATA: "row 3: input 17 is not finite"; E_TEMP; E_CONFIG: not on the GPU. */
MUST_CHECK int refined_solve(const struct refined_params *p,
                             const struct refined_hessian *b, const void *w,
                             uint32_t *meta, uint8_t *codes,
                             struct refined_result *r, struct err *e);

#endif
