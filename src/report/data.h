/* data.h - what the page shows, for programs: JSON, and the linear layers as
 * CSV (RFC 4180). */
#ifndef FORGE_REPORT_DATA_H
#define FORGE_REPORT_DATA_H

#include "report/section.h"

/* *text = the report as one JSON object, or the table of modules as CSV, with
 * *len bytes; free() it.  E_TEMP. */
MUST_CHECK int data_json(const struct page *p, char **text, size_t *len,
                         struct err *e);
MUST_CHECK int data_csv(const struct page *p, char **text, size_t *len,
                        struct err *e);

#endif
