/* round_nearest.c - see round_nearest.h. */
#include "gptq/solve/round_nearest.h"

#include <stdlib.h>

#include "common/math/quant.h"
#include "common/math/row.h"
#include "common/math/threads.h"

struct job {
    const struct solve_params *p;
    const void *w;
    const uint32_t *meta;
    uint8_t *codes;
    struct threads_error error; /* by row */
};

static int round_row(const struct job *j, uint64_t row, float *x,
                     uint8_t *codes, struct err *e)
{
    const struct solve_params *p = j->p;
    const uint32_t *meta = j->meta + row * quant_groups(p->cols, p->group);
    struct qgrid g = { 1, 8, 15 };

    if (row_load(x, j->w, p->dtype, p->cols, row, 0, p->cols, e) < 0)
        return e->code;
    for (uint64_t i = 0; i < p->cols; i++) {
        if (i % p->group == 0)
            g = quant_grid(meta[i / p->group], p->scale_dtype);
        codes[i] = (uint8_t)quant_code(x[i], g);
    }
    quant_pack_row(j->codes + row * quant_row_bytes(p->cols, p->bits), codes,
                   p->cols, p->bits);
    return 0;
}

static void round_rows(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    uint64_t cols = j->p->cols;
    struct err e;
    float *x = mem_alloc(cols * (sizeof(*x) + 1), "solve", &e);
    int rc = x ? 0 : e.code;
    size_t r = begin;

    while (!rc && r < end &&
           !(rc = round_row(j, r, x, (uint8_t *)(x + cols), &e)))
        r++;
    if (rc < 0)
        threads_error_add(&j->error, r, &e);
    free(x);
}

int round_nearest(const struct solve_params *p, const void *w,
                  const uint32_t *meta, uint8_t *codes, struct err *e)
{
    struct job j = { .p = p, .w = w, .meta = meta, .codes = codes };

    threads_error_init(&j.error);
    threads_for(p->rows, 8, round_rows, &j);
    return threads_error_take(&j.error, e);
}
