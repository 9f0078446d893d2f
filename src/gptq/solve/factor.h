/* factor.h - the Cholesky factor of the damped Hessian, for GPTQ.
 *
 * H + lambda I = R Rᵀ with R upper triangular.  It comes from an ordinary
 * Cholesky factorization of the matrix in reversed order: with the exchange
 * matrix J,  J (H + lambda I) J = L Lᵀ,  R = J L J.  No inverse is formed: the
 * upper factor of (H + lambda I)⁻¹ that GPTQ's paper uses (arXiv 2210.17323) is
 * R⁻¹.  Kept is L.  Column c of L belongs to the input that is quantized as
 * number cols-1-c, so the solver walks c from cols-1 down to 0.
 *
 * L is stored in panels of FACTOR_PANEL columns, each from its diagonal down:
 *
 *     panel p = columns 8p..8p+7, rows 8p..padded-1, row by row
 *
 * zero above the diagonal, an identity in the padding. */
#ifndef FORGE_FACTOR_H
#define FORGE_FACTOR_H

#include "common/base.h"
#include "gptq/solve/solve_kernel.h"

enum { FACTOR_TRIES = 4 };
#define FACTOR_DAMPING 0.01 /* the default of --damping */

/* The order in which inputs are quantized ("act-order" is ORDER_ACTIVATION).
 * In every order a group is a run of consecutive inputs as stored: static
 * groups. */
enum factor_order {
    ORDER_NATURAL,
    ORDER_ACTIVATION, /* largest diag H first */
    ORDER_GROUP,  /* groups by their largest diag H, descending; inside a group
                     largest diag H first */
    ORDER_INSIDE, /* groups as stored; inside a group largest diag H first */
    /* In the last two orders a short last group whose size is no multiple of
     * FACTOR_PANEL comes first. */
};
#define ORDER_WORDS "natural|activation|group|inside"

struct factor_params {
    uint64_t cols;
    uint64_t block; /* size of H's diagonal blocks; 0: packed lower triangle
                       (hessian frames, forge-stream(5)) */
    uint64_t group; /* inputs per group */
    enum factor_order order;
    double damping; /* lambda / mean of diag H over inputs that are not dead */
};

struct cuda_factors; /* solve_table.h */

struct factor {
    uint64_t cols, padded; /* padded: up to a multiple of FACTOR_PANEL */
    uint32_t *input;       /* [cols]: the input of column c of L */
    bool *dead;            /* [cols], by column: diag H is 0, the input was
                              zero in every token */
    uint64_t n_dead;
    float *panel;             /* L in panels; NULL: L is on the GPU alone */
    bool split;               /* factor_split() has been called */
    struct cuda_factors *gpu; /* L on the GPU, or NULL; owned, freed by: */
    void (*gpu_free)(struct cuda_factors *);
    double mean; /* of diag H over inputs that are not dead; 1: all are */
    double lambda;
    double tried[FACTOR_TRIES]; /* dampings tried; the last one worked, unless
                                   factor_build() returned 1 */
    int n_tried;
};

/* Factor h, a hessian frame's payload, which is only read.  Dead inputs get
 * diagonal 1.  Where H + lambda I is not positive definite, the damping is
 * multiplied by ten, up to 1, FACTOR_TRIES times at most.
 * 0: *f is the factor, factor_free() it.  1: no damping helped; *f then only
 * has order and tried[].  E_DATA: an element of H is not finite or a diagonal
 * element negative (the message names the place), or too many inputs;
 * E_TEMP. */
MUST_CHECK int factor_build(struct factor **f, const struct factor_params *p,
                            const float *h, struct err *e);
/* The two steps in front of the factorization, for the GPU's backend.
 * factor_check(): E_DATA as above.  factor_plan(): *f with cols, padded, input,
 * dead and mean, without L. */
MUST_CHECK int factor_check(const struct factor_params *p, const float *h,
                            struct err *e);
MUST_CHECK int factor_plan(struct factor **f, const struct factor_params *p,
                           const float *h, struct err *e);
void factor_free(struct factor *f); /* NULL is allowed */
/* Index of element (i, j) in a Hessian's payload, inputs as stored.  With
 * diagonal blocks i and j must lie in the same block. */
static inline uint64_t factor_at(const struct factor_params *p, uint64_t i,
                                 uint64_t j)
{
    uint64_t g = p->block, high = i > j ? i : j, low = i > j ? j : i;

    return g ? (i / g * g + i % g) * g + j % g : high * (high + 1) / 2 + low;
}
/* Element (i, j) of the Hessian h; 0 outside of its diagonal blocks. */
static inline float factor_element(const struct factor_params *p,
                                   const float *h, uint64_t i, uint64_t j)
{
    return p->block && i / p->block != j / p->block ? 0 : h[factor_at(p, i, j)];
}
/* Index of panel p's first element in `panel`; with p = padded / FACTOR_PANEL,
 * the size of the whole array in elements. */
static inline uint64_t factor_panel_at(uint64_t padded, uint64_t p)
{
    return FACTOR_PANEL * (p * padded - FACTOR_PANEL / 2 * p * (p - 1));
}
/* A split_at (split.h) of a struct factor: address of row k of column c's panel. */
float *factor_at_row(const void *factor, uint64_t c, uint64_t k);
/* Split (split.h) the rows behind each block of columns; blocks are a multiple of
 * 16 columns, f->padded is one of 32.  Afterwards panels are as f->split says. */
void factor_split(struct factor *f, uint64_t block);

#endif
