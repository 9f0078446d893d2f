/* page.h - writes the report: one self-contained HTML page. */
#ifndef FORGE_PAGE_H
#define FORGE_PAGE_H

#include "report/html.h"
#include "report/peers.h"
#include "report/workdir.h"

struct page_params {
    const char *title;    /* the model's name; NULL: its directory's name */
    const char *compared; /* name of the run that module.loss_compared is of;
                             NULL: of plain GPTQ */
    struct hitmaps
        cheap; /* hit maps of another pass (forge-calib --skip-experts),
                             to compare with the run's; may be empty */
    struct peers peers;     /* evaluations of other checkpoints */
    const char *json, *csv; /* files with the same, to link to; NULL: none */
};

/* Append the page to h.  After its first line it is also well-formed XML.
 * E_TEMP. */
MUST_CHECK int page_write(struct html *h, const struct workdir *w,
                          const struct page_params *params, struct err *e);

#endif
