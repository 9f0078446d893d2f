/* packed.h - the parts of one 4-bit linear, read and brought to one layout. */
#ifndef FORGE_PACKED_H
#define FORGE_PACKED_H

#include "checkpoint/parts.h"

/* 1: *p is filled, packed_release() it; 0: module is not packed; E_DATA: parts
 * are missing or do not fit each other. */
MUST_CHECK int packed_read(struct checkpoint *c, const char *module,
                           struct packed *p, struct err *e);

#endif
