/* preflight.h - checks, before any work, that a model's linears fit a layout
 * and that runtimes load the result (forge-pack --check). */
#ifndef FORGE_PREFLIGHT_H
#define FORGE_PREFLIGHT_H

#include "arch/gridrules.h"
#include "layout/layout.h"

struct preflight {
    const char *model; /* directory with config.json */
    enum layout layout;
    struct grid_rules grids;
    bool silent;  /* no warnings */
    bool chooses; /* the grids are not known yet, and may differ */
    struct module_choice choice; /* linears that would be quantized */
    bool table; /* print parallel_print()'s table on standard output */
};

/* Check every linear of the model that would be quantized; *linears: their
 * number.  E_CONFIG: no runtime would load the result.  What only some runtimes
 * refuse is a warning, one per kind.  Other errors are those of reading
 * config.json. */
MUST_CHECK int preflight_check(const struct preflight *p, uint64_t *linears,
                               struct err *e);

#endif
