/* outputs.h - the files that the report is written to. */
#ifndef FORGE_OUTPUTS_H
#define FORGE_OUTPUTS_H

#include "common/base.h"

/* E_USAGE: two of the files are one.  NULL: not written; page "-": standard
 * output. */
MUST_CHECK int outputs_check(const char *page, const char *json,
                             const char *csv, struct err *e);
/* The way from the page to a file, as a relative reference of RFC 3986: to[cap].
 * Of a page on standard output, the file's name. */
MUST_CHECK int outputs_link(char *to, size_t cap, const char *page,
                            const char *file, struct err *e);

#endif
