/* grid_table.h - the functions of the GPU plug-in for forge-grid; see
 * device/plugin.h.
 *
 * Grids are equal to the CPU's to the bit.  The plug-in must implement a new
 * member of struct grid_params, or return E_CONFIG. */
#ifndef FORGE_GRID_TABLE_H
#define FORGE_GRID_TABLE_H

#include "device/plugin.h"
#include "gptq/grid/grid.h"

#define GRID_TABLE "forge_grid_table"
enum { GRID_TABLE_VERSION = 2 };

struct grid_table {
    uint32_t version;
    /* As grid_backend.search. */
    int (*search)(struct cuda_context *c, const struct grid_params *p,
                  const void *w, uint32_t *meta, struct err *e);
};

extern struct plugin_table grid_plugin;

/* Valid while device_gpu() is not NULL. */
static inline const struct grid_table *grid_functions(void)
{
    return (const struct grid_table *)grid_plugin.functions;
}

#endif
