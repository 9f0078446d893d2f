/* w4a16_table.h - products with 4-bit linears on a GPU: the contract of
 * forge_w4a16.h as a function table (device/plugin.h).
 *
 * prepare() brings the codes into an order of its own, in which a warp reads
 * them 16 bytes a lane: 0.5 bytes a weight, and 4 for each group and output
 * (scale and zero point).  It holds a second copy of the codes meanwhile if they
 * are the host's.  The caller's tensors are read during prepare() only.
 *
 * x is f16 or bf16, y of any type; both are the device's.  Sums are f32.  Up to
 * W4_TILED rows (of an expert, on average) weights are exact but for scales of
 * f32, which are rounded to 20 bits; more rows: weights are rounded to x's type
 * first, W4_SLAB bytes of them at a time, and multiplied by cuBLAS.  Equal calls
 * give equal bytes; another number of rows may be summed in another order. */
#ifndef FORGE_W4A16_TABLE_H
#define FORGE_W4A16_TABLE_H

#include "device/plugin.h"
#include "forge_w4a16.h"

#define W4A16_TABLE "forge_w4a16_table"
enum { W4A16_TABLE_VERSION = 1 };

enum { W4_TILED = 384, W4_SLAB = 128 << 20 };

/* A linear on the device. */
struct cuda_w4;

struct w4a16_table {
    uint32_t version;
    /* l's tensors are the host's or the device's.  The linear belongs to c.
     * E_CONFIG, E_DATA, E_TEMP: as forge_w4a16_prepare(); E_DEVICE. */
    int (*prepare)(struct cuda_context *c, struct cuda_w4 **w,
                   const struct forge_w4a16_linear *l, struct err *e);
    void (*release)(struct cuda_w4 *w); /* NULL is allowed */
    /* Bytes of device memory that w holds. */
    size_t (*memory)(const struct cuda_w4 *w);
    /* As forge_w4a16_grouped(); the host's w and first.  Returns when the
     * operations are queued.  E_CONFIG also: x of f32. */
    int (*grouped)(struct cuda_context *c, const struct cuda_w4 *const *w,
                   const int64_t *first, int64_t experts,
                   const struct forge_w4a16_rows *x,
                   const struct forge_w4a16_rows *y, struct err *e);
};

extern struct plugin_table w4a16_plugin;

/* The table; to be called only if device_gpu() is not NULL. */
static inline const struct w4a16_table *w4a16_functions(void)
{
    return (const struct w4a16_table *)w4a16_plugin.functions;
}

#endif
