/* quantconfig.h - parses the quantization_config of a checkpoint that is
 * quantized already (4 bits, 8 bits or fp8). */
#ifndef FORGE_QUANTCONFIG_H
#define FORGE_QUANTCONFIG_H

#include "checkpoint/checkpoint.h"
#include "common/io/json.h"
#include "layout/int4pack.h"

/* Storage of the linears. */
struct quant_spec {
    enum storage storage;
    int bits;      /* of a code: 4 or 8; 0: plain.  Modules may differ */
    int64_t group; /* inputs per scale; -1: one scale per row; 0: plain */
    bool activations, cache; /* engines shall round these, too */
    bool fp8; /* some or all linears are fp8; storage is PLAIN or CT */
    enum int4pack_capability capability; /* of STORAGE_INT4PACK */
    int64_t block[2]; /* fp8: outputs and inputs per scale; 0: not given */
};

/* q: the object quantization_config; NULL or null: plain.  method: assumed if
 * q has no quant_method; "": none.  what: the file's name, for messages.
 * E_CONFIG: an unsupported method, format or bit width, by name; E_DATA: a
 * field is missing or of the wrong type. */
MUST_CHECK int quant_spec_parse(struct quant_spec *s, const struct json *q,
                                const char *method, const char *what,
                                struct err *e);

#endif
