/* report.h - what forge-eval prints. */
#ifndef FORGE_REPORT_H
#define FORGE_REPORT_H

#include <stdio.h>

#include "eval/score.h"

struct report {
    const char *original, *other;
    size_t sequences;
    int64_t
        layer; /* the last one that is the other's; -1: all is the other's */
    struct score_result r;
};

/* One JSON object on a line; E_TEMP, E_IO. */
MUST_CHECK int report_json(FILE *out, const struct report *p, struct err *e);
/* A table of two columns; E_IO. */
MUST_CHECK int report_table(FILE *out, const struct report *p, struct err *e);
/* The same for n models, a row for each layer; E_IO. */
MUST_CHECK int report_rows(FILE *out, const struct report *p, size_t n,
                           struct err *e);

#endif
