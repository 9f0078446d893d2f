/* parts.h - one 4-bit linear in one layout, and the tensors it is read from. */
#ifndef FORGE_PARTS_H
#define FORGE_PARTS_H

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
void packed_release(struct packed *p);

/* MODULE.part; NULL: there is none. */
const struct ck_tensor *packed_part(const struct checkpoint *c,
                                    const char *module, const char *part);
/* Its bytes, free() them; NULL with *e. */
void *packed_bytes(struct checkpoint *c, const struct ck_tensor *t,
                   struct err *e);

#endif
