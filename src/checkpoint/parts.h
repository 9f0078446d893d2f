/* parts.h - a 4-bit linear, unpacked; and access to the tensors it is read
 * from. */
#ifndef FORGE_PARTS_H
#define FORGE_PARTS_H

#include "checkpoint/checkpoint.h"

/* Codes, zeros and scales, in one form for all layouts. */
struct packed {
    uint64_t rows, cols, groups;
    uint64_t group;  /* inputs per scale; the last group may be short */
    uint32_t *codes; /* [rows, ceil(cols/8)] words as in layout/unpack.h;
                      * NULL: not read */
    uint8_t *zeros;  /* [rows, groups] bytes, 0..15 */
    enum dtype scale_dtype;
    uint8_t *scales; /* [rows, groups] of scale_dtype */
    int32_t *g_idx;  /* [cols] group of each input; NULL: input / group */
};
void packed_release(struct packed *p);

/* The tensor "MODULE.PART"; NULL: none. */
const struct ck_tensor *packed_part(const struct checkpoint *c,
                                    const char *module, const char *part);
/* Its payload, free() it; NULL: *e is set. */
void *packed_bytes(struct checkpoint *c, const struct ck_tensor *t,
                   struct err *e);

#endif
