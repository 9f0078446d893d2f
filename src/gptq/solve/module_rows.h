/* module_rows.h - modules that are some rows of a linear (name_rows of
 * arch/tensor_name.h). */
#ifndef FORGE_MODULE_ROWS_H
#define FORGE_MODULE_ROWS_H

#include "gptq/solve/fishers.h"
#include "gptq/solve/module_report.h"

/* E_CONFIG: the name is of some rows of a module of which `fishers` has moments, by which
 * all rows are solved together. */
MUST_CHECK int module_rows_alone(const char *name,
                                 const struct fishers *fishers, struct err *e);
/* Ask for the losses of p's tiles, in memory at *tiles that grows, and let the report have
 * them.  E_TEMP. */
MUST_CHECK int module_rows_tiles(double **tiles, struct solve_params *p,
                                 struct module_report *report, struct err *e);

#endif
