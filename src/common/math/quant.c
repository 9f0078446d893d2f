/* quant.c - see quant.h. */
#include "common/math/quant.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { ONE = 256 }; /* Q8.8 */

const char *quant_group_text(uint64_t group, char text[GROUP_TEXT])
{
    if (group == GROUP_ALL)
        snprintf(text, GROUP_TEXT, "all inputs");
    else
        snprintf(text, GROUP_TEXT, "%" PRIu64, group);
    return text;
}

/* log2 of the smallest and of the largest normal number, in Q8.8. */
static void exponent_range(enum dtype t, int *lo, int *hi)
{
    if (t == DT_F16) {
        *lo = -14 * ONE;
        *hi = 16 * ONE - 1;
    } else {
        *lo = -126 * ONE;
        *hi = 127 * ONE + ONE - 2; /* larger ones round to infinity */
    }
}

static uint32_t compose(double exponent, int zero, bool symmetric, int bits,
                        enum dtype scale_dtype)
{
    int lo, hi, q;

    exponent_range(scale_dtype, &lo, &hi);
    q = exponent < lo ? lo : exponent > hi ? hi : (int)exponent;
    if (symmetric)
        zero = quant_middle(bits);
    return (uint16_t)(int16_t)q | (uint32_t)zero << 16 |
           (symmetric ? (uint32_t)QUANT_SYMMETRIC << 24 : 0) |
           (bits == 8 ? (uint32_t)QUANT_EIGHT << 24 : 0);
}

uint32_t quant_meta(float scale, int zero, bool symmetric, int bits,
                    enum dtype scale_dtype)
{
    if (!isfinite(scale) || scale <= 0)
        return compose(0, 8, symmetric, bits, scale_dtype);
    return compose(rint(log2((double)scale) * ONE), zero, symmetric, bits,
                   scale_dtype);
}

uint32_t quant_meta_near(double exponent, float scale, int zero, bool symmetric,
                         int bits, enum dtype scale_dtype)
{
    const double rounder = 6755399441055744.0; /* 1.5 * 2^52 */
    double q = (exponent + rounder) - rounder;

    if (!(fabs(exponent - q) < 0.49) || !isnormal(scale))
        return quant_meta(scale, zero, symmetric, bits, scale_dtype);
    return compose(q, zero, symmetric, bits, scale_dtype);
}

uint32_t quant_span(float lo, float hi, bool symmetric, int bits,
                    enum dtype scale_dtype)
{
    int top = quant_top(bits);
    float scale =
        (float)quant_span_scale((double)lo, (double)hi, symmetric, bits);
    float zero;
    uint32_t meta = quant_meta(scale, 8, symmetric, bits, scale_dtype);

    if (symmetric || !isfinite(scale) || scale <= 0)
        return meta;
    zero = rintf(-lo / quant_grid(meta, scale_dtype).scale);
    return quant_with_zero(meta, zero >= (float)top ? top : (int)zero);
}

int quant_check_f16(double scale, uint64_t row, uint64_t group, struct err *e)
{
    if (scale <= F16_MOST)
        return 0;
    return err_set(e, E_CONFIG,
                   "row %" PRIu64 ": the weights of group %" PRIu64
                   " are so large that they need a scale of %g, and F16 ends "
                   "at %g: leave the module out, or take --scale-dtype bf16",
                   row, group, scale, F16_MOST);
}

bool quant_is_symmetric(uint32_t meta)
{
    return meta >> 24 & QUANT_SYMMETRIC;
}

bool quant_same_bits(const uint32_t *meta, size_t n)
{
    uint32_t other = 0;

    for (size_t i = 1; i < n; i++)
        other |= meta[i] ^ meta[0];
    return !(other >> 24 & QUANT_EIGHT);
}

/* 2^(q/256) rounded to scale_dtype. */
static float stored_scale(int q, enum dtype scale_dtype)
{
    float s = (float)exp2((double)q / ONE);

    return scale_dtype == DT_F16  ? f32_from_f16(f16_from_f32(s)) :
           scale_dtype == DT_BF16 ? f32_from_bf16(bf16_from_f32(s)) :
                                    s;
}

/* Scales of the exponents 0..255 (one octave) in F16 and BF16; other scales
 * are these times a power of two.  A grid search asks for ten million of
 * them. */
static float octave[2][ONE];
static pthread_once_t octave_once = PTHREAD_ONCE_INIT;
static atomic_bool octave_ready;

static void fill_octave(void)
{
    for (int i = 0; i < ONE; i++) {
        octave[0][i] = stored_scale(i, DT_F16);
        octave[1][i] = stored_scale(i, DT_BF16);
    }
    atomic_store_explicit(&octave_ready, true, memory_order_release);
}

static float octave_scale(int q, bool bf16)
{
    uint32_t bits = (uint32_t)((q >> 8) + 127) << 23;
    float power;

    if (!atomic_load_explicit(&octave_ready, memory_order_acquire))
        pthread_once(&octave_once, fill_octave);
    memcpy(&power, &bits, sizeof(power));
    return octave[bf16][q & (ONE - 1)] * power;
}

struct qgrid quant_grid(uint32_t meta, enum dtype scale_dtype)
{
    int q = (int16_t)(meta & 0xffff), lo, hi;
    int bits = quant_bits(meta), top = quant_top(bits);
    struct qgrid g = { .zero = quant_is_symmetric(meta) ?
                                   quant_middle(bits) :
                                   (int)(meta >> 16) & top,
                       .top = top };

    exponent_range(scale_dtype, &lo, &hi);
    g.scale = q < lo || q > hi || scale_dtype == DT_F32 ?
                  stored_scale(q, scale_dtype) :
                  octave_scale(q, scale_dtype == DT_BF16);
    if (meta >> 24 & QUANT_NEGATIVE)
        g.scale = -g.scale;
    return g;
}

int quant_code(float w, struct qgrid g)
{
    float c = rintf(w / g.scale) + (float)g.zero;

    /* w is finite: c is no NaN */
    return c <= 0 ? 0 : c >= (float)g.top ? g.top : (int)c;
}

void quant_pack_row(uint8_t *row, const uint8_t *codes, size_t n, int bits)
{
    if (bits == 8)
        memcpy(row, codes, n);
    for (size_t i = 0; bits != 8 && i < n / 2; i++)
        row[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}

void quant_unpack_row(uint8_t *codes, const uint8_t *row, size_t n, int bits)
{
    if (bits == 8)
        memcpy(codes, row, n);
    for (size_t i = 0; bits != 8 && i < n / 2; i++) {
        codes[2 * i] = row[i] & 15;
        codes[2 * i + 1] = row[i] >> 4;
    }
}

void quant_dequantize_row(float *w, const uint8_t *codes, size_t n,
                          const uint32_t *meta, size_t group,
                          enum dtype scale_dtype)
{
    for (size_t j = 0; j < n;) {
        struct qgrid g = quant_grid(meta[j / group], scale_dtype);
        size_t end = j + group < n ? j + group : n;

        for (; j < end; j++)
            w[j] = quant_value(codes[j], g);
    }
}
