/* page.h - writes the report: one self-contained HTML page. */
#ifndef FORGE_PAGE_H
#define FORGE_PAGE_H

#include "report/section.h"

/* Append the page to h.  After its first line it is also well-formed XML.
 * E_TEMP. */
MUST_CHECK int page_write(struct html *h, const struct page *p, struct err *e);

#endif
