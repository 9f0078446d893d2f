/* grid_reach.c - see grid.h: weights beyond the range of every grid. */
#include <math.h>
#include <stdatomic.h>

#include "common/math/quant.h"
#include "common/math/threads.h"
#include "gptq/grid/grid.h"

/* A scale above it may have been clamped to F16_MOST. */
#define SUSPECT 60000.0f

double grid_most(bool symmetric, enum dtype scale)
{
    /* asymmetric: the grid spans from w to 0, 15 steps */
    return scale == DT_F16 ? F16_MOST * 15 / (symmetric ? 2 : 1) : HUGE_VAL;
}

static int check_group(const struct grid_params *p, const void *w, uint64_t row,
                       uint64_t g, struct err *e)
{
    enum { PIECE = 1024 };
    uint64_t at = g * p->group, left = p->cols - at;
    uint64_t n = left < p->group ? left : p->group;
    size_t item = dtype_bits(p->dtype) / 8;
    double lo = 0, hi = 0;
    float x[PIECE];

    for (uint64_t i = 0; i < n; i += PIECE) {
        uint64_t k = n - i < PIECE ? n - i : PIECE;

        if (p->fp8)
            fp8_piece(x, p->fp8, row, at + i, k);
        else if (!to_f32(x, (const char *)w + (row * p->cols + at + i) * item,
                         p->dtype, k))
            return err_set(e, E_BUG, "the weight is no float");
        for (uint64_t j = 0; j < k; j++) {
            lo = fmin(lo, (double)x[j]);
            hi = fmax(hi, (double)x[j]);
        }
    }
    return quant_check_f16(quant_span_scale(lo, hi, p->symmetric, p->bits), row,
                           g, e);
}

struct look {
    const uint32_t *meta;
    atomic_bool suspect;
};

static void look_at(void *ctx, size_t begin, size_t end)
{
    struct look *l = ctx;

    for (size_t i = begin; i < end; i++)
        if (quant_grid(l->meta[i], DT_F16).scale >= SUSPECT)
            atomic_store(&l->suspect, true);
}

int grid_reach(const struct grid_params *p, const void *w, const uint32_t *meta,
               struct err *e)
{
    uint64_t groups = quant_groups(p->cols, p->group);
    struct look l = { .meta = meta };

    if (p->scale_dtype != DT_F16)
        return 0;
    threads_for(p->rows * groups, 1 << 13, look_at, &l);
    for (uint64_t i = 0; i < p->rows * groups && l.suspect; i++)
        if (quant_grid(meta[i], DT_F16).scale >= SUSPECT &&
            check_group(p, w, i / groups, i % groups, e))
            return e->code;
    return 0;
}
