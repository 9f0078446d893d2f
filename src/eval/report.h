/* report.h - what forge-eval prints. */
#ifndef FORGE_REPORT_H
#define FORGE_REPORT_H

#include <stdio.h>

#include "eval/score.h"

struct report {
    const char *original, *other;
    size_t sequences;
    struct score_result r;
};

/* One JSON object on a line; E_TEMP, E_IO. */
MUST_CHECK int report_json(FILE *out, const struct report *p, struct err *e);
/* A table of two columns; E_IO. */
MUST_CHECK int report_table(FILE *out, const struct report *p, struct err *e);

#endif
