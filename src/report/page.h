/* page.h - the report: one HTML page that needs nothing beside itself. */
#ifndef FORGE_PAGE_H
#define FORGE_PAGE_H

#include "report/html.h"
#include "report/workdir.h"

struct page_params {
    const char *title;    /* what to call the model; NULL: by its directory */
    const char *beside;   /* name of the run that module.loss_beside is of;
                             NULL: of plain GPTQ */
    struct hitmaps cheap; /* of another pass (forge-calib --skip-experts), to
                             compare the run's with; may be empty */
};

/* The page is also well-formed XML after its first line.  E_TEMP. */
MUST_CHECK int page_write(struct html *h, const struct workdir *w,
                          const struct page_params *params, struct err *e);

#endif
