/* bf16_kernel_amx.c - see bf16_kernel.h: y [32, 32] in four tiles of 16 x 16.
 *
 * For each 32 inputs two tiles of the strip and two of the panel are loaded
 * for four products of 16 cycles each; the panel streams from the second-level
 * cache (2 KiB in 64 cycles), the strip stays in the first-level cache. */
#include "common/math/bf16_kernel.h"
#include "common/math/bf16_kernel_list.h"

#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

#define AMX __attribute__((target("amx-tile,amx-bf16")))

enum { HALF = 16, PAIRS = 16 /* of a tile */ };

/* Operand of LDTILECFG: palette 1, eight tiles of 16 rows of 64 bytes. */
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} shape = { 1,
            0,
            { 0 },
            { 64, 64, 64, 64, 64, 64, 64, 64 },
            { HALF, HALF, HALF, HALF, HALF, HALF, HALF, HALF } };

/* GCC's tile intrinsics do not declare that they access memory. */
#define MEMORY_IS_USED __asm__ volatile("" : : : "memory")

AMX void kernel_amx_begin(void)
{
    _tile_loadconfig(&shape);
}

AMX void kernel_amx_end(void)
{
    _tile_release();
}

/* Prefetch a quarter of the panel's next 32 inputs into the first-level cache:
 * tile loads from the second level stall the products (20 % of the time). */
#define ASK(next, quarter)                                                     \
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)                        \
        __builtin_prefetch((next) + 64 * (8 * (quarter) + i), 0, 3)

/* All 32 rows of a strip. */
AMX static void whole(float *y, int64_t ldy, const struct kernel_strip *s,
                      const uint16_t *w, int64_t pairs, enum kernel_sum how,
                      const char *ahead)
{
    enum { PANEL = 2 * KERNEL_COLS * sizeof(uint16_t) };
    const char *a = s->p, *next_strip = s->next ? s->next : a;
    float *low = y + HALF * ldy;
    int64_t ld = ldy * (int64_t)sizeof(*y);

    MEMORY_IS_USED;
    if (how == SUM_NEW) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, y, ld);
        _tile_loadd(1, y + HALF, ld);
        _tile_loadd(2, low, ld);
        _tile_loadd(3, low + HALF, ld);
    }
    for (int64_t t = 0; t < pairs; t += PAIRS) {
        const char *next = (const char *)(w + PAIRS * 2 * KERNEL_COLS);

        _tile_loadd(4, a, s->row);
        _tile_loadd(6, w, PANEL);
        ASK(next, 0);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + KERNEL_COLS, PANEL);
        ASK(next, 1);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + HALF * s->row, s->row);
        ASK(next, 2);
        _tile_dpbf16ps(2, 5, 6);
        ASK(next, 3);
        _tile_dpbf16ps(3, 5, 7);
        for (int i = 0; i < PAIRS / KERNEL_AHEAD; i++, ahead += 64)
            __builtin_prefetch(ahead, 0, 2);
        for (int i = 0; i < KERNEL_AHEAD_STRIP; i += 64)
            __builtin_prefetch(next_strip + i, 0, 2);
        next_strip += KERNEL_AHEAD_STRIP;
        a += PAIRS * s->step;
        w += PAIRS * 2 * KERNEL_COLS;
    }
    _tile_stored(0, y, ld);
    _tile_stored(1, y + HALF, ld);
    _tile_stored(2, low, ld);
    _tile_stored(3, low + HALF, ld);
    MEMORY_IS_USED;
}

static void amx_run(int rows, float *y, int64_t ldy,
                    const struct kernel_strip *s, const uint16_t *w,
                    int64_t pairs, enum kernel_sum how, const void *ahead)
{
    float all[2 * HALF][KERNEL_COLS];

    if (rows == 2 * HALF) {
        whole(y, ldy, s, w, pairs, how, ahead);
        return;
    }
    memset(all, 0, sizeof(all));
    for (int r = 0; r < rows && how != SUM_NEW; r++)
        memcpy(all[r], y + r * ldy, sizeof(all[r]));
    whole(all[0], KERNEL_COLS, s, w, pairs, how, ahead);
    for (int r = 0; r < rows; r++)
        memcpy(y + r * ldy, all[r], sizeof(all[r]));
}

const struct bf16_kernel kernel_amx = { 2 * HALF, PAIRS, false,  256,
                                        256,      512,   amx_run };
#endif
