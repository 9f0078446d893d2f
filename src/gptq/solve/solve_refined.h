/* solve_refined.h - the solver of the efforts default and best: GPTQ with each
 * group's grid chosen when GPTQ reaches it (block_grid.h), then coordinate
 * descent on codes and scales (refine.h).  Done from one or two starts, which
 * differ in the order of inputs; each row keeps the start with the smallest
 * loss. */
#ifndef FORGE_SOLVE_REFINED_H
#define FORGE_SOLVE_REFINED_H

#include "gptq/solve/block_grid.h"
#include "gptq/solve/solve.h"
#include "gptq/solve/target.h"

enum { REFINED_STARTS = 2 };

/* EFFORT_FAST is solve.h's plain GPTQ, on grids fixed before, not this
 * solver. */
enum effort { EFFORT_FAST, EFFORT_DEFAULT, EFFORT_BEST };
#define EFFORT_WORDS "fast|default|best"

struct effort_plan {
    int starts;  /* 1: ORDER_GROUP; 2: and ORDER_INSIDE */
    int factors; /* block_params.factors of symmetric grids */
    int shrinks; /* block_params.factors of asymmetric grids */
    int sweeps;  /* of refine(), at most */
};
/* The plan of an effort; zeros for EFFORT_FAST. */
struct effort_plan effort_plan(enum effort e);

struct refined_params {
    struct solve_params solve; /* nearest and compare are ignored */
    struct block_params block;
    int sweeps;
    bool gap;            /* output is F of target.h, not G */
    double alpha, beta;  /* see target.h */
    const float *output; /* G or F [rows, cols], inputs as stored; or NULL */
    float
        *target; /* out: the target solved for, [rows, cols], inputs as stored;
                      NULL: not wanted */
    /* On the GPU alone: F of fisher_descent.h, packed [rows (rows + 1) / 2], by
     * which the codes are then moved together, in fisher_sweeps sweeps at most;
     * or NULL.  E_TEMP: not all rows fit at once. */
    const float *fisher;
    int fisher_sweeps;
};

/* What all modules of one Hessian share.  Zero-initialise; refined_close() a
 * zeroed one is allowed. */
struct refined_hessian {
    struct factor *factor[REFINED_STARTS];
    struct tile_plan plan[REFINED_STARTS];
    struct target target; /* target_open()ed by the caller that has cross
                             moments, on plan[0]; else zeroed: W is the target */
    int starts;
};
/* The order of factor[start]. */
static inline enum factor_order refined_order(int start)
{
    return start ? ORDER_INSIDE : ORDER_GROUP;
}

/* Factor h in `starts` orders, on the open GPU (gpu) or on the CPU; p->order is
 * ignored, p->group must pass tile_fits().  h is not needed afterwards.
 * 0; or 1: no damping helped, factor[0]->tried says which were tried.  E_DATA,
 * E_TEMP as factor_build(); E_CONFIG: the GPU declines; E_DEVICE. */
MUST_CHECK int refined_open(struct refined_hessian *b,
                            const struct factor_params *p, int starts,
                            const float *h, bool gpu, struct err *e);
void refined_close(struct refined_hessian *b);

static inline bool refined_on_gpu(const struct refined_hessian *b)
{
    return b->factor[0]->gpu;
}

/* codes[rows, cols / 2] (two U4 a byte; 8 bits: [rows, cols]) of w[rows, cols], on the device of b's
 * factors.  meta[rows, groups], qmeta4: in, forge-grid's grids, on which round
 * to nearest and plain GPTQ are measured for comparison; out, the grids of the
 * codes.  E_DATA: "row 3: input 17 is not finite"; E_TEMP; E_CONFIG: the GPU
 * declines; E_DEVICE. */
MUST_CHECK int refined_solve(const struct refined_params *p,
                             const struct refined_hessian *b, const void *w,
                             uint32_t *meta, uint8_t *codes,
                             struct refined_result *r, struct err *e);

#endif
