/* int4pack.c - see int4pack.h. */
#include "layout/int4pack.h"

#include <math.h>
#include <string.h>

#include "common/math/cpu.h"
#include "common/math/threads.h"

static const char *const names[] = { "avx512", "avx2", "default" };

const char *int4pack_name(enum int4pack_capability c)
{
    return c < INT4PACK_UNKNOWN ? names[c] : "unknown";
}

enum int4pack_capability int4pack_parse(const char *name)
{
    int i = 0;

    while (i < INT4PACK_UNKNOWN && strcmp(names[i], name) != 0)
        i++;
    return (enum int4pack_capability)i;
}

enum int4pack_capability int4pack_here(void)
{
#if defined(__x86_64__)
    return cpu_has(CPU_AVX512) ? INT4PACK_AVX512 :
           cpu_has(CPU_AVX2)   ? INT4PACK_AVX2 :
                                 INT4PACK_DEFAULT;
#else
    return INT4PACK_UNKNOWN;
#endif
}

/* ---- tiles ---- */

struct job {
    uint8_t *packed;
    uint32_t *codes;
    uint64_t rows, words;
    enum int4pack_capability c;
};

struct tile {
    uint64_t first, rows;
    uint64_t step, apart; /* byte i: outputs step * i and step * i + apart */
};

static uint64_t tile_rows(enum int4pack_capability c)
{
    return c == INT4PACK_AVX512 ? 64 : 32;
}

static struct tile tile_of(const struct job *j, uint64_t t)
{
    uint64_t full = tile_rows(j->c), left = j->rows - t * full;
    struct tile x = { t * full, left < full ? left : full, 2, 1 };

    if (x.rows == full && j->c != INT4PACK_DEFAULT) {
        x.step = 1;
        x.apart = full / 2;
    }
    return x;
}

/* Tiles [begin, end).  A word of two outputs becomes eight bytes, of eight
 * inputs: those of even ones, and those of odd ones. */
static void pack_tiles(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (size_t n = begin; n < end; n++) {
        struct tile t = tile_of(j, n);
        const uint32_t *a = j->codes + t.first * j->words;
        uint8_t *to = j->packed + t.first * j->words * 4;
        uint64_t half = t.rows / 2;

        for (uint64_t w = 0; w < j->words; w++)
            for (uint64_t i = 0; i < half; i++) {
                uint32_t x = a[t.step * i * j->words + w];
                uint32_t y = a[(t.step * i + t.apart) * j->words + w];
                uint32_t even = (x & 0x0f0f0f0f) | (y & 0x0f0f0f0f) << 4;
                uint32_t odd = (x >> 4 & 0x0f0f0f0f) | (y & 0xf0f0f0f0);

                for (int k = 0; k < 4; k++) {
                    uint8_t *at = to + (8 * w + 2 * (unsigned)k) * half + i;

                    at[0] = (uint8_t)(even >> 8 * k);
                    at[half] = (uint8_t)(odd >> 8 * k);
                }
            }
    }
}

static void unpack_tiles(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (size_t n = begin; n < end; n++) {
        struct tile t = tile_of(j, n);
        uint32_t *a = j->codes + t.first * j->words;
        const uint8_t *from = j->packed + t.first * j->words * 4;
        uint64_t half = t.rows / 2;

        for (uint64_t w = 0; w < j->words; w++)
            for (uint64_t i = 0; i < half; i++) {
                uint32_t x = 0, y = 0;

                for (int k = 0; k < 8; k++) {
                    uint32_t b = from[(8 * w + (unsigned)k) * half + i];

                    x |= (b & 15) << 4 * k;
                    y |= (b >> 4) << 4 * k;
                }
                a[t.step * i * j->words + w] = x;
                a[(t.step * i + t.apart) * j->words + w] = y;
            }
    }
}

static void each_tile(const struct job *j, void (*f)(void *, size_t, size_t))
{
    uint64_t full = tile_rows(j->c);

    threads_for((j->rows + full - 1) / full, 1, f, (void *)j);
}

void int4pack_pack(uint8_t *packed, const uint32_t *codes, uint64_t rows,
                   uint64_t words, enum int4pack_capability c)
{
    const struct job j = { packed, (uint32_t *)codes, rows, words, c };

    each_tile(&j, pack_tiles);
}

void int4pack_unpack(uint32_t *codes, const uint8_t *packed, uint64_t rows,
                     uint64_t words, enum int4pack_capability c)
{
    const struct job j = { (uint8_t *)packed, codes, rows, words, c };

    each_tile(&j, unpack_tiles);
}

/* ---- the order of inputs ---- */

/* The last place of a group counts until it is taken: -1 less the inputs so
 * far. */
bool int4pack_order(int32_t *order, const int32_t *index, uint64_t inputs,
                    uint64_t group)
{
    if (inputs % group)
        return false;
    for (uint64_t last = group - 1; last < inputs; last += group)
        order[last] = -1;
    for (uint64_t k = 0; k < inputs; k++) {
        uint64_t of = index ? (uint64_t)index[k] : k / group, n;
        int32_t *last = &order[of * group + group - 1];

        if (*last >= 0)
            return false;
        n = (uint64_t)(-1 - *last);
        (*last)--;
        order[of * group + n] = (int32_t)k;
    }
    return true;
}

/* ---- zeros ---- */

static float widen(uint16_t x, enum dtype t)
{
    return t == DT_BF16 ? f32_from_bf16(x) : f32_from_f16(x);
}

bool int4pack_offset(uint16_t *offset, uint16_t scale, enum dtype t, int zero)
{
    float x = (float)(8 - zero) * widen(scale, t);

    *offset = t == DT_BF16 ? bf16_from_f32(x) : f16_from_f32(x);
    return isfinite(widen(*offset, t));
}

int int4pack_zero(uint16_t offset, uint16_t scale, enum dtype t)
{
    float s = widen(scale, t);
    float steps = s == 0 ? 0 : rintf(widen(offset, t) / s);
    uint16_t again;

    if (!(steps >= -7 && steps <= 8) ||
        !int4pack_offset(&again, scale, t, 8 - (int)steps) ||
        widen(again, t) != widen(offset, t))
        return -1;
    return 8 - (int)steps;
}
