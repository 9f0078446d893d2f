/* pack_backend.h - packing qweight, the large tensor, on the CPU or the GPU. */
#ifndef FORGE_PACK_BACKEND_H
#define FORGE_PACK_BACKEND_H

#include "common/base.h"
#include "layout/layout.h"
#include "pack/round.h"

struct pack_backend {
    const char *name;
    /* out = qweight in the layout l (AWQ, GPTQ, GPTQ v2) from codes[rows,
     * words], as packing.h has both.  The GPU's: E_CONFIG, E_TEMP, E_DEVICE. */
    int (*words)(enum layout l, uint32_t *out, const uint32_t *codes,
                 uint64_t rows, uint64_t words, struct err *e);
};

extern const struct pack_backend pack_cpu;
extern const struct pack_backend pack_gpu; /* only while device_gpu() */

/* Round weights to nearest on the device of this process: round_absmax(), and out =
 * the words of layout l.  1; 0: the device does not, and the CPU is to.  E_DEVICE. */
MUST_CHECK int pack_round(const struct round_params *p, enum layout l,
                          const void *w, uint32_t *meta, uint32_t *out,
                          struct err *e);
/* words() on the device of this process (device/device.h), on the CPU where the
 * GPU declines.  E_DEVICE. */
MUST_CHECK int pack_words(enum layout l, uint32_t *out, const uint32_t *codes,
                          uint64_t rows, uint64_t words, struct err *e);

#endif
