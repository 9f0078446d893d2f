/* check.h - whether a model, once it is in 4 bits, can be a GGUF file. */
#ifndef FORGE_GGUF_CHECK_H
#define FORGE_GGUF_CHECK_H

#include "arch/gridrules.h"
#include "gguf/convert.h"

struct gguf_want {
    const char *dir;
    struct grid_rules grids;
    bool q8;
    const struct module_choice *choice; /* the linears that will be in 4 bits */
};

/* *bytes: of the tensors of the file.  E_CONFIG: as gguf_plan() of what it will be
 * made of, but for scales, which are not known yet. */
MUST_CHECK int gguf_check(const struct gguf_want *w, uint64_t *bytes,
                          struct err *e);

#endif
