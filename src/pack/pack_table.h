/* pack_table.h - the functions of the GPU plug-in for forge-pack; see
 * device/plugin.h.
 *
 * Words are equal to the CPU's to the bit. */
#ifndef FORGE_PACK_TABLE_H
#define FORGE_PACK_TABLE_H

#include "device/plugin.h"
#include "layout/layout.h"

#define PACK_TABLE "forge_pack_table"
enum { PACK_TABLE_VERSION = 1 };

struct pack_table {
    uint32_t version;
    /* As pack_backend.words; rows are a multiple of 8, or E_CONFIG. */
    int (*words)(struct cuda_context *c, enum layout l, uint32_t *out,
                 const uint32_t *codes, uint64_t rows, uint64_t words,
                 struct err *e);
};

extern struct plugin_table pack_plugin;

/* Valid while device_gpu() is not NULL. */
static inline const struct pack_table *pack_functions(void)
{
    return (const struct pack_table *)pack_plugin.functions;
}

#endif
