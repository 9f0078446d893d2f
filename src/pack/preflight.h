/* preflight.h - can this model be packed like that at all? */
#ifndef FORGE_PREFLIGHT_H
#define FORGE_PREFLIGHT_H

#include "layout/layout.h"

struct preflight {
    const char *model; /* directory with config.json */
    enum layout layout;
    uint64_t group;
    bool symmetric;
    bool table; /* of tensor-parallel sizes, on standard output */
};

/* Look at every linear of the model that would be quantized.  E_CONFIG when
 * no runtime would load the result; a warning, once each, for what some
 * runtimes refuse; other errors from reading the config.  *linears: how many
 * there are. */
MUST_CHECK int preflight_check(const struct preflight *p, uint64_t *linears,
                               struct err *e);

#endif
