/* packer.h - turns the codes and grids of one quantized linear into the tensors
 * of a layout (forge-layouts(5)). */
#ifndef FORGE_PACKER_H
#define FORGE_PACKER_H

#include "common/math/dtype.h"
#include "layout/int4pack.h"
#include "layout/layout.h"

/* A module as its frames say.  The grid is either meta, or scales with zeros;
 * scales without zeros are symmetric (zero 8; of 8 bits 128). */
struct pack_module {
    const char *name;
    uint64_t rows, cols, groups;
    uint64_t group;       /* inputs per scale */
    int bits;             /* of a code: 4 or 8 */
    const uint8_t *codes; /* U4 [rows, cols], two a byte, low nibble first; or
                             U8 */
    const uint32_t
        *words;           /* of 4 bits in layout AWQ or GPTQ: its qweight; NULL:
                            * to be made from codes */
    const uint32_t *meta; /* QMETA4 [rows, groups], or NULL */
    const void *scales;   /* scale_dtype [rows, groups], or NULL */
    const uint8_t *zeros; /* U4 (U8) [rows, groups], or NULL */
    const int32_t *index; /* [cols] group of each input; NULL: input / group */
    enum dtype scale_dtype; /* F16, BF16, or F32, which becomes F16 */
};

/* A tensor of the output, as forge-layouts(5) describes it. */
struct packed_tensor {
    const char *part; /* "qweight": the tensor's name is MODULE.qweight */
    enum dtype dtype;
    int ndim;
    uint64_t dims[3];
    const void *data; /* the packer's or the module's, until the next call */
    size_t len;
};

enum { PACK_KINDS = 32 };

/* What must be the same for all modules of a checkpoint.  In: demanded; out:
 * the first module's where nothing was demanded. */
struct pack_run {
    enum layout layout;
    int bits;       /* 0: the first module's */
    uint64_t group; /* 0: the first module's */
    uint64_t cols;  /* the first module's */
    int symmetric;  /* 1, 0, or -1: the first module's; mixed: of all so far */
    enum dtype scale_dtype; /* DT_NONE: the first module's */
    int act_order; /* 1: an order of inputs is stored, 0, or -1: as needed */
    enum int4pack_capability capability; /* of int4pack's tiles (int4pack.h) */
    bool mixed; /* modules may have other bits, groups and symmetries than the
                 * first, where the layout has them for each module */
    struct pack_kind {
        uint64_t group, modules;
        int bits;
        bool symmetric;
    } kind[PACK_KINDS]; /* that there have been */
    int n_kinds;
    uint64_t modules; /* packed so far */
    bool told;        /* emit_run_note() has written these, */
    int told_order;   /* with this act_order */
};

struct packer;

/* run must outlive the packer.  E_TEMP. */
MUST_CHECK int packer_open(struct packer **p, struct pack_run *run,
                           struct err *e);
/* out[LAYOUT_PARTS_MAX] = the module's tensors, in the order of layout_part();
 * returns their number.  AWQ and GPTQ store F16 scales: BF16 scales are
 * converted if F16 holds them exactly; the other layouts take both.  E_CONFIG:
 * the shape, the grid or a scale does not fit the layout or `run`; E_DATA: a
 * scale is not finite, or the number of groups is wrong; E_TEMP; E_DEVICE. */
MUST_CHECK int packer_module(struct packer *p, const struct pack_module *m,
                             struct packed_tensor *out, struct err *e);
void packer_close(struct packer *p); /* NULL is allowed */

#endif
