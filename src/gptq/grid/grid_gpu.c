/* grid_gpu.c - see grid.h: the search on the GPU, bit by bit the CPU's. */
#include "cuda/forge_cuda.h"
#include "device/device.h"

/* A new parameter changes grids that the GPU would go on choosing without it:
 * teach it to src/cuda/grid_cuda.cu, or decline it in search(). */
_Static_assert(sizeof(struct grid_params) == 64, "does the GPU know it?");

static int search(const struct grid_params *p, const void *w, uint32_t *meta,
                  struct err *e)
{
    const struct device_gpu *g = device_gpu();

    return g->cuda->grid(g->context, p, w, meta, e);
}

const struct grid_backend grid_gpu = { .name = "cuda", .search = search };

int grid_search(const struct grid_params *p, const void *w, uint32_t *meta,
                struct err *e)
{
    int rc;

    if (device_gpu()) {
        rc = grid_gpu.search(p, w, meta, e);
        if (!device_declined(&rc, e))
            return rc;
    }
    return grid_cpu.search(p, w, meta, e);
}
