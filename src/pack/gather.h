/* gather.h - collects the frames of one module until it is complete.
 *
 * A module arrives as codes and qmeta, or as codes, scales and (if asymmetric)
 * zeros, and an index if groups are no runs of inputs, in any order, each a
 * frame with the module's name. */
#ifndef FORGE_GATHER_H
#define FORGE_GATHER_H

#include "common/io/stream.h"
#include "pack/packer.h"

enum {
    GATHER_CODES,
    GATHER_META,
    GATHER_SCALES,
    GATHER_ZEROS,
    GATHER_INDEX,
    GATHER_COUNT
};

/* Zero-initialise; gather_release() when done. */
struct gather {
    char name[FRAME_NAME_MAX + 1]; /* the module; "": no frame is held */
    struct gather_part {
        void *data; /* 64-byte aligned; the memory serves the next module too */
        size_t len, cap;
        enum dtype dtype;
        uint64_t dims[2];
        bool present;
    } part[GATHER_COUNT];
    uint64_t group;         /* as a frame said; 0: none has */
    enum dtype scale_dtype; /* DT_NONE: no frame has said it */
};

/* Whether f has a role that gather_add() takes. */
bool gather_wants(const struct frame *f);
/* Whether f belongs to another module than the frames held. */
bool gather_other(const struct gather *g, const struct frame *f);
/* Keep a copy of f, a frame that gather_wants() and of the module held.
 * E_DATA: a second frame of its role, a type or number of dimensions that its
 * role does not have, or another group size than an earlier frame's; E_TEMP. */
MUST_CHECK int gather_add(struct gather *g, const struct frame *f,
                          struct err *e);
/* 1: *m describes the module, its data in g's memory; 0: no frame is held;
 * E_DATA: a part is missing or shapes do not agree.  gather_clear() before the
 * next module. */
MUST_CHECK int gather_module(const struct gather *g, struct pack_module *m,
                             struct err *e);
void gather_clear(struct gather *g);
void gather_release(struct gather *g);

#endif
