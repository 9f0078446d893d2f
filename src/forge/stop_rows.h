/* stop_rows.h - which rows of which linears a share of a stop solves. */
#ifndef FORGE_STOP_ROWS_H
#define FORGE_STOP_ROWS_H

#include "forge/stops.h"

enum { STOP_DIVIDED = -1 };

/* *list: the linears, and rows of linears, that are no experts', of a share of the stop,
 * as forge-hessian --rows takes them; of share STOP_DIVIDED: the linears whose rows
 * several shares solve.  The caller frees it.  Rows go to shares in the order of the
 * linears, 48 of them or a whole linear at a time, so that each share has as many
 * multiply-adds.  Errors of job_config(). */
MUST_CHECK int stop_rows(const struct stop *s, const struct job *j,
                         int64_t share, char **list, struct err *e);

#endif
