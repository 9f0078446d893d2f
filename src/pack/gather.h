/* gather.h - the frames of one module, kept until the module is complete.
 *
 * A module arrives as codes and qmeta, or as codes, scales and maybe zeros,
 * in any order, all under its path. */
#ifndef FORGE_GATHER_H
#define FORGE_GATHER_H

#include "common/io/stream.h"
#include "pack/packer.h"

enum { GATHER_CODES, GATHER_META, GATHER_SCALES, GATHER_ZEROS, GATHER_COUNT };

/* Zero-initialise; gather_release() when done. */
struct gather {
    char name[FRAME_NAME_MAX + 1]; /* "" when nothing is held */
    struct gather_part {
        void *data; /* 64-byte aligned, kept for the next module */
        size_t len, cap;
        uint64_t dims[2];
        bool present;
    } part[GATHER_COUNT];
    uint64_t group;
    enum dtype scale_dtype;
};

/* Is this frame for gather_add()? */
bool gather_wants(const struct frame *f);
/* Does it belong to another module than the one held? */
bool gather_other(const struct gather *g, const struct frame *f);
/* Keep a copy.  E_DATA: a second one of its role, dtype or shape not as the
 * role says, a group that contradicts. */
MUST_CHECK int gather_add(struct gather *g, const struct frame *f,
                          struct err *e);
/* 1: *m describes the module, in g's memory; 0: nothing is held; E_DATA: a
 * part is missing or sizes disagree.  gather_clear() before the next. */
MUST_CHECK int gather_module(const struct gather *g, struct pack_module *m,
                             struct err *e);
void gather_clear(struct gather *g);
void gather_release(struct gather *g);

#endif
