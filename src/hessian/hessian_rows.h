/* hessian_rows.h - the linears, or rows of linears, that a share of a stop solves
 * (forge-hessian --rows): names, of which those of rows are name_rows of
 * arch/tensor_name.h, separated by commas. */
#ifndef FORGE_HESSIAN_ROWS_H
#define FORGE_HESSIAN_ROWS_H

#include "common/io/stream.h"

/* *to: those names of `list` that are of one of `modules`, separated by '\n', in the
 * order of `list`; "": none; the caller frees it.  E_TEMP. */
MUST_CHECK int rows_of_modules(const char *list, const char *modules, char **to,
                               struct err *e);
/* f: a cross frame [rows, C] of a linear's outputs.  f->dims[0] = the number of rows that
 * the list says, *first: the first.  1; 0: the list has none of them; E_DATA: it has
 * other rows, or those of several linears; E_TEMP. */
MUST_CHECK int rows_cut(const char *list, struct frame *f, uint64_t *first,
                        struct err *e);

#endif
