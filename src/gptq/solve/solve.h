/* solve.h - GPTQ (arXiv 2210.17323) in a look-back form: choose codes that
 * minimize, greedily, (w-q) H (w-q)ᵀ for every row w of W, on fixed grids.
 *
 * With H + lambda I = R Rᵀ, R upper triangular, input by input in the factor's
 * order:
 *
 *     w*_j = w_j + sum over earlier t of (w_t - q_t) R_tj / R_jj
 *     q_j  = round(w*_j)                                (common/math/quant.h)
 *
 * w_t is the original weight.  In exact arithmetic the codes are those of the
 * paper's form, which updates the remaining weights by err * row of the
 * Cholesky factor of the inverse.  The loss comes at no cost:
 * sum over j of R_jj² (w*_j - q_j)² is (w-q)(H + lambda I)(w-q)ᵀ; lambda |w-q|²
 * is subtracted. */
#ifndef FORGE_SOLVE_H
#define FORGE_SOLVE_H

#include "common/base.h"
#include "common/math/fp8.h"
#include "gptq/solve/factor.h"

/* A new member must be implemented by the plug-in (src/cuda), or be declined in
 * solve_gpu.c by E_CONFIG. */
struct solve_params {
    uint64_t rows, cols;    /* of W: outputs, inputs; cols is even */
    uint64_t group;         /* inputs per grid */
    int bits;               /* of a code: 8 (on the CPU alone), else 4 */
    enum dtype dtype;       /* of W */
    enum dtype scale_dtype; /* what the scales are stored as */
    bool nearest; /* round to nearest; the factor only measures the loss */
    bool compare; /* also compute loss_nearest */
    /* W is rows first.. of a linear of `of` rows, on the CPU alone: first is a
     * multiple of 48; of 0: W is all of it. */
    uint64_t first, of;
    double *tiles; /* out, where `of` is given: [LOSSES][(rows + 47) / 48], the
                    * sums of each tile of 48 rows; NAN: not compared */
};
/* Losses of the codes, of round to nearest, and (refined_solve()) of plain GPTQ. */
enum solve_loss { LOSS_CODES, LOSS_NEAREST, LOSS_PLAIN, LOSSES };

C_BEGIN

/* What others lose, a yardstick, is computed of every step-th tile of 48 rows:
 * of all rows up to 768, of 408 to 816 beyond. */
uint64_t solve_compare_step(uint64_t rows);
/* Whether W's row is in the sample. */
bool solve_compared(const struct solve_params *p, uint64_t row);
/* How many of W's tiles are in the sample. */
uint64_t solve_compared_tiles(const struct solve_params *p);
/* The number of the tile to solve i-th: those in the sample first, since they take
 * longest, and the last ones of a loop should be short. */
uint64_t solve_tile_order(const struct solve_params *p, uint64_t i);
/* Sum of loss[rows], tile by tile. */
double solve_loss_sum(const double *loss, uint64_t rows);
/* Estimate of the sum of other[rows], a compared method's losses, of which only
 * the sampled rows are set, by loss[rows] of the codes chosen (common/math/sample.h). */
double solve_compare_sum(const struct solve_params *p, const double *loss,
                         const double *other);
/* Set the part of p->tiles, where it is wanted. */
void solve_tile_losses(const struct solve_params *p, enum solve_loss which,
                       const double *loss);

C_END

static inline bool solve_same(const struct solve_params *a,
                              const struct solve_params *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->group == b->group &&
           a->bits == b->bits && a->dtype == b->dtype &&
           a->scale_dtype == b->scale_dtype && a->nearest == b->nearest &&
           a->compare == b->compare;
}

struct solve_result {
    double loss;         /* sum over rows of (w-q) H (w-q)ᵀ, no damping */
    double loss_nearest; /* the same of round to nearest on these grids; above
                            768 rows an estimate, see solve_compare_sum() */
};

/* Of refined_solve(): all three losses, sums over rows of (w-q) H (w-q)ᵀ with H
 * undamped, are taken from the same (moved) target w. */
struct refined_result {
    struct solve_result solve;
    double loss_plain; /* of plain GPTQ on the grids that came with W */
    uint64_t kept;     /* rows that stayed, their target too far (target.h) */
};

struct solve_backend {
    const char *name;
    /* As factor_build(), for this backend's run().  The CPU's: at level amx the
     * panels are split (split.h) behind each block of 256 columns and only run()
     * can read them; run() also takes factors of factor_build().
     * E_CONFIG: the GPU does not take these params. */
    int (*build)(struct factor **f, const struct factor_params *p,
                 const float *h, struct err *e);
    /* codes[rows, cols / 2] (two U4 a byte; 8 bits: [rows, cols]) of
     * w[rows, cols] on the qmeta4 grids meta[rows, ceil(cols/group)].  f NULL:
     * round to nearest, losses are 0. Codes of dead inputs are the grid's zero.
     * E_DATA: "row 3: input 17 is not finite"; E_TEMP; of the GPU also
     * E_CONFIG, E_DEVICE. */
    int (*run)(const struct solve_params *p, const void *w,
               const uint32_t *meta, const struct factor *f, uint8_t *codes,
               struct solve_result *r, struct err *e);
};

extern const struct solve_backend solve_cpu;
extern const struct solve_backend solve_gpu; /* only while device_gpu() */

/* As solve_gpu.build, for refined_solve() on the GPU: H stays on the device
 * beside the factor. */
MUST_CHECK int solve_gpu_whole(struct factor **f, const struct factor_params *p,
                               const float *h, struct err *e);

struct refined_params; /* solve_refined.h */

/* A job of solve_inputs(): up to SOLVE_LINEARS linears that read the same input
 * (q, k, v; gate and up), and so share one Hessian. */
enum { SOLVE_LINEARS = 8 };
struct solve_input {
    struct factor_params params;
    const float *h; /* H, laid out as params.block says; NULL: none */
    /* H's diagonal with the prior, for a batch on the GPU, whose h may be the
     * device's; NULL: h has it. */
    const float *diagonal;
    double prior; /* see hessian_file_add_prior(); of a batch */
    bool alone;   /* each linear has a call of its own on the GPU */
    int n;        /* of linear */
    /* Not NULL: the refined solver, in `starts` orders; of the parameters solve,
     * output, target and fisher are not looked at.  On a GPU alone, and without a
     * factor. */
    const struct refined_params *refined;
    int starts;
    const float *drift;      /* E of target.h, or NULL */
    struct fishers *fishers; /* rows together, or NULL (fishers.h) */
    struct {
        struct solve_params params;
        const char *module; /* its name, with fishers */
        const void *w;      /* [rows, cols] of params.dtype */
        /* W as it is stored, of a batch on the GPU: it is what fp8_to_bf16() makes of
         * this, params.dtype is BF16, and w is NULL; NULL: W is at w. */
        const struct fp8_matrix *fp8;
        const uint32_t *meta;       /* [rows, ceil(cols/group)] */
        uint8_t *codes;             /* out: [rows, cols / 2] */
        struct solve_result result; /* out, of plain GPTQ */
        /* Of the refined solver: */
        uint32_t *grids;     /* out: the codes' */
        const float *output; /* G or F; all linears have one or none has */
        struct refined_result refined; /* out */
    } linear[SOLVE_LINEARS];
    /* In: a factor by solve_build(), or NULL.  Out, when it was NULL, h was
     * given and the input is solved: the factor of h; the caller calls
     * factor_free(). */
    struct factor *factor;
    double seconds; /* out: per linear */
    bool solved;    /* out: all its codes and results are set */
};

/* factor_build() on the device of this process (device/device.h), on the CPU
 * where the GPU declines. */
MUST_CHECK int solve_build(struct factor **f, const struct factor_params *p,
                           const float *h, struct err *e);
/* Codes of the linears of n inputs.  The CPU solves one input after the other,
 * a GPU all inputs of equal parameters in one call.
 * Two uses.  (1) n = 1, with `factor` set, or without `factor` and h (round to
 * nearest): returns as solve_backend.run.  (2) Any n, `h` set and `factor`
 * NULL: an input that fails has solved = false and no message, and does not
 * affect the others; returns 0, E_TEMP or E_DEVICE. */
MUST_CHECK int solve_inputs(struct solve_input *in, int n, struct err *e);

/* Use (2) of solve_inputs() on the open GPU. */
MUST_CHECK int solve_gpu_batch(struct solve_input *in, int n, struct err *e);
/* Copy a factor of the GPU into f->panel, for a module that the GPU declined.
 * E_TEMP, E_DEVICE. */
MUST_CHECK int solve_gpu_fetch(struct factor *f, struct err *e);

#endif
