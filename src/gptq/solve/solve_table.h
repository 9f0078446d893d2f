/* solve_table.h - the functions of the GPU plug-in for forge-solve; see
 * device/plugin.h.
 *
 * Factors and codes differ from the CPU's only by the order of floating-point
 * sums.  The plug-in must implement a new member of factor_params,
 * solve_params, refined_params or of their members, or return E_CONFIG. */
#ifndef FORGE_SOLVE_TABLE_H
#define FORGE_SOLVE_TABLE_H

#include "device/plugin.h"
#include "gptq/solve/solve.h"

#define SOLVE_TABLE "forge_solve_table"
enum { SOLVE_TABLE_VERSION = 7 };

struct cuda_factors;
struct refined_params; /* solve_refined.h */
struct refined_hessian;

/* One matrix of factors_build()'s batch, with its results. */
struct cuda_matrix {
    const float *h; /* packed lower triangle, see hessian.h; the host's, or the
                       device's */
    const uint32_t *input; /* [cols]: as struct factor has it */
    const bool *dead;      /* [cols]: of column c of the factor */
    double mean;           /* of diag H over inputs that are not dead */
    double damping;        /* the first one tried: lambda / mean */
    float prior;           /* added to elements of H's diagonal that are not 0;
                              mean is of the sums.  Of solve_refined() output
                              is G + prior W then, if it is G (target.h) */
    bool whole;            /* H is kept, and the factor is for solve_refined()
                              alone; equal for all of a batch */
    double lambda;         /* out: what was added to the diagonal */
    double tried[FACTOR_TRIES]; /* out */
    int n_tried;                /* out */
    bool failed;                /* out: no damping helped, or bad */
    bool bad;                   /* out: h has an element that is not finite */
};

/* One weight matrix of solve()'s batch. */
struct cuda_module {
    const void *w;                /* [rows, cols] of params.dtype */
    const struct fp8_matrix *fp8; /* as struct solve_input has it */
    const uint32_t *meta;         /* [rows, ceil(cols/group)] */
    uint8_t *codes;               /* out: [rows, cols / 2] */
    struct solve_result result;   /* out */
};

/* One weight matrix of a batch for solve_refined(). */
struct cuda_refined {
    const void *w;                /* [rows, cols] of params.solve.dtype */
    const struct fp8_matrix *fp8; /* as struct solve_input has it */
    uint32_t *meta;               /* in and out, see refined_solve() */
    uint8_t *codes;               /* out: [rows, cols / 2] */
    /* As refined_params has them, output of all or of none; it is the host's, or
     * the device's. */
    const float *output;
    float *target;
    const float *fisher;          /* likewise */
    struct refined_result result; /* out */
};

struct solve_table {
    uint32_t version;
    /* Factor n matrices [cols, cols]; a factor does not depend on the others of
     * its batch.  0 also when some of them have failed (cuda_matrix.failed).
     * E_TEMP, of solve() too: no device memory; buffers have been freed, except
     * those of factors and Hessians, so that a smaller batch may fit. */
    int (*factors_build)(struct cuda_factors **f, struct cuda_context *c,
                         uint64_t cols, struct cuda_matrix *m, int n,
                         struct err *e);
    /* For solve_refined(): E[cols, cols] of target.h, inputs as stored, of matrix
     * i, the host's or the device's; all matrices have one or none has.  NULL:
     * there are none any more. */
    int (*factors_drift)(struct cuda_factors *f, int i, const float *drift,
                         struct err *e);
    /* l[cols, cols] = L of matrix i, row-major, zero above the diagonal. */
    int (*factors_read)(const struct cuda_factors *f, int i, float *l,
                        struct err *e);
    void (*factors_free)(struct cuda_factors *f); /* NULL is allowed */
    /* Codes of n modules of one shape.  With k factors module i uses factor
     * i / (n / k): n is a multiple of k. */
    int (*solve)(struct cuda_context *c, const struct solve_params *p,
                 const struct cuda_factors *f, struct cuda_module *m, int n,
                 struct err *e);
    /* As refined_solve(), n modules by factors of whole matrices
     * (b->factor[i]->gpu), of which there are as many as solve() takes.  b's plans
     * hold for all matrices: their groups may come in different orders, but all
     * in the same columns.  Of p output, target and
     * fisher are not looked at.  A group has 128 inputs at most. */
    int (*solve_refined)(struct cuda_context *c, const struct refined_params *p,
                         const struct refined_hessian *b,
                         struct cuda_refined *m, int n, struct err *e);
    /* m's codes rounded to nearest, equal to the CPU's to the bit; no result, and no
     * fp8. */
    int (*nearest)(struct cuda_context *c, const struct solve_params *p,
                   struct cuda_module *m, struct err *e);
};

extern struct plugin_table solve_plugin;

/* Valid while device_gpu() is not NULL. */
static inline const struct solve_table *solve_functions(void)
{
    return (const struct solve_table *)solve_plugin.functions;
}

#endif
