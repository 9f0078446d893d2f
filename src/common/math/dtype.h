/* dtype.h - element types of streams and checkpoints, and conversions.
 *
 * The numbers are stored in streams: never renumber, only append. */
#ifndef FORGE_DTYPE_H
#define FORGE_DTYPE_H

#include "common/base.h"

/* Element types; float names as in safetensors. */
enum dtype {
    DT_NONE = 0,
    DT_F32 = 1,
    DT_F16 = 2,
    DT_BF16 = 3,
    DT_F64 = 4,
    DT_I8 = 5,
    DT_U8 = 6,
    DT_I16 = 7,
    DT_U16 = 8,
    DT_I32 = 9,
    DT_U32 = 10,
    DT_I64 = 11,
    DT_U64 = 12,
    DT_BOOL = 13,
    DT_F8_E4M3 = 14, /* E4M3FN: no infinity; 0x7f and 0xff are NaN */
    DT_F8_E5M2 = 15,
    DT_F8_E8M0 = 16, /* 2^(e-127), 0xff is NaN */
    DT_U4 = 17,      /* two in a byte, the first one in the low nibble */
    DT_QMETA4 = 18,  /* grid of a group, 4 bytes: common/math/quant.h */
    DT_COUNT
};

#define F16_MOST 65504.0 /* the largest finite F16 */

C_BEGIN

/* Bits of an element; 0 for DT_NONE and unknown numbers. */
unsigned dtype_bits(enum dtype t);
/* Upper-case names as in safetensors ("BF16", "F8_E4M3"), and "U4", "QMETA4";
 * "?" if unknown. */
const char *dtype_name(enum dtype t);
enum dtype dtype_parse(const char *name); /* DT_NONE if unknown */
bool dtype_is_float(enum dtype t);
/* *bytes of a tensor of these dims (ndim 0: one element).  False: the product
 * overflows or is not a whole number of bytes. */
MUST_CHECK bool dtype_size(enum dtype t, int ndim, const uint64_t *dims,
                           uint64_t *bytes);

/* Convert n elements between a float type, at any alignment, and f32.
 * Narrowing rounds to nearest even and keeps NaN; f16 overflows to infinity
 * (IEEE 754), E4M3 to NaN as in PyTorch.  All CPU levels give the same bits.
 * False: t is not a float type. */
MUST_CHECK bool to_f32(float *dst, const void *src, enum dtype t, size_t n);
MUST_CHECK bool from_f32(void *dst, enum dtype t, const float *src, size_t n);

/* The largest |x| of n elements of a float type as f32; infinity and NaN are the largest.
 * 0: t is not a float type. */
float dtype_most(const void *x, enum dtype t, size_t n);

/* Single elements, as their bits. */
float f32_from_bf16(uint16_t x);
float f32_from_f16(uint16_t x);
float f32_from_f8_e4m3(uint8_t x);
uint16_t bf16_from_f32(float x);
uint16_t f16_from_f32(float x);
/* *h = x as F16; whether it is x. */
bool f16_holds(float x, uint16_t *h);

C_END

#endif
