/* report.h - prints forge-eval's results. */
#ifndef FORGE_REPORT_H
#define FORGE_REPORT_H

#include <stdio.h>

#include "eval/score.h"

struct report {
    const char *original, *other;
    size_t sequences;
    int64_t layer; /* --by-layer: the other's last layer; -1: the whole model */
    struct score_result r;
};

/* One JSON object on a line; E_TEMP, E_IO. */
MUST_CHECK int report_json(FILE *out, const struct report *p, struct err *e);
/* A table of two columns, names and values; E_IO. */
MUST_CHECK int report_table(FILE *out, const struct report *p, struct err *e);
/* A table of p[n] with --by-layer, one row per layer; E_IO. */
MUST_CHECK int report_rows(FILE *out, const struct report *p, size_t n,
                           struct err *e);

#endif
