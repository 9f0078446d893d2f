/* pack_table.h - the functions of the GPU plug-in for forge-pack; see
 * device/plugin.h.
 *
 * Words are equal to the CPU's to the bit. */
#ifndef FORGE_PACK_TABLE_H
#define FORGE_PACK_TABLE_H

#include "device/plugin.h"
#include "layout/layout.h"
#include "pack/round.h"

#define PACK_TABLE "forge_pack_table"
enum { PACK_TABLE_VERSION = 2 };

struct pack_table {
    uint32_t version;
    /* As pack_backend.words; rows are a multiple of 8, or E_CONFIG. */
    int (*words)(struct cuda_context *c, enum layout l, uint32_t *out,
                 const uint32_t *codes, uint64_t rows, uint64_t words,
                 struct err *e);
    /* round_absmax(), and out = the words of layout l.  1: a weight is not finite, or
     * a scale is beyond F16, which round_absmax() says; E_CONFIG: other sizes than
     * multiples of 8, groups than powers of two from 8 to 128, types than BF16 and
     * F16. */
    int (*round)(struct cuda_context *c, const struct round_params *p,
                 enum layout l, const void *w, uint32_t *meta, uint32_t *out,
                 struct err *e);
};

extern struct plugin_table pack_plugin;

/* Valid while device_gpu() is not NULL. */
static inline const struct pack_table *pack_functions(void)
{
    return (const struct pack_table *)pack_plugin.functions;
}

#endif
