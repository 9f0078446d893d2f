/* pack_backend.c - see pack_backend.h. */
#include "pack/pack_backend.h"

#include "device/device.h"
#include "pack/pack_table.h"
#include "pack/packing.h"

struct plugin_table pack_plugin = { PACK_TABLE, PACK_TABLE_VERSION, NULL };

static int cpu_words(enum layout l, uint32_t *out, const uint32_t *codes,
                     uint64_t rows, uint64_t words, struct err *e)
{
    (void)e;
    if (l == LAYOUT_AWQ)
        pack_awq(out, codes, rows, words);
    else
        pack_transpose_u32(out, codes, rows, words);
    return 0;
}

static int gpu_words(enum layout l, uint32_t *out, const uint32_t *codes,
                     uint64_t rows, uint64_t words, struct err *e)
{
    return pack_functions()->words(device_gpu(), l, out, codes, rows, words, e);
}

const struct pack_backend pack_cpu = { "cpu", cpu_words };
const struct pack_backend pack_gpu = { "cuda", gpu_words };

int pack_round(const struct round_params *p, enum layout l, const void *w,
               uint32_t *meta, uint32_t *out, struct err *e)
{
    int rc;

    if (!device_gpu())
        return 0;
    rc = pack_functions()->round(device_gpu(), p, l, w, meta, out, e);
    if (rc < 0)
        return device_declined(&rc, e) ? 0 : rc;
    return !rc;
}

int pack_words(enum layout l, uint32_t *out, const uint32_t *codes,
               uint64_t rows, uint64_t words, struct err *e)
{
    int rc;

    if (device_gpu()) {
        rc = pack_gpu.words(l, out, codes, rows, words, e);
        if (!device_declined(&rc, e))
            return rc;
    }
    return pack_cpu.words(l, out, codes, rows, words, e);
}
