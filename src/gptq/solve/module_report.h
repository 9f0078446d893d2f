/* module_report.h - what is known about a module that has been solved, and how it
 * goes out with its codes. */
#ifndef FORGE_MODULE_REPORT_H
#define FORGE_MODULE_REPORT_H

#include "common/io/file.h"
#include "common/io/stream.h"
#include "gptq/solve/solve.h"

/* What happened to a module. */
struct module_report {
    const char *method; /* "gptq", "rtn" */
    const char *order;  /* NULL when there is none */
    bool measured;      /* losses are known */
    double loss, loss_rtn;
    double loss_gptq; /* of plain GPTQ beside it; 0: not measured */
    uint64_t samples;
    double damping; /* the one that worked */
    const double *tried;
    int n_tried;
    double seconds;
    const char *effort; /* NULL: fast */
    bool corrected;     /* the target was moved by cross frames */
};

/* What a note says of the factor of a Hessian of so many tokens; a module that
 * no token has reached is warned of. */
void module_report_factor(struct module_report *report, const char *module,
                          const struct factor *f, uint64_t samples);
/* And of codes chosen by it, all but those of refined_solve(). */
void module_report_codes(struct module_report *report, bool nearest,
                         enum factor_order order, const struct solve_result *r);
/* Write the codes of the module whose weight is w, their grids and its note,
 * its seconds as an ancillary one; and a line of the file, unless that is NULL. */
MUST_CHECK int module_write(const struct module_report *report,
                            const struct frame *w, const struct frame *grids,
                            const uint8_t *codes, struct stream_writer *out,
                            struct publish *file, struct err *e);

/* What so many modules came to, for the last line. */
enum { MODULE_SUMMARY = 160 };
const char *module_summary(char text[MODULE_SUMMARY], uint64_t modules,
                           double loss, double loss_rtn, uint64_t fallbacks);

#endif
