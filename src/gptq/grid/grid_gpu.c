/* grid_gpu.c - see grid.h: the search on the GPU, equal to the CPU's to the
 * bit. */
#include <stdlib.h>

#include "device/device.h"
#include "gptq/grid/grid_table.h"

struct plugin_table grid_plugin = { GRID_TABLE, GRID_TABLE_VERSION, NULL };

static int search(const struct grid_params *p, const void *w, uint32_t *meta,
                  struct err *e)
{
    if (p->bits == 8)
        return err_set(e, E_CONFIG, "the GPU searches grids of 4 bits");
    return grid_functions()->search(device_gpu(), p, w, meta, e);
}

const struct grid_backend grid_gpu = { .name = "cuda", .search = search };

/* The search on the CPU, which widens what is stored in 8 bits. */
static int search_cpu(const struct grid_params *p, const void *w,
                      uint32_t *meta, struct err *e)
{
    struct grid_params q = *p;
    uint16_t *wide;
    int rc;

    if (!p->fp8)
        return grid_cpu.search(p, w, meta, e);
    wide = mem_pages(p->rows * p->cols * sizeof(*wide), "grid", e);
    if (!wide)
        return e->code;
    fp8_to_bf16(wide, p->fp8);
    q.fp8 = NULL;
    rc = grid_cpu.search(&q, wide, meta, e);
    free(wide);
    return rc;
}

int grid_search(const struct grid_params *p, const void *w, uint32_t *meta,
                struct err *e)
{
    int rc;

    if (device_gpu()) {
        rc = grid_gpu.search(p, w, meta, e);
        if (!device_declined(&rc, e))
            return rc;
    }
    return search_cpu(p, w, meta, e);
}
