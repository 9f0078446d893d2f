/* section.h - private to page*.c: what the sections of the page share. */
#ifndef FORGE_SECTION_H
#define FORGE_SECTION_H

#include "report/chart.h"
#include "report/workdir.h"

enum { STEP_NAMES = 16 };

/* The run, and sums over its records. */
struct page {
    const struct workdir *w;
    const struct records *r;
    size_t layers;        /* in the charts */
    double *loss;         /* [layers, 3]: rtn, compared, this run */
    double *cell;         /* [kinds, layers, 2]: loss, loss_rtn */
    double *layer_second; /* [layers, STEP_NAMES] */
    const char *step_name[STEP_NAMES]; /* [steps]: steps that work on a layer */
    size_t steps;
    const char *compared; /* whose losses loss_compared are; NULL: none */
    bool plain;           /* compared is plain GPTQ, in this run */
    bool has_loss, solving_alone;
};

/* compared: name of the run that module.loss_compared is of; NULL: plain GPTQ.
 * page_close() it, also after an error.  E_TEMP. */
MUST_CHECK int page_open(struct page *p, const struct workdir *w,
                         const char *compared, struct err *e);
void page_close(struct page *p);

/* Index of a step's name, added if it is new; STEP_NAMES: the table is full. */
size_t page_step(struct page *p, const char *name);
/* The figures of the whole model: those of forge-eval, else --by-layer's last;
 * NULL: none. */
const struct figures *page_figures(const struct page *p);
/* Callbacks of charts: label = "3"; a number as text. */
void page_index_label(const void *arg, size_t i, char label[LABEL_MAX]);
void page_plain_text(double v, char label[LABEL_MAX]);

/* Append a section; nothing when there is no data for it.  E_TEMP. */
MUST_CHECK int page_losses(struct html *h, const struct page *p, struct err *e);
void page_evaluation(struct html *h, const struct page *p);
void page_times(struct html *h, const struct page *p);
void page_sizes(struct html *h, const struct page *p);
/* cheap: see struct page_params. */
MUST_CHECK int page_experts(struct html *h, const struct page *p,
                            const struct hitmaps *cheap, struct err *e);

#endif
