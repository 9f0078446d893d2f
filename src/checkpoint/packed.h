/* packed.h - reads a linear of 4 or 8 bits of any layout into the form of parts.h. */
#ifndef FORGE_PACKED_H
#define FORGE_PACKED_H

#include "checkpoint/parts.h"

/* 1: *p is set, packed_release() it; 0: the module is not packed.  E_DATA:
 * tensors are missing or do not fit each other; E_IO, E_TEMP. */
MUST_CHECK int packed_read(struct checkpoint *c, const char *module,
                           struct packed *p, struct err *e);

#endif
