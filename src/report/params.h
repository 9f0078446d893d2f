/* params.h - what the report is asked to show beside the run. */
#ifndef FORGE_REPORT_PARAMS_H
#define FORGE_REPORT_PARAMS_H

#include "arch/hitmap.h"
#include "report/peers.h"

struct page_params {
    const char *title;    /* the model's name; NULL: its directory's name */
    const char *compared; /* name of the run that module.loss_compared is of;
                             NULL: of plain GPTQ */
    struct hitmaps
        cheap; /* hit maps of another pass (forge-calib --skip-experts),
                             to compare with the run's; may be empty */
    struct peers peers;     /* evaluations of other checkpoints */
    const char *json, *csv; /* files with the same, to link to; NULL: none */
    const char *output;     /* the page's own file; "-": standard output */
};

#endif
