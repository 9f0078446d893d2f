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
    double loss;         /* sum over rows of (w-q) H (w-q)ᵀ, no damping */
    double loss_nearest; /* the same for round-to-nearest on these grids; of many
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

/* The linears that read one input, for solve_gpu_together(). */
enum { SOLVE_LINEARS = 8 };
struct solve_input {
    const float *h; /* packed lower triangle of params.cols inputs */
    int n;
    struct {
        struct solve_params params;
        const void *w;
        const uint32_t *meta;
        uint8_t *codes;             /* out */
        struct solve_result result; /* out */
    } linear[SOLVE_LINEARS];
    struct factor *factor; /* out: what was tried; factor_free() it */
    double seconds;        /* the caller's: what each linear took */
    bool solved;           /* out: otherwise one linear at a time may be, or
                              says what is wrong */
};
/* All factors of n inputs in one call on the open GPU, and then all linears of
 * one shape.  in[i]->n and params, number by number, are equal.  When memory
 * ends, or one of them goes wrong, with half as many.  E_TEMP, E_DEVICE. */
MUST_CHECK int solve_gpu_together(struct solve_input **in, int n,
                                  const struct factor_params *p, struct err *e);

/* Both by the device of this process (device/device.h); solve_run() takes any
 * factor, the one that solve_build() made where it was made. */
MUST_CHECK int solve_build(struct factor **f, const struct factor_params *p,
                           const float *h, struct err *e);
MUST_CHECK int solve_run(const struct solve_params *p, const void *w,
                         const uint32_t *meta, struct factor *f, uint8_t *codes,
                         struct solve_result *r, struct err *e);

#endif
