/* records.h - reads JSON that tools wrote about a run: forge-solve's report of
 * each module, the duration of each step, the figures of forge-eval --json. */
#ifndef FORGE_WORK_RECORDS_H
#define FORGE_WORK_RECORDS_H

#include "common/base.h"

/* A missing number is NAN, a missing count -1, a missing word "". */
struct module {
    char *name;     /* "model.layers.3.mlp.experts.7.up_proj" */
    int64_t layer;  /* 3, or -1 */
    int64_t expert; /* 7, or -1 */
    size_t kind;    /* index into records.kind: "mlp.experts.*.up_proj" */
    char method[24], order[24];
    double loss, loss_rtn; /* of the codes; of round to nearest */
    double loss_compared;  /* of plain GPTQ, or of another run */
    double damping, seconds;
    int64_t samples, tries; /* tokens; number of dampings tried (0: one) */
    int64_t kept;     /* rows whose corrected target was too far, and stayed */
    uint64_t weights; /* their number, 0: not known */
    int bits;         /* of a code: 4 or 8; 0: not known */
    uint64_t bytes;   /* of its tensors in the checkpoint, 0: not known */
};

struct step {
    char name[24];
    char host[64]; /* "": not known */
    int64_t layer; /* -1: none */
    double seconds;
};

enum { FIGURES_BINS = 64, FIGURES_POSITIONS = 32 };

/* Means over the positions of a sequence from `from` up to the next one's. */
struct figures_at {
    int64_t from, tokens;
    double ppl_original, ppl, kl_mean, kl_sem;
};

/* A line of forge-eval --json, of predictions; its figures are in forge-eval(1). */
struct figures {
    int64_t layer; /* of --by-layer; -1: the whole model */
    int64_t sequences, seqlen, tokens;
    char original[128], other[128]; /* names of directories */
    char text[128], sha256[80], dtype[8];
    double ppl_original, ppl, kl_mean, kl_sem, kl_median, kl_p99, kl_max, top1;
    /* the histogram's first edge, its edges in a power of ten, its counts */
    double kl_from, kl_per_decade;
    int64_t kl_count[FIGURES_BINS];
    size_t kl_bins;                          /* 0: there is none */
    struct figures_at at[FIGURES_POSITIONS]; /* in ascending order */
    size_t positions;                        /* their number, or 0 */
};

/* Zero-initialise; records_release() when done. */
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

/* Add a note frame's text about the module `name`: a note with "method" begins
 * a record, one with "seconds" completes the last record if that is of the same
 * name, others are ignored.  E_DATA: no JSON; E_TEMP. */
MUST_CHECK int records_note(struct records *r, const char *name,
                            const char *text, size_t len, struct err *e);
/* Add one line of JSON: of forge-solve --report (RECORD_MODULE), of forge's
 * stages.jsonl (RECORD_STEP) or of forge-eval --json (RECORD_FIGURES).  E_DATA:
 * no JSON, or without the members that such a record needs; E_TEMP. */
MUST_CHECK int records_line(struct records *r, enum record_type type,
                            const char *line, size_t len, struct err *e);
/* Remove the module added last; there must be one. */
void records_drop(struct records *r);
/* Add all lines of a file.  Errors as records_line(), with file and line;
 * E_NOINPUT. */
MUST_CHECK int records_read(struct records *r, enum record_type type,
                            const char *path, struct err *e);
/* Give each module of r the loss of the one of the same name in other. */
void records_compare(struct records *r, const struct records *other);
void records_release(struct records *r);

/* loss / rtn; NAN when either is unknown or infinite, or rtn is 0. */
double loss_ratio(double loss, double rtn);
/* The module's loss_ratio(). */
double module_ratio(const struct module *m);

#endif
