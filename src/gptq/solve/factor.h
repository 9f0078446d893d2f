/* factor.h - the one factorization that GPTQ needs.
 *
 * H + lambda I = R Rᵀ with R upper triangular, from an ordinary Cholesky of
 * the matrix with its index order reversed: H[last..first] = L Lᵀ, R = J L J
 * (reference: the classic form's Cholesky of the inverse is R⁻¹).  L itself is
 * what is kept: column c of L belongs to the input that is quantized
 * cols-1-c inputs after the first, so the solver walks c downwards.
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

/* The order in which inputs are quantized, for groups that stay groups of
 * consecutive inputs. */
enum factor_order {
    ORDER_NATURAL,
    ORDER_ACTIVATION, /* largest diag H first */
    ORDER_GROUP,  /* groups by their largest diag H; the same inside a group */
    ORDER_INSIDE, /* groups as stored; inside a group largest diag H first */
    /* In the last two a last group that is no multiple of FACTOR_PANEL comes
     * first. */
};
#define ORDER_WORDS "natural|activation|group|inside"

struct factor_params {
    uint64_t cols;
    uint64_t block; /* of the Hessian, see hessian frames; 0: packed */
    uint64_t group;
    enum factor_order order;
    double damping; /* lambda as a part of the mean of the live diagonal */
};

struct cuda_factors; /* solve_table.h */

struct factor {
    uint64_t cols, padded; /* padded: up to a multiple of FACTOR_PANEL */
    uint32_t *input;       /* [cols]: the input that column c of L stands for */
    bool *dead;            /* [cols]: of column c: its input was always zero */
    uint64_t n_dead;
    float *panel;
    struct cuda_factors *gpu; /* instead of panel, or NULL; factor_free() frees
                                 it by: */
    void (*gpu_free)(struct cuda_factors *);
    double mean; /* of the live diagonal */
    double lambda;
    double tried[FACTOR_TRIES]; /* damping, up to the one that worked */
    int n_tried;
};

/* H: a hessian frame's payload.  Dead inputs (diag 0) get diagonal 1.  When
 * the matrix is not positive definite the damping grows tenfold up to 1.
 * 0, or 1: no damping helped (*f then only says what was tried).
 * E_DATA: H is not finite or has a negative diagonal, with the place. */
MUST_CHECK int factor_build(struct factor **f, const struct factor_params *p,
                            const float *h, struct err *e);
/* The two things that come before: E_DATA as above; and order, dead inputs and
 * mean of *f. */
MUST_CHECK int factor_check(const struct factor_params *p, const float *h,
                            struct err *e);
MUST_CHECK int factor_plan(struct factor **f, const struct factor_params *p,
                           const float *h, struct err *e);
void factor_free(struct factor *f); /* NULL is allowed */
/* Where element (i, j) of a Hessian lies, inputs as stored; of blocks i and j
 * are in one. */
static inline uint64_t factor_at(const struct factor_params *p, uint64_t i,
                                 uint64_t j)
{
    uint64_t g = p->block, high = i > j ? i : j, low = i > j ? j : i;

    return g ? (i / g * g + i % g) * g + j % g : high * (high + 1) / 2 + low;
}
/* Element (i, j) of the Hessian h. */
static inline float factor_element(const struct factor_params *p,
                                   const float *h, uint64_t i, uint64_t j)
{
    return p->block && i / p->block != j / p->block ? 0 : h[factor_at(p, i, j)];
}
/* Where panel p begins. */
static inline uint64_t factor_panel_at(uint64_t padded, uint64_t p)
{
    return FACTOR_PANEL * (p * padded - FACTOR_PANEL / 2 * p * (p - 1));
}

#endif
