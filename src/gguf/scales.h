/* scales.h - the scales of a 4-bit linear as blocks of GGUF have them. */
#ifndef FORGE_GGUF_SCALES_H
#define FORGE_GGUF_SCALES_H

#include "checkpoint/checkpoint.h"

/* F16 [rows, groups], free() them.  NULL, E_CONFIG: one that F16 does not
 * hold; E_TEMP. */
MUST_CHECK uint16_t *gguf_scales(const struct ck_quantized *q,
                                 const char *module, struct err *e);

#endif
