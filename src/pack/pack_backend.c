/* pack_backend.c - see pack_backend.h. */
#include "pack/pack_backend.h"

#include "cuda/forge_cuda.h"
#include "device/device.h"
#include "pack/packing.h"

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
    const struct device_gpu *g = device_gpu();
    struct cuda_pack p = {
        .layout = l, .rows = rows, .cols = words * 8, .codes = codes, .out = out
    };

    return g->cuda->pack(g->context, &p, e);
}

const struct pack_backend pack_cpu = { "cpu", cpu_words };
const struct pack_backend pack_gpu = { "cuda", gpu_words };

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
