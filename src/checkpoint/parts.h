/* parts.h - a linear of 4 or 8 bits, unpacked; and access to the tensors it is read
 * from. */
#ifndef FORGE_PARTS_H
#define FORGE_PARTS_H

#include "checkpoint/checkpoint.h"

/* Codes, zeros and scales, in one form for all layouts. */
struct packed {
    uint64_t rows, cols, groups;
    uint64_t group;  /* inputs per scale; the last group may be short */
    int bits;        /* of a code: 4 or 8 */
    uint32_t *codes; /* [rows, unpack_words(cols, bits)] as in layout/unpack.h;
                      * NULL: not read */
    uint8_t *zeros;  /* [rows, groups] bytes */
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
