/* quant.h - grids of 4 bits, or of 8: qmeta4, codes and dequantization.
 *
 * A group of inputs of an output row has one scale and one zero, stored as a
 * qmeta4 of four bytes:
 *
 *     bits 0..15  int16  log2 |scale| in Q8.8
 *     bits 16..23 u8     zero, 0..top
 *     bits 24..31 u8     flags; bit 0: symmetric, zero is 8
 *                                bit 1: the scale is negative (symmetric only:
 *                                the grid then has 8 steps up, 7 down)
 *                                bit 2: codes have 8 bits: top is 255, and the
 *                                zero of a symmetric grid 128; else top is 15
 *
 * |scale| = 2^(q/256), rounded once to the type that the checkpoint stores it
 * in.  Every search, rounding and loss uses that rounded value: quant_grid()
 * is the only way from a qmeta4 to a scale.
 *
 * Quantization, equal on all backends:
 *
 *     code  = clamp(rint(w / scale) + zero, 0, top)   IEEE division, half to even
 *     value = (code - zero) * scale                   no fused operations */
#ifndef FORGE_QUANT_H
#define FORGE_QUANT_H

#include "common/math/dtype.h"

enum { QUANT_SYMMETRIC = 1, QUANT_NEGATIVE = 2, QUANT_EIGHT = 4 };
enum { QUANT_LEVELS = 16 }; /* of 4 bits */

/* A decoded qmeta4. */
struct qgrid {
    float scale; /* as the runtime has it; positive unless QUANT_NEGATIVE */
    int zero;    /* 0..top */
    int top;     /* the largest code */
};

C_BEGIN

/* The qmeta4 nearest to a scale, its exponent clamped to the normal numbers of
 * scale_dtype, for codes of 4 or 8 bits; a symmetric grid has its zero in the
 * middle.  A scale that is not positive and finite gives scale 1, zero 8. */
uint32_t quant_meta(float scale, int zero, bool symmetric, int bits,
                    enum dtype scale_dtype);
/* The same, given exponent = 256 log2(scale) to within 0.005. */
uint32_t quant_meta_near(double exponent, float scale, int zero, bool symmetric,
                         int bits, enum dtype scale_dtype);
/* The qmeta4 of the grid of quant_span_scale(), lo and hi finite: zero in the
 * middle; asymmetric round(-lo / scale), of the scale as it is stored.  lo = hi =
 * 0: scale 1, zero 8. */
uint32_t quant_span(float lo, float hi, bool symmetric, int bits,
                    enum dtype scale_dtype);
/* Scale and zero of a qmeta4.  scale_dtype: DT_F16, DT_BF16, or DT_F32 (no
 * rounding). */
struct qgrid quant_grid(uint32_t meta, enum dtype scale_dtype);
bool quant_is_symmetric(uint32_t meta);
static inline int quant_bits(uint32_t meta)
{
    return meta >> 24 & QUANT_EIGHT ? 8 : 4;
}
/* The largest code, and the zero of a symmetric grid.  bits: 8, else 4. */
static inline int quant_top(int bits)
{
    return bits == 8 ? 255 : 15;
}
static inline int quant_middle(int bits)
{
    return bits == 8 ? 128 : 8;
}
/* The scale of the grid that just spans weights from lo <= 0 to hi >= 0, before it
 * is stored. */
static inline double quant_span_scale(double lo, double hi, bool symmetric,
                                      int bits)
{
    return (symmetric ? 2 * (-lo > hi ? -lo : hi) : hi - lo) / quant_top(bits);
}
/* E_CONFIG: that scale, of a group of a row, is beyond F16: "row 3: ...". */
MUST_CHECK int quant_check_f16(double scale, uint64_t row, uint64_t group,
                               struct err *e);
/* Whether all of meta[n] have the bits of the first one. */
bool quant_same_bits(const uint32_t *meta, size_t n);
/* Replace the zero of an asymmetric grid. */
static inline uint32_t quant_with_zero(uint32_t meta, int zero)
{
    return (meta & ~(uint32_t)0xff0000) | (uint32_t)zero << 16;
}
/* Negate the scale of a symmetric grid. */
static inline uint32_t quant_negative(uint32_t meta)
{
    return meta ^ (uint32_t)QUANT_NEGATIVE << 24;
}
/* A group size that is all inputs of any linear: one scale for each output. */
enum { GROUP_ALL = 1 << 20 };
enum { GROUP_TEXT = 24 };
/* "128", or "all inputs"; returns text. */
const char *quant_group_text(uint64_t group, char text[GROUP_TEXT]);
/* Of a linear with so many inputs. */
static inline uint64_t quant_group(uint64_t group, uint64_t cols)
{
    return group == GROUP_ALL ? cols : group;
}

/* Number of groups of a row of `cols` inputs; the last one may be shorter. */
static inline uint64_t quant_groups(uint64_t cols, uint64_t group)
{
    return (cols + group - 1) / group;
}
/* The code nearest to w, formula above. */
int quant_code(float w, struct qgrid g);
/* The value of a code, formula above. */
static inline float quant_value(int code, struct qgrid g)
{
    return (float)(code - g.zero) * g.scale;
}

/* n codes (n even) of one byte each to a row as streams have it, and back: in 8
 * bits the same bytes; else nibbles, the first in the low one. */
static inline size_t quant_row_bytes(size_t n, int bits)
{
    return bits == 8 ? n : n / 2;
}
void quant_pack_row(uint8_t *row, const uint8_t *codes, size_t n, int bits);
void quant_unpack_row(uint8_t *codes, const uint8_t *row, size_t n, int bits);
/* w[n] of one row of codes[n] (bytes); meta [quant_groups(n, group)]. */
void quant_dequantize_row(float *w, const uint8_t *codes, size_t n,
                          const uint32_t *meta, size_t group,
                          enum dtype scale_dtype);

C_END

#endif
