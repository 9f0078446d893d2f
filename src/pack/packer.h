/* packer.h - one quantized linear in, the tensors of its layout out. */
#ifndef FORGE_PACKER_H
#define FORGE_PACKER_H

#include "common/math/dtype.h"
#include "layout/int4pack.h"
#include "layout/layout.h"

/* What the frames of a module said.  The grid is either meta, or scales (and
 * zeros; without them the module is symmetric). */
struct pack_module {
    const char *name;
    uint64_t rows, cols, groups;
    uint64_t group;         /* inputs per scale */
    const uint8_t *codes;   /* U4 [rows, cols] */
    const uint32_t *meta;   /* QMETA4 [rows, groups], or NULL */
    const void *scales;     /* scale_dtype [rows, groups], or NULL */
    const uint8_t *zeros;   /* U4 [rows, groups], or NULL */
    enum dtype scale_dtype; /* F16 or BF16 */
};

/* A tensor of the output, as forge-layouts(5) describes it. */
struct packed_tensor {
    const char *part; /* "qweight": the name is MODULE.part */
    enum dtype dtype;
    int ndim;
    uint64_t dims[3];
    const void *data; /* the packer's, until the next call */
    size_t len;
};

/* What must be the same for all modules of a checkpoint. */
struct pack_run {
    enum layout layout;
    uint64_t group;         /* 0: as the first module has it */
    int symmetric;          /* 1, 0, or -1: as the first module is */
    enum dtype scale_dtype; /* DT_NONE: as the first module has it */
    enum int4pack_capability capability; /* layout int4pack: of the tiles */
    uint64_t modules;                    /* packed so far */
};

struct packer;

/* run holds what is demanded, and what the modules turned out to be; it
 * outlives the packer. */
MUST_CHECK int packer_open(struct packer **p, struct pack_run *run,
                           struct err *e);
/* Up to LAYOUT_PARTS_MAX tensors in out, in the order of layout_part();
 * returns how many.  Scales of AWQ and GPTQ are F16: BF16 ones are converted
 * where that is exact.  Those of int4pack may be either.  E_CONFIG: the shape, the grid or a scale does not fit
 * the layout, or the modules before it; E_DATA: a scale is not finite, sizes disagree. */
MUST_CHECK int packer_module(struct packer *p, const struct pack_module *m,
                             struct packed_tensor *out, struct err *e);
void packer_close(struct packer *p); /* NULL is allowed */

#endif
