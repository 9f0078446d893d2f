/* fishers.h - the file of F (fisher_descent.h) of modules, read module by module. */
#ifndef FORGE_FISHERS_H
#define FORGE_FISHERS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base.h"
#include "gptq/solve/solve_refined.h"

struct fishers;

/* path NULL: *f is NULL, there is none.  As hessian_file_open(). */
MUST_CHECK int fishers_open(struct fishers **f, const char *path,
                            struct err *e);
void fishers_close(struct fishers *f); /* NULL is allowed */
/* JSON of the file's HEAD, for stream_inherit(); f NULL: NULL. */
const char *fishers_head(const struct fishers *f);
/* Whether there is an F for this module; f may be NULL. */
bool fishers_have(const struct fishers *f, const char *module);
/* *fisher = F of a module with `rows` outputs, with its prior: packed lower
 * triangle [rows (rows + 1) / 2].  Valid until fishers_done().  E_DATA: it has
 * another number of outputs, or is in diagonal blocks; E_IO, E_TEMP. */
MUST_CHECK int fishers_get(struct fishers *f, const char *module, uint64_t rows,
                           const float **fisher, struct err *e);
/* Free what has been got, but for F of experts, which those of a layer share. */
void fishers_done(struct fishers *f);
/* Sweeps over all rows of the module: `asked` or, where that is negative, the effort's. */
int fishers_sweeps(int asked, enum effort effort, const char *module);

#endif
