/* solve.h - GPTQ in its look-back form: choose codes that make (w-q) H (w-q)ᵀ
 * small, for grids that were fixed before.
 *
 * With H + lambda I = R Rᵀ, input by input in the factor's order:
 *
 *     w*_j = w_j + sum over earlier t of (w_t - q_t) R_tj / R_jj
 *     q_j  = round(w*_j)                                (common/math/quant.h)
 *
 * w_t is the original weight.  This gives the codes of the classic form
 * (w -= err * row of the Cholesky factor of the inverse).  The loss is free:
 * sum of R_jj² (w*_j - q_j)² is (w-q)(H + lambda I)(w-q)ᵀ, from which
 * lambda |w-q|² is taken off. */
#ifndef FORGE_SOLVE_H
#define FORGE_SOLVE_H

#include "common/base.h"
#include "common/math/dtype.h"
#include "gptq/solve/factor.h"

/* A new one must be taught to the GPU, or declined in solve_gpu.c. */
struct solve_params {
    uint64_t rows, cols;    /* of W: outputs, inputs; cols is even */
    uint64_t group;         /* inputs per grid */
    enum dtype dtype;       /* of W */
    enum dtype scale_dtype; /* what the scales are stored as */
    bool nearest;           /* round to nearest; the factor is for the loss */
    bool compare;           /* also compute loss_nearest */
};

/* What others lose, a yardstick, is computed of every step-th tile of 48 rows:
 * of all rows up to 768, of 408 to 816 beyond. */
uint64_t solve_compare_step(uint64_t rows);
/* other[rows] summed over all rows: that of the rows compared, times what the
 * codes lose (loss[rows]) in all rows over what they lose in those. */
double solve_compare_sum(const double *loss, const double *other,
                         uint64_t rows);

static inline bool solve_same(const struct solve_params *a,
                              const struct solve_params *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->group == b->group &&
           a->dtype == b->dtype && a->scale_dtype == b->scale_dtype &&
           a->nearest == b->nearest && a->compare == b->compare;
}

struct solve_result {
    double loss; /* sum over rows of (w-q) H (w-q)ᵀ, no damping */
    double
        loss_nearest; /* the same for round-to-nearest on these grids; of many
                            rows an estimate, see solve_compare_sum() */
};

struct solve_backend {
    const char *name;
    /* As factor_build(): a factor that this backend's run() takes. */
    int (*build)(struct factor **f, const struct factor_params *p,
                 const float *h, struct err *e);
    /* codes[rows, cols / 2] = packed codes of w[rows, cols] on the grids
     * meta[rows, ceil(cols/group)].  f NULL: round to nearest, losses are 0.
     * Codes of dead inputs are the grid's zero.
     * E_DATA: "row 3: input 17 is not finite". */
    int (*run)(const struct solve_params *p, const void *w,
               const uint32_t *meta, const struct factor *f, uint8_t *codes,
               struct solve_result *r, struct err *e);
};

extern const struct solve_backend solve_cpu;
extern const struct solve_backend solve_gpu; /* of an open device alone */

/* A factor for refined_solve() on the GPU, which keeps H beside it. */
MUST_CHECK int solve_gpu_whole(struct factor **f, const struct factor_params *p,
                               const float *h, struct err *e);

/* The linears that read one input. */
enum { SOLVE_LINEARS = 8 };
struct solve_input {
    struct factor_params params;
    const float *h; /* the hessian, as params says; NULL: there is none */
    int n;
    struct {
        struct solve_params params;
        const void *w;
        const uint32_t *meta;
        uint8_t *codes;             /* out */
        struct solve_result result; /* out */
    } linear[SOLVE_LINEARS];
    /* In: one that solve_build() made.  Out, where there was none and the input
     * has been solved: that of h; factor_free() it. */
    struct factor *factor;
    double seconds; /* out: what each linear took */
    bool solved;    /* out */
};

/* The factor of h, where this process computes (device/device.h). */
MUST_CHECK int solve_build(struct factor **f, const struct factor_params *p,
                           const float *h, struct err *e);
/* Codes of the linears of n inputs, by their factors, or by those that are made
 * of h; with neither they are rounded to nearest.  The CPU takes one input after
 * the other, a GPU those that are alike in one call.  An input that goes wrong is
 * not solved, and the others are; with its factor and by itself it says why.
 * 0, or of a single input with its factor as solve_backend.run; E_TEMP;
 * E_DEVICE. */
MUST_CHECK int solve_inputs(struct solve_input *in, int n, struct err *e);

/* The same of several inputs on the open GPU, none of which has a factor. */
MUST_CHECK int solve_gpu_batch(struct solve_input *in, int n, struct err *e);
/* The factor of the GPU in the CPU's form beside it, for a module that the GPU
 * declined. */
MUST_CHECK int solve_gpu_fetch(struct factor *f, struct err *e);

#endif
