/* solve_table.h - the GPU's functions of forge-solve; see device/plugin.h.
 *
 * Factors and codes differ from the CPU's by the order of sums alone.  A new
 * member of factor_params, solve_params, refined_params or what they hold: the
 * plug-in computes with it or returns E_CONFIG. */
#ifndef FORGE_SOLVE_TABLE_H
#define FORGE_SOLVE_TABLE_H

#include "device/plugin.h"
#include "gptq/solve/solve.h"

#define SOLVE_TABLE "forge_solve_table"
enum { SOLVE_TABLE_VERSION = 1 };

struct cuda_factors;
struct refined_params; /* solve_refined.h */
struct refined_hessian;
struct refined_result;

/* One matrix of a batch of equal size, and what became of it. */
struct cuda_matrix {
    const float *h;        /* packed lower triangle, see hessian.h */
    const uint32_t *input; /* [cols]: as struct factor has it */
    const bool *dead;      /* [cols]: of column c of the factor */
    double mean;           /* of the live diagonal */
    double damping;        /* the first that is tried, as a part of mean */
    bool whole;            /* H is kept, for solve_refined() and for nothing
                                   else; the same in all of a batch */
    double lambda;         /* out: what was added to the diagonal */
    double tried[FACTOR_TRIES]; /* out */
    int n_tried;                /* out */
    bool failed;                /* out: no damping helped */
    bool bad;                   /* out, then failed too: h is not finite */
};

/* One weight matrix of a batch. */
struct cuda_module {
    const void *w;              /* [rows, cols] of params.dtype */
    const uint32_t *meta;       /* [rows, ceil(cols/group)] */
    uint8_t *codes;             /* out: [rows, cols / 2] */
    struct solve_result result; /* out */
};

struct solve_table {
    uint32_t version;
    /* Factor n matrices of one size; a factor does not depend on the others.
     * 0 also when some of them failed: each says so itself.  E_TEMP, of solve()
     * too: all room but that of factors and Hessians has been given back, so
     * that fewer at a time may fit. */
    int (*factors_build)(struct cuda_factors **f, struct cuda_context *c,
                         uint64_t cols, struct cuda_matrix *m, int n,
                         struct err *e);
    /* For solve_refined(): E[cols, cols] of target.h, inputs as stored; NULL:
     * there is none any more. */
    int (*factors_drift)(struct cuda_factors *f, const float *drift,
                         struct err *e);
    /* l[cols, cols]: the lower triangle of L of matrix i, zero above it. */
    int (*factors_read)(const struct cuda_factors *f, int i, float *l,
                        struct err *e);
    void (*factors_free)(struct cuda_factors *f); /* NULL is allowed */
    /* Codes of n modules of one shape, each by the factor of its number; with
     * fewer factors equally many modules in a row share one. */
    int (*solve)(struct cuda_context *c, const struct solve_params *p,
                 const struct cuda_factors *f, struct cuda_module *m, int n,
                 struct err *e);
    /* As refined_solve(), by factors of one whole matrix each
     * (b->factor[i]->gpu).  A group has 128 inputs at most. */
    int (*solve_refined)(struct cuda_context *c, const struct refined_params *p,
                         const struct refined_hessian *b, const void *w,
                         uint32_t *meta, uint8_t *codes,
                         struct refined_result *r, struct err *e);
    /* m's codes rounded to nearest, equal to the CPU's to the bit; no result. */
    int (*nearest)(struct cuda_context *c, const struct solve_params *p,
                   struct cuda_module *m, struct err *e);
};

extern struct plugin_table solve_plugin;

/* While device_gpu() is there. */
static inline const struct solve_table *solve_functions(void)
{
    return (const struct solve_table *)solve_plugin.functions;
}

#endif
