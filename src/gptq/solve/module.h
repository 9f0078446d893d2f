/* module.h - forge-solve's work on one linear ("module"): find its Hessian and
 * cross moments, factor the Hessian, choose the codes by the effort asked
 * for. */
#ifndef FORGE_MODULE_H
#define FORGE_MODULE_H

#include "common/io/file.h"
#include "common/io/stream.h"
#include "gptq/hessian_file.h"
#include "gptq/solve/fisher_descent.h"
#include "gptq/solve/fishers.h"
#include "gptq/solve/module_report.h"
#include "gptq/solve/solve_refined.h"

struct module_params {
    const char *hessian; /* file of Hessians; NULL: module_hessian() alone */
    const char *fisher;  /* file of the F of fisher_descent.h; NULL: none */
    enum factor_order order; /* of EFFORT_FAST */
    double damping;          /* the first one tried, see factor.h */
    double prior; /* tokens per input, see hessian_file_add_prior() */
    bool nearest; /* --method rtn */
    bool strict;  /* a Hessian that cannot be factored is an error */
    /* Above EFFORT_FAST: solve_refined.h.  Groups that are no multiple of 8
     * inputs are solved as with EFFORT_FAST. */
    enum effort effort;
    int sweeps;         /* of refinement, at most; < 0: the effort's number */
    int factors;        /* candidates, block_params; 0: the effort's number */
    bool negative;      /* symmetric scales may be negative */
    double alpha, beta; /* of the correction by cross moments, see target.h */
};

struct module_solver;

/* E_TEMP; of the two files the errors of hessian_file_open(). */
MUST_CHECK int module_open(struct module_solver **m,
                           const struct module_params *p, struct err *e);
/* Add the programs that made the files to out's HEAD, as stream_inherit(). */
MUST_CHECK int module_inherit(const struct module_solver *m,
                              struct stream_writer *out, struct err *e);
/* The file module_params.fisher; NULL: none. */
struct fishers *module_fishers(const struct module_solver *m);
/* Take a hessian frame of the input (copied): it is the Hessian of the modules
 * that the frame names, until the next one comes.  A module is rounded to
 * nearest when the run has no Hessians at all.  E_DATA, E_TEMP. */
MUST_CHECK int module_hessian(struct module_solver *m, const struct frame *f,
                              struct err *e);
/* Keep a copy of a cross frame for the modules that it names: NAME.drift (E of
 * target.h), NAME.output (G) or NAME.gap (F).  It replaces the one kept before
 * of the same kind.  E_DATA: no cross moment; E_TEMP. */
MUST_CHECK int module_cross(struct module_solver *m, const struct frame *f,
                            struct err *e);
/* Which cross moment a frame is: COMPANION_DRIFT, COMPANION_OUTPUT or
 * COMPANION_GAP.  E_DATA: none. */
MUST_CHECK int module_cross_kind(const struct frame *f, struct err *e);
/* The plan of the effort for groups of this size: EFFORT_FAST's where the refined
 * solver cannot take them; and what it is to do with a module that has `grid`. */
struct effort_plan module_effort(const struct module_params *p, uint64_t group);
struct refined_params module_refined(const struct module_params *p,
                                     const struct solve_params *s,
                                     uint32_t grid);
void module_report_refined(struct module_report *report,
                           const struct module_params *p, bool corrected,
                           const struct refined_result *r);
/* codes[w->dims[0], w->dims[1] / 2] (two U4 a byte; of 8 bits U8) for a weight
 * frame and its qmeta frame.  grids[rows, groups]: in, a copy of the qmeta's
 * payload; out, the grids of the codes, which an effort above EFFORT_FAST
 * chooses anew.  The factor is kept for the next module with the same Hessian.
 * E_DATA: module_check() fails, there are Hessians but none for this module, a
 * number is not finite, or under strict the factorization fails; E_TEMP;
 * E_DEVICE. */
MUST_CHECK int module_solve(struct module_solver *m, const struct frame *w,
                            const struct frame *meta, uint32_t *grids,
                            uint8_t *codes, struct module_report *report,
                            struct err *e);
/* E_DATA: w is no float matrix with an even number of inputs; the shape or scale
 * type of the qmeta does not fit it, or its grids have different bits. */
MUST_CHECK int module_check(const struct frame *w, const struct frame *meta,
                            struct err *e);
/* The solver's parameters for a module that module_check() accepts. */
struct solve_params module_shape(const struct frame *w,
                                 const struct frame *meta);
/* Number of modules rounded to nearest because no damping made their Hessian
 * positive definite. */
uint64_t module_fallbacks(const struct module_solver *m);
void module_close(struct module_solver *m); /* NULL is allowed */

#endif
