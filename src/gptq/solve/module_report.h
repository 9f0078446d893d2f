/* module_report.h - the result of solving a module: its figures, and how they
 * are written beside its codes (note frames, a line of --report). */
#ifndef FORGE_MODULE_REPORT_H
#define FORGE_MODULE_REPORT_H

#include "common/io/file.h"
#include "common/io/stream.h"
#include "device/ledger.h"
#include "gptq/solve/solve.h"

/* Losses are sums over rows of (w - q) H (w - q)ᵀ, see solve.h. */
struct module_report {
    const char *method;  /* "gptq", "rtn" */
    const char *order;   /* word of ORDER_WORDS; NULL: rounded to nearest */
    bool measured;       /* the losses are known: there was a Hessian */
    double loss;         /* of the codes written */
    double loss_rtn;     /* of round to nearest on the grids of forge-grid */
    double loss_gptq;    /* of plain GPTQ on the same grids; 0: not measured */
    uint64_t samples;    /* tokens of the Hessian */
    double damping;      /* the last one tried */
    const double *tried; /* [n_tried]: dampings tried, the factor's memory */
    int n_tried;
    double seconds;
    const char *effort; /* word of EFFORT_WORDS; NULL: fast */
    bool corrected;     /* the target was moved by cross moments (target.h) */
    uint64_t rows_kept; /* but not these rows: it was too far */
    /* Of some rows of a linear: solve_params.tiles, in place of losses in the note, for
     * who joins the rows; the solver's memory until its next module. */
    const double *tiles;
    uint64_t n_tiles;
};

/* Set samples and dampings from the factor f of a Hessian of so many tokens.
 * Warns of a module that no token has reached (samples 0). */
void module_report_factor(struct module_report *report, const char *module,
                          const struct factor *f, uint64_t samples);
/* Set method, order and losses of codes chosen with a factor.  nearest:
 * --method rtn, whose losses the factor measures. */
void module_report_codes(struct module_report *report, bool nearest,
                         enum factor_order order, const struct solve_result *r);
/* Where a module is written to. */
struct module_output {
    struct stream_writer *out;
    struct ledger *ledger;  /* where codes are lent, or NULL */
    struct publish *report; /* or NULL */
};
/* Write to to->out the codes (frame like the weight w, U4 or U8), the frame `grids`,
 * a note with the report, and an ancillary note with the seconds (which differ
 * from run to run); and to to->report the report as a line of JSON.  E_TEMP; errors
 * of writing. */
MUST_CHECK int module_write(const struct module_report *report,
                            const struct frame *w, const struct frame *grids,
                            const uint8_t *codes,
                            const struct module_output *to, struct err *e);

/* The tool's last line about all modules, in `text`, which is returned. */
enum { MODULE_SUMMARY = 240 };
const char *module_summary(char text[MODULE_SUMMARY], uint64_t modules,
                           double loss, double loss_rtn, uint64_t fallbacks,
                           uint64_t rows_kept);

#endif
