/* module.h - one linear on its way through forge-solve: its Hessian's factor and
 * its codes. */
#ifndef FORGE_MODULE_H
#define FORGE_MODULE_H

#include "common/io/file.h"
#include "common/io/stream.h"
#include "gptq/hessian_file.h"
#include "gptq/solve/fisher_descent.h"
#include "gptq/solve/module_report.h"
#include "gptq/solve/solve_refined.h"

struct module_params {
    const char *hessian; /* file; NULL: none but module_hessian()'s */
    const char
        *fisher; /* file of those of outputs' gradients, see fisher_descent.h;
                            NULL: none */
    enum factor_order order;
    double damping;
    double prior; /* tokens for each input, see hessian_file_add_prior() */
    bool nearest; /* --method rtn */
    bool strict;  /* a module that cannot be factored is an error */
    /* Not fast: grids chosen in the solve (order group, and inside), refined
     * codes; where that cannot be (groups that are no multiple of 8) as fast */
    enum effort effort;
    int sweeps;         /* of refinement, at most; < 0: as the effort has it */
    int factors;        /* of grids; 0: as the effort has it */
    bool negative;      /* symmetric scales may be negative */
    double alpha, beta; /* of the correction by cross frames, see target.h */
};

struct module_solver;

MUST_CHECK int module_open(struct module_solver **m,
                           const struct module_params *p, struct err *e);
/* HEAD of the file with the Hessians, or NULL. */
const char *module_head(const struct module_solver *m);
/* A hessian frame of the input: that of the modules that it names, from here
 * to the next one.  Without any, modules are rounded to nearest. */
MUST_CHECK int module_hessian(struct module_solver *m, const struct frame *f,
                              struct err *e);
/* Keep a cross frame, for the modules that it names: NAME.drift or
 * NAME.output, see target.h.  It goes when one of another NAME comes. */
MUST_CHECK int module_cross(struct module_solver *m, const struct frame *f,
                            struct err *e);
/* codes[w->dims[0], w->dims[1] / 2] for a weight frame and its qmeta frame;
 * grids: the qmeta's payload, replaced where the effort chooses other ones.
 * The factor is kept for the next module with the same Hessian.
 * E_DATA: shapes, a missing Hessian, numbers that are not finite; under
 * strict also a factorization that fails. */
MUST_CHECK int module_solve(struct module_solver *m, const struct frame *w,
                            const struct frame *meta, uint32_t *grids,
                            uint8_t *codes, struct module_report *report,
                            struct err *e);
/* Whether a weight and its qmeta are a module at all.  E_DATA. */
MUST_CHECK int module_check(const struct frame *w, const struct frame *meta,
                            struct err *e);
/* What is solved of a module that is one. */
struct solve_params module_shape(const struct frame *w,
                                 const struct frame *meta);
/* Modules that should have been solved and were rounded to nearest. */
uint64_t module_fallbacks(const struct module_solver *m);
void module_close(struct module_solver *m); /* NULL is allowed */

#endif
