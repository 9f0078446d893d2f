/* cpu_tile.c - see cpu_tile.h. */
#include "gptq/solve/cpu_tile.h"

#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "common/math/row.h"
#include "gptq/solve/split.h"

enum {
    ROWS = SOLVE_ROWS,
    STRIP = LANES /* rows that are transposed together */
};

void cpu_tile_close(struct cpu_tile *t)
{
    free(t->memory);
}

void cpu_tile_take(struct cpu_tile *t, uint64_t first, uint64_t n)
{
    uint64_t left = t->j->p->rows - first * ROWS;

    t->first = first * ROWS;
    t->panels = n;
    t->rows = n * ROWS < left ? n * ROWS : left;
}

int cpu_tile_open(struct cpu_tile *t, const struct cpu_job *j, struct err *e)
{
    uint64_t cols = j->p->cols, most = threads_longest(&j->panels);
    uint64_t n_panel, n_grid, n_work = j->f->split ? SPLIT_WORK : 0;

    *t = (struct cpu_tile){ 0 };
    t->j = j;
    t->padded = j->f->padded;
    t->groups = quant_groups(cols, j->p->group);
    t->ld = (cols + 31) / 16 * 16;
    n_panel = t->padded * ROWS;
    n_grid = t->groups * ROWS;
    t->memory =
        mem_pages(most * (n_panel * (sizeof(float) + 1) +
                          ((CPU_BLOCK + 2) * ROWS + 2 * n_grid + n_work) *
                              sizeof(float)) +
                      STRIP * t->ld * (2 * sizeof(float) + 1),
                  "solve", e);
    if (!t->memory)
        return e->code;
    t->d = t->memory;
    t->work = t->d + most * n_panel;
    t->acc = t->work + most * n_work;
    t->loss = t->acc + most * CPU_BLOCK * ROWS;
    t->dist = t->loss + most * ROWS;
    t->scale = t->dist + most * ROWS;
    t->zero = t->scale + most * n_grid;
    t->strip = t->zero + most * n_grid;
    t->transposed = t->strip + STRIP * t->ld;
    t->codes = (uint8_t *)(t->transposed + STRIP * t->ld);
    t->stored = t->codes + most * n_panel;
    return 0;
}

void cpu_tile_load_grids(struct cpu_tile *t)
{
    const struct cpu_job *j = t->j;

    for (uint64_t r = 0; r < t->panels * ROWS; r++)
        for (uint64_t g = 0; g < t->groups; g++) {
            uint64_t to = (r / ROWS * t->groups + g) * ROWS + r % ROWS;
            struct qgrid q = { 1, 8, 15 };

            if (r < t->rows)
                q = quant_grid(j->meta[(t->first + r) * t->groups + g],
                               j->p->scale_dtype);
            t->scale[to] = q.scale;
            t->zero[to] = (float)q.zero;
        }
}

/* x[t->ld] = row r of W as f32, padded by zeros; zeros beyond the last row. */
static int load_row(const struct cpu_tile *t, float *x, uint64_t r,
                    struct err *e)
{
    const struct solve_params *p = t->j->p;

    if (r >= t->rows) {
        memset(x, 0, t->ld * sizeof(*x));
        return 0;
    }
    memset(x + p->cols, 0, (t->ld - p->cols) * sizeof(*x));
    return row_load(x, t->j->w, p->dtype, p->cols, t->first + r, 0, p->cols, e);
}

/* Transpose the strip's rows, and write the inputs in the factor's order. */
static void transpose_weights(const struct cpu_tile *t, float *to)
{
    const struct factor *f = t->j->f;
    static const float none[STRIP];

    for (uint64_t i = 0; i < f->cols; i += STRIP) {
        const float *row[STRIP];
        float *column[STRIP];

        for (uint64_t r = 0; r < STRIP; r++) {
            row[r] = t->strip + r * t->ld + i;
            column[r] = t->transposed + (i + r) * STRIP;
        }
        t->j->transpose(column, row);
    }
    for (uint64_t c = 0; c < f->cols; c++, to += ROWS)
        memcpy(to, f->dead[c] ? none : t->transposed + f->input[c] * STRIP,
               sizeof(none));
}

int cpu_tile_load_weights(struct cpu_tile *t, struct err *e)
{
    const struct factor *f = t->j->f;
    int rc;

    for (uint64_t q = 0; q < t->panels; q++)
        memset(cpu_tile_at(t, q, f->cols), 0,
               (t->padded - f->cols) * ROWS * sizeof(float));
    for (uint64_t r0 = 0; r0 < t->panels * ROWS; r0 += STRIP) {
        for (uint64_t r = 0; r < STRIP; r++)
            if ((rc = load_row(t, t->strip + r * t->ld, r0 + r, e)) < 0)
                return rc;
        transpose_weights(t, cpu_tile_at(t, r0 / ROWS, 0) + r0 % ROWS);
    }
    return 0;
}

/* stored[cols / 2][STRIP] = STRIP rows of transposed codes, inputs as stored,
 * two inputs a byte; eight: [cols][STRIP], one. */
static void order_codes(uint8_t *stored, const uint8_t *codes,
                        const uint32_t *where, uint64_t cols, bool eight)
{
    for (uint64_t i = 0; i < cols; i += eight ? 1 : 2, stored += STRIP) {
        const uint8_t *low = codes + where[i] * (uint64_t)ROWS;
        const uint8_t *high = codes + where[eight ? i : i + 1] * (uint64_t)ROWS;

        for (int k = 0; k < STRIP; k++)
            stored[k] = (uint8_t)(eight ? low[k] : low[k] | high[k] << 4);
    }
}

void cpu_tile_store_codes(struct cpu_tile *t)
{
    const struct solve_params *p = t->j->p;
    uint64_t width = quant_row_bytes(p->cols, p->bits);

    for (uint64_t r0 = 0; r0 < t->rows; r0 += STRIP) {
        const uint8_t *from = t->codes + r0 / ROWS * t->padded * ROWS;
        uint8_t *to = t->j->codes + (t->first + r0) * width;
        uint64_t n = t->rows - r0 < STRIP ? t->rows - r0 : STRIP;

        order_codes(t->stored, from + r0 % ROWS, t->j->where, p->cols,
                    p->bits == 8);
        for (uint64_t i = 0; i < width; i += STRIP) {
            uint64_t most = width - i < STRIP ? width - i : STRIP;
            uint8_t part[STRIP * STRIP];

            lanes_transpose_bytes(part, STRIP, t->stored + i * STRIP);
            for (uint64_t r = 0; r < n; r++)
                memcpy(to + r * width + i, part + r * STRIP, most);
        }
    }
}
