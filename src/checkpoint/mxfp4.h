/* mxfp4.h - microscaling floats of 4 bits (OCP Microscaling Formats v1.0, MXFP4),
 * as gpt-oss stores its experts: 32 neighbouring inputs are codes e2m1, the
 * first of two in the low nibble, times 2^(scale - 127).  Every value is a bf16
 * number. */
#ifndef FORGE_MXFP4_H
#define FORGE_MXFP4_H

#include "common/base.h"
#include "common/math/dtype.h"

enum { MXFP4_GROUP = 32, MXFP4_BYTES = MXFP4_GROUP / 2 };

/* to[n groups of 32], f32 or bf16 as `want` says, from code[n][16] and
 * scale[n]. */
void mxfp4_decode(void *to, enum dtype want, const uint8_t *code,
                  const uint8_t *scale, uint64_t n);

#endif
