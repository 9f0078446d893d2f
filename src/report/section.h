/* section.h - what the sections of the page, and the files beside it, share. */
#ifndef FORGE_SECTION_H
#define FORGE_SECTION_H

#include "common/io/modeldir.h"
#include "report/chart.h"
#include "report/params.h"
#include "report/workdir.h"

enum { STEP_NAMES = 16, PEER_CLASSES = 6 };

/* The run, and sums over its records. */
struct page {
    const struct workdir *w;
    const struct records *r;
    const struct page_params *params;
    char model[256];      /* what the page calls the model */
    size_t layers;        /* in the charts */
    double *loss;         /* [layers, 3]: rtn, compared, this run */
    double *cell;         /* [kinds, layers, 2]: loss, loss_rtn */
    double *layer_second; /* [layers, STEP_NAMES] */
    const char *step_name[STEP_NAMES]; /* [steps]: steps that work on a layer */
    size_t steps;
    const char *compared; /* whose losses loss_compared are; NULL: none */
    char compared_name[64];
    bool plain; /* compared is plain GPTQ, in this run */
    bool has_loss, solving_alone;
};

/* Colours of what is shown beside the run, whose own is "ours". */
extern const char *const page_peer_class[PEER_CLASSES];

/* page_close() it, also after an error.  E_TEMP. */
MUST_CHECK int page_open(struct page *p, const struct workdir *w,
                         const struct page_params *params, struct err *e);
void page_close(struct page *p);

/* Index of a step's name, added if it is new; STEP_NAMES: the table is full. */
size_t page_step(struct page *p, const char *name);
/* A setting of the run as text; "" or 0 where it is absent. */
const char *page_text(const struct page *p, const char *name);
long long page_number(const struct page *p, const char *name);
/* "gptq, effort default". */
void page_method(const struct page *p, char to[LABEL_MAX]);
/* The sum of the losses of all layers; series as in page.loss. */
double page_loss_sum(const struct page *p, size_t series);
/* When the last call began, "2026-11-22 23:54 UTC"; "": not known. */
const char *page_date(const struct page *p, char to[32]);
/* A word as a shell reads it: in quotes where that is needed.  Words that do
 * not fit are cut. */
void page_shell_word(char *to, size_t cap, const char *word);
/* A number, or a dash where it is not known, as a cell of a table, and the head
 * of its column; class: "" or " " and a class. */
void page_number_cell(struct html *h, const char *class, label_text *text,
                      double v);
void page_number_head(struct html *h, const char *class, const char *text);

/* Append a section; nothing when there is no data for it.  E_TEMP. */
void page_tiles(struct html *h, const struct page *p);
void page_alerts(struct html *h, const struct page *p);
void page_facts(struct html *h, const struct page *p);
MUST_CHECK int page_evaluation(struct html *h, const struct page *p,
                               struct err *e);
MUST_CHECK int page_losses(struct html *h, const struct page *p, struct err *e);
MUST_CHECK int page_modules(struct html *h, const struct page *p,
                            struct err *e);
void page_times(struct html *h, const struct page *p);
void page_sizes(struct html *h, const struct page *p);
MUST_CHECK int page_experts(struct html *h, const struct page *p,
                            struct err *e);

#endif
