/* values.c - see values.h. */
#include "ls/values.h"

#include <math.h>
#include <string.h>

#include "common/math/quant.h"

enum { BLOCK = 1024 };

static double integer(enum dtype t, const uint8_t *p)
{
    union {
        int8_t i8;
        int16_t i16;
        uint16_t u16;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
    } x = { 0 };

    memcpy(&x, p, dtype_bits(t) / 8);
    switch (t) {
    case DT_I8: return x.i8;
    case DT_I16: return x.i16;
    case DT_U16: return x.u16;
    case DT_I32: return x.i32;
    case DT_U32: return x.u32;
    case DT_I64: return (double)x.i64;
    case DT_U64: return (double)x.u64;
    case DT_QMETA4: return (double)quant_grid(x.u32, DT_F32).scale;
    default: return *p; /* U8, BOOL */
    }
}

void values_get(double *dst, enum dtype t, const void *data, uint64_t from,
                size_t n)
{
    const uint8_t *p = data;
    size_t size = dtype_bits(t) / 8;
    float block[BLOCK];

    if (t == DT_U4) {
        for (uint64_t i = 0; i < n; i++)
            dst[i] = p[(from + i) / 2] >> ((from + i) % 2 * 4) & 15;
        return;
    }
    p += from * size;
    if (t == DT_F64) {
        memcpy(dst, p, n * sizeof(*dst));
    } else if (dtype_is_float(t)) {
        for (size_t i = 0, k; i < n; i += k) {
            k = n - i < BLOCK ? n - i : BLOCK;
            if (!to_f32(block, p + i * size, t, k))
                return;
            for (size_t j = 0; j < k; j++)
                dst[i + j] = (double)block[j];
        }
    } else {
        for (size_t i = 0; i < n; i++)
            dst[i] = integer(t, p + i * size);
    }
}

void values_stats(struct stats *s, enum dtype t, const void *data,
                  uint64_t count)
{
    double v[BLOCK], squares = 0;
    uint64_t finite = 0;

    *s = (struct stats){ .count = count };
    for (uint64_t i = 0; i < count; i += BLOCK) {
        size_t n = count - i < BLOCK ? (size_t)(count - i) : BLOCK;

        values_get(v, t, data, i, n);
        for (size_t j = 0; j < n; j++) {
            double d;

            if (!isfinite(v[j])) {
                s->nonfinite++;
                continue;
            }
            s->zeros += v[j] == 0;
            if (!finite || v[j] < s->min)
                s->min = v[j];
            if (!finite || v[j] > s->max)
                s->max = v[j];
            d = v[j] - s->mean; /* Welford's algorithm */
            s->mean += d / (double)++finite;
            squares += d * (v[j] - s->mean);
        }
    }
    s->std = finite ? sqrt(squares / (double)finite) : 0;
}

void values_histogram(uint64_t bins[HISTOGRAM_BINS], const struct stats *s,
                      enum dtype t, const void *data)
{
    double v[BLOCK], width = (s->max - s->min) / HISTOGRAM_BINS;

    memset(bins, 0, HISTOGRAM_BINS * sizeof(*bins));
    for (uint64_t i = 0; i < s->count; i += BLOCK) {
        size_t n = s->count - i < BLOCK ? (size_t)(s->count - i) : BLOCK;

        values_get(v, t, data, i, n);
        for (size_t j = 0; j < n; j++) {
            double b = width > 0 ? floor((v[j] - s->min) / width) : 0;

            if (isfinite(v[j]))
                bins[b >= HISTOGRAM_BINS ? HISTOGRAM_BINS - 1 : (int)b]++;
        }
    }
}
