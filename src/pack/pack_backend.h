/* pack_backend.h - the one big loop of packing, wherever it runs. */
#ifndef FORGE_PACK_BACKEND_H
#define FORGE_PACK_BACKEND_H

#include "common/base.h"
#include "layout/layout.h"

struct pack_backend {
    const char *name;
    /* out = the words of AWQ's or GPTQ's qweight from codes[rows, words], see
     * packing.h. */
    int (*words)(enum layout l, uint32_t *out, const uint32_t *codes,
                 uint64_t rows, uint64_t words, struct err *e);
};

extern const struct pack_backend pack_cpu;
extern const struct pack_backend pack_gpu; /* of an open device alone */

/* words() by the device of this process (device/device.h). */
MUST_CHECK int pack_words(enum layout l, uint32_t *out, const uint32_t *codes,
                          uint64_t rows, uint64_t words, struct err *e);

#endif
