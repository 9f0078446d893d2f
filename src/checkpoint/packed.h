/* packed.h - the parts of one 4-bit linear, read and brought to one layout. */
#ifndef FORGE_PACKED_H
#define FORGE_PACKED_H

#include "checkpoint/checkpoint.h"

struct packed {
    uint64_t rows, cols, groups;
    uint64_t group;  /* inputs per scale; the last group may be short */
    uint32_t *codes; /* [rows, ceil(cols/8)] words, layout/unpack.h */
    uint8_t *zeros;  /* [rows, groups] */
    enum dtype scale_dtype;
    uint8_t *scales; /* [rows, groups] of scale_dtype */
    int32_t *g_idx;  /* [cols] group of each input; NULL: input / group */
};

/* 1: *p is filled, packed_release() it; 0: module is not packed; E_DATA: parts
 * are missing or do not fit each other. */
MUST_CHECK int packed_read(struct checkpoint *c, const char *module,
                           struct packed *p, struct err *e);
void packed_release(struct packed *p);

#endif
