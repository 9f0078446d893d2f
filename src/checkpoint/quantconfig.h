/* quantconfig.h - the quantization_config of a checkpoint that is 4-bit or
 * 8-bit already: which of the layouts, and how many weights share a scale. */
#ifndef FORGE_QUANTCONFIG_H
#define FORGE_QUANTCONFIG_H

#include "checkpoint/checkpoint.h"
#include "common/io/json.h"
#include "layout/int4pack.h"

struct quant_spec {
    enum storage storage;
    int64_t group; /* inputs per scale; -1: one scale a row; 0: plain */
    bool fp8;      /* plain, or with STORAGE_CT some of the linears, in fp8 */
    enum int4pack_capability capability; /* with STORAGE_INT4PACK */
    int64_t block[2]; /* fp8: outputs and inputs per scale; 0: not said */
};

/* q: the object quantization_config; NULL or JSON null: plain.  method: what
 * it is when it has no quant_method, "" for none.  what: the file, for
 * messages.  E_CONFIG: a method, format or bit width that is not
 * read, by name; E_DATA: a field that is missing or of the wrong type. */
MUST_CHECK int quant_spec_parse(struct quant_spec *s, const struct json *q,
                                const char *method, const char *what,
                                struct err *e);

#endif
