/* layout.h - how 4-bit checkpoints name their tensors, and which shapes
 * runtimes can load.  The contents of each tensor, nibble by nibble:
 * forge-layouts(5). */
#ifndef FORGE_LAYOUT_H
#define FORGE_LAYOUT_H

#include "common/base.h"

/* compressed-tensors (pack-quantized), AWQ (gemm), GPTQ v1 (stores zero - 1),
 * GPTQ v2, and torch's int4pack (int4pack.h). */
enum layout {
    LAYOUT_CT,
    LAYOUT_AWQ,
    LAYOUT_GPTQ,
    LAYOUT_GPTQ_V2,
    LAYOUT_INT4PACK,    /* for CPUs of one capability */
    LAYOUT_INT4PACK_XPU /* for Intel's GPUs */
};

/* The choices of --layout, in the order of enum layout: those that serving
 * engines load; and with those that only torch's operators read. */
#define LAYOUT_WORDS     "compressed-tensors|awq|gptq|gptq_v2"
#define LAYOUT_ALL_WORDS LAYOUT_WORDS "|int4pack|int4pack-xpu"

enum { LAYOUT_COUNT = 6, LAYOUT_PARTS_MAX = 5 };

C_BEGIN

/* "awq" */
const char *layout_name(enum layout l);
/* Whether scales may be BF16; false: the kernels read F16 only. */
bool layout_takes_bf16(enum layout l);
/* Whether it supports act-order; false: a group must be contiguous inputs. */
bool layout_takes_act_order(enum layout l);
/* Whether modules of a checkpoint may have different groups. */
bool layout_takes_grids(enum layout l);
/* Whether two linears may be in one checkpoint by their groups: these are equal, or
 * the layout has one for each linear, or the config can say of both that they have
 * one group of all inputs, AWQ's and GPTQ's -1.  cols: the linears' inputs. */
bool layout_groups_agree(enum layout l, uint64_t group, uint64_t cols,
                         uint64_t other_group, uint64_t other_cols);
/* Whether codes may have so many bits, 4 or 8. */
bool layout_takes_bits(enum layout l, int bits);
/* E_CONFIG: they may not; the message names the layouts where they may. */
MUST_CHECK int layout_check_bits(enum layout l, int bits, const char *module,
                                 struct err *e);
/* Whether Marlin kernels take this group, where it is not all inputs. */
bool layout_marlin_group(uint64_t group);
/* Whether GPTQModel takes this number of inputs as a group of GPTQ. */
bool layout_gptq_group(uint64_t group);
/* False: no layout has this name. */
MUST_CHECK bool layout_parse(const char *name, enum layout *l);

/* Name of the i-th tensor of a module, to follow "MODULE.": "qweight"; NULL
 * from the last one on.  compressed-tensors has zero points only if not
 * symmetric; layouts but GPTQ have a tensor of the inputs' groups or order
 * only if act_order (inputs of a group are not contiguous). */
const char *layout_part(enum layout l, bool symmetric, bool act_order, int i);
/* Whether name is "MODULE." and the name of a tensor of any layout;
 * *module_len: length of MODULE. */
bool layout_is_part(const char *name, size_t *module_len);

/* "14 in 4 bits, 14 in 8": numbers of linears. */
const char *layout_kinds_text(char to[64], uint64_t four, uint64_t eight);
/* " in 4 bits": which of them there are. */
const char *layout_in_bits(uint64_t four, uint64_t eight);
/* Bits for each weight in GGUF's blocks, scales included: Q4_0, Q4_1 or Q8_0. */
double layout_gguf_bits(bool symmetric, int bits);

/* A linear's module and shape. */
struct layout_shape {
    const char *module;
    uint64_t rows, cols; /* outputs, inputs */
};

/* E_CONFIG, with a message that says what to do, if no runtime can load the
 * module s: rows or cols not a multiple of 8 (int4pack: rows of 16), cols not
 * a multiple of group where the layout needs whole groups, GPTQ v1 not
 * symmetric, a group not a multiple of 8 or (int4pack) none that torch takes.
 * all[n] (possibly just s): shapes for which the message suggests groups.
 * Rules and sources: forge-layouts(5), "CONSTRAINTS". */
MUST_CHECK int layout_check(enum layout l, bool symmetric, uint64_t group,
                            const struct layout_shape *s,
                            const struct layout_shape *all, size_t n,
                            struct err *e);

/* Properties of a module that some runtimes do not support. */
enum {
    ADVICE_SHORT_GROUP = 1,  /* GPTQ: the last group is short */
    ADVICE_MARLIN_SHAPE = 2, /* rows not a multiple of 64, or cols of 128 */
    ADVICE_MARLIN_GROUP = 4, /* group not 32, 64 or 128 */
    ADVICE_ASYMMETRIC_GPTQ = 8,
    ADVICE_ASYMMETRIC_CT = 16,
    ADVICE_ASYMMETRIC_EXPERTS = 32, /* of compressed-tensors */
    ADVICE_EXPERTS = 64,            /* of AWQ and GPTQ */
    ADVICE_DYNAMIC = 128, /* GPTQ: of all linears, layout_advice() has it not */
    ADVICE_GPTQ_GROUP = 256, /* GPTQ: a group that no loader takes */
    ADVICE_BITS = 9
};
/* The properties that the module has: a set of ADVICE_* bits. */
unsigned layout_advice(enum layout l, bool symmetric, uint64_t group,
                       const struct layout_shape *s);
/* One sentence, beginning in lower case, for one bit. */
const char *layout_advice_text(unsigned bit);

C_END

#endif
