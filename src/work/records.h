/* records.h - JSON that other tools wrote about a run: what forge-solve notes
 * of each module, how long each step took, and what forge-eval --json found. */
#ifndef FORGE_WORK_RECORDS_H
#define FORGE_WORK_RECORDS_H

#include "common/base.h"

/* A number that is not there is NAN, a count that is not there is -1. */
struct module {
    char *name;     /* "model.layers.3.mlp.experts.7.up_proj" */
    int64_t layer;  /* 3, or -1 */
    int64_t expert; /* 7, or -1 */
    size_t kind;    /* of `kinds`: "mlp.experts.*.up_proj" */
    char method[24], order[24];
    double loss, loss_rtn;
    double loss_beside; /* of plain GPTQ, or of another run */
    double damping, seconds;
    int64_t samples, tries; /* tries: dampings that were tried */
};

struct step {
    char name[24];
    int64_t layer; /* -1: none */
    double seconds;
};

struct figures {
    int64_t layer; /* of --by-layer; -1: the whole model */
    int64_t sequences, tokens;
    double ppl_original, ppl, kl_mean, kl_sem, kl_median, kl_p99, kl_max, top1;
};

struct records {
    struct module *module;
    size_t modules, modules_cap;
    char **kind; /* in the order in which they came */
    size_t kinds, kinds_cap;
    struct step *step;
    size_t steps, steps_cap;
    struct figures *figures;
    size_t n_figures, figures_cap;
};

enum record_type { RECORD_MODULE, RECORD_STEP, RECORD_FIGURES };

/* A note of forge-solve about the module `name`: one with a method begins a
 * record, one with seconds completes the last one if that is of this name,
 * others are passed over.  E_DATA: no JSON object. */
MUST_CHECK int records_note(struct records *r, const char *name,
                            const char *text, size_t len, struct err *e);
/* Add one line: of forge-solve --report, of a step, of forge-eval --json. */
MUST_CHECK int records_line(struct records *r, enum record_type type,
                            const char *line, size_t len, struct err *e);
/* Take back the module that was added last. */
void records_drop(struct records *r);
/* Add the lines of a file.  E_DATA: one is no JSON object, or lacks what makes
 * it such a record, with file and line; E_NOINPUT. */
MUST_CHECK int records_read(struct records *r, enum record_type type,
                            const char *path, struct err *e);
/* Give each module of r the loss of the one of the same name in other. */
void records_beside(struct records *r, const struct records *other);
void records_release(struct records *r);

/* loss / rtn; NAN when either is unknown or infinite, or rtn is 0. */
double loss_ratio(double loss, double rtn);
double module_ratio(const struct module *m);

#endif
