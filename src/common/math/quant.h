/* quant.h - the 4-bit grid: qmeta4, codes, and what a runtime makes of them.
 *
 * qmeta4, four bytes per (output row, group of inputs):
 *
 *     bits 0..15  int16  log2(scale) in Q8.8
 *     bits 16..23 u8     zero, 0..15
 *     bits 24..31 u8     flags; bit 0: symmetric, zero is 8
 *                                bit 1: the scale is negative (symmetric alone:
 *                                the grid then reaches 8 steps up, 7 down)
 *
 * |scale| = exp2(q/256), rounded once to the dtype that the checkpoint stores.
 * Every search, every rounding decision and every loss uses that rounded
 * value: quant_scale() is the only way from a qmeta4 to a scale.
 *
 * Arithmetic that decides codes is the same on every backend:
 *     code = clamp(rint(w / scale) + zero, 0, 15)     IEEE division, half to
 *     even;  value = (code - zero) * scale            no contraction. */
#ifndef FORGE_QUANT_H
#define FORGE_QUANT_H

#include "common/math/dtype.h"

enum { QUANT_LEVELS = 16, QUANT_SYMMETRIC = 1, QUANT_NEGATIVE = 2 };

struct qgrid {
    float scale; /* as the runtime sees it; > 0 unless QUANT_NEGATIVE */
    int zero;    /* 0..15 */
};

C_BEGIN

/* Nearest qmeta4 to a scale, exponent clamped to what scale_dtype holds as a
 * normal number.  scale <= 0 or not finite gives scale 1, zero 8. */
uint32_t quant_meta(float scale, int zero, bool symmetric,
                    enum dtype scale_dtype);
/* The same where 256 log2(scale) is known to within 0.005. */
uint32_t quant_meta_near(double exponent, float scale, int zero, bool symmetric,
                         enum dtype scale_dtype);
/* scale_dtype: DT_F16, DT_BF16 or DT_F32 (not rounded). */
struct qgrid quant_grid(uint32_t meta, enum dtype scale_dtype);
bool quant_is_symmetric(uint32_t meta);
/* The same scale with another zero; of an asymmetric grid alone. */
static inline uint32_t quant_with_zero(uint32_t meta, int zero)
{
    return (meta & ~(uint32_t)0xff0000) | (uint32_t)zero << 16;
}
/* The same grid with its scale negated; of a symmetric one alone. */
static inline uint32_t quant_negative(uint32_t meta)
{
    return meta ^ (uint32_t)QUANT_NEGATIVE << 24;
}
/* Groups of a row of `cols` inputs; the last may be short. */
static inline uint64_t quant_groups(uint64_t cols, uint64_t group)
{
    return (cols + group - 1) / group;
}
int quant_code(float w, struct qgrid g);
static inline float quant_value(int code, struct qgrid g)
{
    return (float)(code - g.zero) * g.scale;
}

/* A row of n codes between bytes 0..15 and nibbles, first in the low one.
 * n must be even. */
void quant_pack_row(uint8_t *nibbles, const uint8_t *codes, size_t n);
void quant_unpack_row(uint8_t *codes, const uint8_t *nibbles, size_t n);
/* One row of codes to floats; meta: the row's G entries. */
void quant_dequantize_row(float *w, const uint8_t *codes, size_t n,
                          const uint32_t *meta, size_t group,
                          enum dtype scale_dtype);

C_END

#endif
