/* quant.c - see quant.h. */
#include "common/quant.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    ONE = 256, /* Q8.8 */
    F16_LOWEST = -14 * ONE,
    F16_EXPONENTS = 30 * ONE
};

/* log2 of the smallest and the largest normal number, in Q8.8. */
static void exponent_range(enum dtype t, int *lo, int *hi)
{
    if (t == DT_F16) {
        *lo = F16_LOWEST;
        *hi = F16_LOWEST + F16_EXPONENTS - 1;
    } else {
        *lo = -126 * ONE;
        *hi = 127 * ONE + ONE - 2; /* exp2 of it rounds below infinity */
    }
}

static uint32_t compose(double exponent, int zero, bool symmetric,
                        enum dtype scale_dtype)
{
    int lo, hi, q;

    exponent_range(scale_dtype, &lo, &hi);
    q = exponent < lo ? lo : exponent > hi ? hi : (int)exponent;
    if (symmetric)
        zero = 8;
    return (uint16_t)(int16_t)q | (uint32_t)zero << 16 |
           (symmetric ? (uint32_t)QUANT_SYMMETRIC << 24 : 0);
}

uint32_t quant_meta(float scale, int zero, bool symmetric,
                    enum dtype scale_dtype)
{
    if (!isfinite(scale) || scale <= 0)
        return compose(0, 8, symmetric, scale_dtype);
    return compose(rint(log2((double)scale) * ONE), zero, symmetric,
                   scale_dtype);
}

uint32_t quant_meta_near(double exponent, float scale, int zero, bool symmetric,
                         enum dtype scale_dtype)
{
    const double rounder = 6755399441055744.0; /* 1.5 * 2^52 */
    double q = (exponent + rounder) - rounder;

    if (!(fabs(exponent - q) < 0.49) || !isnormal(scale))
        return quant_meta(scale, zero, symmetric, scale_dtype);
    return compose(q, zero, symmetric, scale_dtype);
}

bool quant_is_symmetric(uint32_t meta)
{
    return meta >> 24 & QUANT_SYMMETRIC;
}

/* exp2(q/256) as a runtime sees it that stores it in this type. */
static float stored_scale(int q, enum dtype scale_dtype)
{
    float s = (float)exp2((double)q / ONE);

    return scale_dtype == DT_F16  ? f32_from_f16(f16_from_f32(s)) :
           scale_dtype == DT_BF16 ? f32_from_bf16(bf16_from_f32(s)) :
                                    s;
}

/* The scales of all exponents that quant_meta() gives for F16: a search asks
 * for ten million of them. */
static float f16_scales[F16_EXPONENTS];
static pthread_once_t f16_once = PTHREAD_ONCE_INIT;
static atomic_bool f16_ready;

static void fill_f16_scales(void)
{
    for (int i = 0; i < F16_EXPONENTS; i++)
        f16_scales[i] = stored_scale(i + F16_LOWEST, DT_F16);
    atomic_store_explicit(&f16_ready, true, memory_order_release);
}

struct qgrid quant_grid(uint32_t meta, enum dtype scale_dtype)
{
    int q = (int16_t)(meta & 0xffff), i = q - F16_LOWEST;
    struct qgrid g = { .zero = quant_is_symmetric(meta) ?
                                   8 :
                                   (int)(meta >> 16 & 15) };

    if (scale_dtype == DT_F16 && i >= 0 && i < F16_EXPONENTS) {
        if (!atomic_load_explicit(&f16_ready, memory_order_acquire))
            pthread_once(&f16_once, fill_f16_scales);
        g.scale = f16_scales[i];
    } else {
        g.scale = stored_scale(q, scale_dtype);
    }
    if (meta >> 24 & QUANT_NEGATIVE)
        g.scale = -g.scale;
    return g;
}

int quant_code(float w, struct qgrid g)
{
    float c = rintf(w / g.scale) + (float)g.zero;

    return c <= 0 ? 0 : c >= 15 ? 15 : (int)c; /* NaN cannot get here */
}

void quant_pack_row(uint8_t *nibbles, const uint8_t *codes, size_t n)
{
    for (size_t i = 0; i < n / 2; i++)
        nibbles[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}

void quant_unpack_row(uint8_t *codes, const uint8_t *nibbles, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        codes[2 * i] = nibbles[i] & 15;
        codes[2 * i + 1] = nibbles[i] >> 4;
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
