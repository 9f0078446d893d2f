/* layout.c - see layout.h. */
#include "layout/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/math/quant.h"

/* Name of a tensor of a module, and when the module has it. */
struct part {
    const char *name;
    enum { ALWAYS, ASYMMETRIC, ACT_ORDER } when;
};

static const struct {
    const char *name;
    struct part part[LAYOUT_PARTS_MAX + 1];
    bool whole_groups; /* runtimes refuse a short last group */
    bool bf16;         /* scales may be BF16 */
    bool act_order; /* supports act-order: a group may consist of any inputs */
} table[LAYOUT_COUNT] = {
    [LAYOUT_CT] = { "compressed-tensors",
                    { { "weight_packed", ALWAYS },
                      { "weight_scale", ALWAYS },
                      { "weight_zero_point", ASYMMETRIC },
                      { "weight_shape", ALWAYS },
                      { "weight_g_idx", ACT_ORDER } },
                    true,
                    true,
                    true },
    [LAYOUT_AWQ] = { "awq",
                     { { "qweight", ALWAYS },
                       { "qzeros", ALWAYS },
                       { "scales", ALWAYS } },
                     true,
                     false,
                     false },
    [LAYOUT_GPTQ] = { "gptq",
                      { { "qweight", ALWAYS },
                        { "qzeros", ALWAYS },
                        { "scales", ALWAYS },
                        { "g_idx", ALWAYS } },
                      false,
                      false,
                      true },
    [LAYOUT_GPTQ_V2] = { "gptq_v2",
                         { { "qweight", ALWAYS },
                           { "qzeros", ALWAYS },
                           { "scales", ALWAYS },
                           { "g_idx", ALWAYS } },
                         false,
                         false,
                         true },
    [LAYOUT_INT4PACK] = { "int4pack",
                          { { "weight_int4pack", ALWAYS },
                            { "scales_and_zeros", ALWAYS },
                            { "input_perm", ACT_ORDER } },
                          true,
                          true,
                          true },
    [LAYOUT_INT4PACK_XPU] = { "int4pack-xpu",
                              { { "weight_int4pack", ALWAYS },
                                { "scales", ALWAYS },
                                { "zeros", ALWAYS },
                                { "input_perm", ACT_ORDER } },
                              true,
                              true,
                              true },
};

const char *layout_name(enum layout l)
{
    return table[l].name;
}

bool layout_takes_bf16(enum layout l)
{
    return table[l].bf16;
}

bool layout_takes_act_order(enum layout l)
{
    return table[l].act_order;
}

bool layout_takes_grids(enum layout l)
{
    return l == LAYOUT_CT || l == LAYOUT_GPTQ || l == LAYOUT_GPTQ_V2;
}

bool layout_groups_agree(enum layout l, uint64_t group, uint64_t cols,
                         uint64_t other_group, uint64_t other_cols)
{
    return group == other_group || layout_takes_grids(l) ||
           (l == LAYOUT_AWQ && cols <= group && other_cols <= other_group);
}

bool layout_takes_bits(enum layout l, int bits)
{
    return bits == 4 || layout_takes_grids(l);
}

int layout_check_bits(enum layout l, int bits, const char *module,
                      struct err *e)
{
    return layout_takes_bits(l, bits) ?
               0 :
               err_set(e, E_CONFIG,
                       "%s has codes of %d bits: layout %s has 4, and "
                       "compressed-tensors, gptq, gptq_v2 and gguf have either",
                       module, bits, layout_name(l));
}

bool layout_parse(const char *name, enum layout *l)
{
    for (int i = 0; i < LAYOUT_COUNT; i++)
        if (!strcmp(table[i].name, name)) {
            *l = (enum layout)i;
            return true;
        }
    return false;
}

const char *layout_part(enum layout l, bool symmetric, bool act_order, int i)
{
    for (const struct part *p = table[l].part; p->name; p++)
        if ((p->when != ASYMMETRIC || !symmetric) &&
            (p->when != ACT_ORDER || act_order) && i-- == 0)
            return p->name;
    return NULL;
}

bool layout_is_part(const char *name, size_t *module_len)
{
    const char *dot = strrchr(name, '.');

    if (!dot || dot == name)
        return false;
    *module_len = (size_t)(dot - name);
    for (int l = 0; l < LAYOUT_COUNT; l++)
        for (const struct part *p = table[l].part; p->name; p++)
            if (!strcmp(dot + 1, p->name))
                return true;
    return false;
}

/* "32, 64, 128": powers of two that divide the inputs of all shapes. */
static const char *groups_that_work(const struct layout_shape *all, size_t n,
                                    char *text, size_t cap)
{
    size_t len = 0;

    text[0] = 0;
    for (uint64_t g = 32; g <= 1024; g *= 2) {
        size_t i = 0;

        while (i < n && all[i].cols % g == 0)
            i++;
        if (i == n)
            len += (size_t)snprintf(text + len, cap - len, "%s%" PRIu64,
                                    len ? ", " : "", g);
    }
    return text;
}

static int refuse_group(enum layout l, uint64_t group,
                        const struct layout_shape *s,
                        const struct layout_shape *all, size_t n, struct err *e)
{
    bool whole = l == LAYOUT_CT || l == LAYOUT_AWQ;
    char text[64];

    groups_that_work(all, n, text, sizeof(text));
    return err_set(e, E_CONFIG,
                   "%s is %" PRIu64 " x %" PRIu64 ": %s needs inputs that "
                   "are a multiple of the group, and %" PRIu64 " is not one "
                   "of %" PRIu64 "; %s%s%s",
                   s->module, s->rows, s->cols, table[l].name, s->cols, group,
                   *text ? "groups that work: " :
                           "no group from 32 works, but ",
                   *text ? text :
                   whole ? "one of all inputs, -1, does, and " :
                           "",
                   *text ? "" :
                           "layouts gptq and gptq_v2 may have a short last "
                           "group");
}

int layout_check(enum layout l, bool symmetric, uint64_t group,
                 const struct layout_shape *s, const struct layout_shape *all,
                 size_t n, struct err *e)
{
    int multiple = l == LAYOUT_INT4PACK ? 16 : 8; /* of outputs */

    if (!group || group % 8)
        return err_set(e, E_CONFIG,
                       "group %" PRIu64 ": want a multiple of 8 (32, 64, 128, "
                       "...)",
                       group);
    if (l == LAYOUT_GPTQ && !symmetric)
        return err_set(e, E_CONFIG,
                       "layout gptq (v1) has no place for a zero point of 0, "
                       "and vLLM refuses it asymmetric: use gptq_v2, "
                       "compressed-tensors or, for 4 bits, awq");
    if (l == LAYOUT_INT4PACK && group != 32 && group != 64 && group != 128 &&
        group != 256)
        return err_set(e, E_CONFIG,
                       "group %" PRIu64 ": torch's CPU product takes 32, 64, "
                       "128 and 256",
                       group);
    if (l == LAYOUT_INT4PACK_XPU && group % 32)
        return err_set(e, E_CONFIG,
                       "group %" PRIu64 ": torch's XPU product takes "
                       "multiples of 32",
                       group);
    if (!s->rows || s->rows % (unsigned)multiple)
        return err_set(e, E_CONFIG,
                       "%s is %" PRIu64 " x %" PRIu64 ": %s needs outputs "
                       "that are a multiple of %d, whatever the group; leave "
                       "the module unquantized",
                       s->module, s->rows, s->cols, table[l].name, multiple);
    if (!s->cols || s->cols % 8)
        return err_set(e, E_CONFIG,
                       "%s is %" PRIu64 " x %" PRIu64 ": %s needs inputs that "
                       "are a multiple of 8, whatever the group; leave the "
                       "module unquantized",
                       s->module, s->rows, s->cols, table[l].name);
    if (table[l].whole_groups && s->cols % group &&
        (group != GROUP_ALL || l == LAYOUT_INT4PACK_XPU))
        return refuse_group(l, group, s, all, n, e);
    return 0;
}

const char *layout_kinds_text(char to[64], uint64_t four, uint64_t eight)
{
    if (four && eight)
        snprintf(to, 64, "%" PRIu64 " in 4 bits, %" PRIu64 " in 8", four,
                 eight);
    else
        snprintf(to, 64, "%" PRIu64 " in %d bits", four + eight, eight ? 8 : 4);
    return to;
}

const char *layout_in_bits(uint64_t four, uint64_t eight)
{
    return !eight ? " in 4 bits" : four ? " in 4 and 8 bits" : " in 8 bits";
}

double layout_gguf_bits(bool symmetric, int bits)
{
    return bits == 8 ? 8.5 : symmetric ? 4.5 : 5;
}

bool layout_marlin_group(uint64_t group)
{
    return group == 32 || group == 64 || group == 128;
}

bool layout_gptq_group(uint64_t group)
{
    return group >= 16 && group <= 1024 && !(group & (group - 1));
}

unsigned layout_advice(enum layout l, bool symmetric, uint64_t group,
                       const struct layout_shape *s)
{
    bool gptq = l == LAYOUT_GPTQ || l == LAYOUT_GPTQ_V2;
    bool expert = tensor_name_is_expert(s->module);
    bool odd = gptq && s->cols > group && !layout_gptq_group(group);
    unsigned ct = expert ? ADVICE_ASYMMETRIC_EXPERTS : ADVICE_ASYMMETRIC_CT;

    if (l == LAYOUT_INT4PACK || l == LAYOUT_INT4PACK_XPU)
        return 0;
    return (odd                                ? ADVICE_GPTQ_GROUP :
            s->cols > group && s->cols % group ? ADVICE_SHORT_GROUP :
                                                 0u) |
           (s->rows % 64 || s->cols % 128 ? ADVICE_MARLIN_SHAPE : 0u) |
           (s->cols > group && !layout_marlin_group(group) ?
                ADVICE_MARLIN_GROUP :
                0u) |
           (gptq && !symmetric ? ADVICE_ASYMMETRIC_GPTQ : 0u) |
           (l == LAYOUT_CT && !symmetric ? ct : 0u) |
           (l != LAYOUT_CT && expert ? ADVICE_EXPERTS : 0u);
}

const char *layout_advice_text(unsigned bit)
{
    switch (bit) {
    case ADVICE_SHORT_GROUP:
        return "the last group is short: of the runtimes tried only "
               "GPTQModel's GPTQ_TORCH loads it; vLLM and GPTQModel's ATEN, "
               "FUSED and AUTO kernels refuse it";
    case ADVICE_MARLIN_SHAPE:
        return "outputs are no multiple of 64 or inputs none of 128: the "
               "Marlin kernels of older vLLM versions refuse such a shape";
    case ADVICE_MARLIN_GROUP:
        return "vLLM's Marlin kernels take groups of 32, 64, 128 and all "
               "inputs alone";
    case ADVICE_ASYMMETRIC_GPTQ:
        return "vLLM refuses asymmetric GPTQ checkpoints (GPTQModel and "
               "SGLang load them): awq or compressed-tensors go further";
    case ADVICE_ASYMMETRIC_CT:
        return "transformers loads asymmetric compressed-tensors only with "
               "CompressedTensorsConfig(dequantize=True), and 5.23 takes all "
               "linears for ones of the first kind of grid: with several "
               "kinds it fails, or with 8 bits for some computes nonsense "
               "without an error";
    case ADVICE_ASYMMETRIC_EXPERTS:
        return "transformers does not load experts of asymmetric "
               "compressed-tensors, and vLLM only lately: awq goes further";
    case ADVICE_EXPERTS:
        return "transformers (5.23) leaves experts of AWQ and GPTQ as they are "
               "initialized, without an error: there, compressed-tensors "
               "alone; GPTQModel, vLLM and SGLang load them";
    case ADVICE_DYNAMIC:
        return "transformers (5.23) does not load GPTQ whose linears differ in "
               "bits or group (mismatched sizes); GPTQModel and vLLM do";
    case ADVICE_GPTQ_GROUP:
        return "no known loader takes this group size in GPTQ: GPTQModel "
               "takes 16, 32, 64, 128, 256, 512, 1024 or all inputs";
    default: return "";
    }
}
