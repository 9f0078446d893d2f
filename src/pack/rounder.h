/* rounder.h - weight frames rounded to nearest (forge-pack --rtn), as modules to
 * pack. */
#ifndef FORGE_PACK_ROUNDER_H
#define FORGE_PACK_ROUNDER_H

#include "common/io/stream.h"
#include "pack/packer.h"

/* rounder_release() when done. */
struct rounder {
    uint64_t group;
    bool symmetric;
    enum dtype scale_dtype;
    enum layout layout; /* of the words that a device makes */
    /* of the last module */
    uint8_t *codes;
    uint32_t *meta;
    size_t codes_cap, meta_cap;
    char name[FRAME_NAME_MAX + 1];
};

/* group 0: 128. */
void rounder_init(struct rounder *r, uint64_t group, bool symmetric,
                  enum dtype scale_dtype, enum layout layout);
/* *m: the weight f rounded, in r's memory until the next call.  By the device of this
 * process, if there is one.  E_DATA: f is no matrix of floats with an even number of
 * inputs; errors of round_absmax() and pack_round(). */
MUST_CHECK int rounder_module(struct rounder *r, const struct frame *f,
                              struct pack_module *m, struct err *e);
void rounder_release(struct rounder *r);

#endif
