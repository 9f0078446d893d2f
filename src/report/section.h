/* section.h - what the sections of a page share; for page*.c alone. */
#ifndef FORGE_SECTION_H
#define FORGE_SECTION_H

#include "report/chart.h"
#include "report/workdir.h"

enum { STEP_NAMES = 16 };

/* The run, and sums over its records that several sections need. */
struct page {
    const struct workdir *w;
    const struct records *r;
    size_t layers;                     /* of the charts */
    double *loss;                      /* [layers, 3]: rtn, beside, ours */
    double *cell;                      /* [kinds, layers, 2]: loss, loss_rtn */
    double *layer_second;              /* [layers, STEP_NAMES] */
    const char *step_name[STEP_NAMES]; /* of steps that work on a layer */
    size_t steps;
    const char *beside; /* whose loss is beside ours; NULL: nobody's */
    bool plain;         /* beside is plain GPTQ's, of this run */
    bool has_loss, solving_alone;
};

/* beside: the name of the run that module.loss_beside is of; NULL: plain GPTQ.
 * page_close() it, also after an error.  E_TEMP. */
MUST_CHECK int page_open(struct page *p, const struct workdir *w,
                         const char *beside, struct err *e);
void page_close(struct page *p);

/* The number of a step's name, which is added when it is new; STEP_NAMES: no
 * room. */
size_t page_step(struct page *p, const char *name);
/* The figures of the whole model, by themselves or of the last layer; NULL. */
const struct figures *page_figures(const struct page *p);
/* "3", for chart_*. */
void page_index_label(const void *arg, size_t i, char label[LABEL_MAX]);
void page_plain_text(double v, char label[LABEL_MAX]);

/* Each section, or nothing when nothing is known.  E_TEMP. */
MUST_CHECK int page_losses(struct html *h, const struct page *p, struct err *e);
void page_evaluation(struct html *h, const struct page *p);
void page_times(struct html *h, const struct page *p);
void page_sizes(struct html *h, const struct page *p);
/* cheap: see struct page_params. */
MUST_CHECK int page_experts(struct html *h, const struct page *p,
                            const struct hitmaps *cheap, struct err *e);

#endif
