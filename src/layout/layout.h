/* layout.h - the ways in which a checkpoint stores 4-bit linears.
 *
 * What each tensor holds, nibble by nibble, is in forge-layouts(5); here are
 * the names of the parts and which shapes the runtimes can load. */
#ifndef FORGE_LAYOUT_H
#define FORGE_LAYOUT_H

#include "common/base.h"

enum layout {
    LAYOUT_CT,
    LAYOUT_AWQ,
    LAYOUT_GPTQ,
    LAYOUT_GPTQ_V2,
    LAYOUT_INT4PACK,    /* of torch on CPUs of one capability: int4pack.h */
    LAYOUT_INT4PACK_XPU /* of torch on Intel's GPUs */
};

/* The words of --layout, in the order of the enum: what engines load, and with
 * what torch's operators alone read. */
#define LAYOUT_WORDS     "compressed-tensors|awq|gptq|gptq_v2"
#define LAYOUT_ALL_WORDS LAYOUT_WORDS "|int4pack|int4pack-xpu"

enum { LAYOUT_COUNT = 6, LAYOUT_PARTS_MAX = 4 };

const char *layout_name(enum layout l);
/* False: its kernels read F16 scales alone. */
bool layout_takes_bf16(enum layout l);
/* False: no layout has this name. */
MUST_CHECK bool layout_parse(const char *name, enum layout *l);

/* Names of the tensors of a module, after "MODULE.": the i-th, or NULL from
 * the last on.  The zero points of compressed-tensors are there only when
 * asymmetric. */
const char *layout_part(enum layout l, bool symmetric, int i);
/* Split "MODULE.qweight" and the like: true and *module_len when name is a
 * part of any layout. */
bool layout_is_part(const char *name, size_t *module_len);

/* A linear: rows outputs, cols inputs. */
struct layout_shape {
    const char *module;
    uint64_t rows, cols;
};

/* E_CONFIG when no runtime would load such a module: rows or cols that do not
 * fill words of eight, cols that are no multiple of the group where the
 * layout wants whole groups, asymmetric GPTQ v1, a group that is no multiple
 * of 8; int4pack: rows that are no multiple of 16, a group that torch does not
 * take.  all (n of them, may be just this one) are the shapes for which the
 * message looks for groups that would do.  Rules and sources:
 * forge-layouts(5), "CONSTRAINTS". */
MUST_CHECK int layout_check(enum layout l, bool symmetric, uint64_t group,
                            const struct layout_shape *s,
                            const struct layout_shape *all, size_t n,
                            struct err *e);

/* What loads, but not everywhere: bits for layout_advice_text(). */
enum {
    ADVICE_SHORT_GROUP = 1, /* GPTQ: the last group is short */
    ADVICE_MARLIN_SHAPE = 2,
    ADVICE_MARLIN_GROUP = 4,
    ADVICE_ASYMMETRIC_GPTQ = 8,
    ADVICE_ASYMMETRIC_CT = 16,
    ADVICE_ASYMMETRIC_EXPERTS = 32, /* of compressed-tensors */
    ADVICE_EXPERTS = 64,            /* of AWQ and GPTQ */
    ADVICE_BITS = 7
};
unsigned layout_advice(enum layout l, bool symmetric, uint64_t group,
                       const struct layout_shape *s);
/* One sentence about one bit; starts in lower case. */
const char *layout_advice_text(unsigned bit);

#endif
