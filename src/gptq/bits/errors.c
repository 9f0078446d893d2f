/* errors.c - see errors.h. */
#include "gptq/bits/errors.h"

#include <math.h>
#include <stdlib.h>

#include "common/math/quant.h"
#include "common/math/threads.h"
#include "gptq/grid/grid.h"

struct job {
    const struct bits_weight *w;
    struct module_grid grid;
    float *x;          /* [rows, cols], W in f32 */
    uint32_t *meta[2]; /* of W and of -W; the second NULL: not tried */
    uint64_t groups;   /* of a row */
    double *sum;       /* [rows]: of r_j E_ij^2, or of H_jj W_ij^2 */
};

/* Sum of r_j E_ij^2 over a group, on a grid of sign * W. */
static double group_error(const struct job *j, const float *x, uint64_t from,
                          uint64_t to, uint32_t meta, float sign)
{
    const struct qgrid g = quant_grid(meta, DT_F16);
    double sum = 0;

    for (uint64_t k = from; k < to; k++) {
        float w = sign * x[k], d = w - quant_value(quant_code(w, g), g);

        sum += (double)j->w->inputs[k] * (double)d * (double)d;
    }
    return sum;
}

static void error_rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (size_t i = begin; i < end; i++) {
        const float *x = j->x + i * j->w->cols;

        j->sum[i] = 0;
        for (uint64_t k = 0; k < j->groups; k++) {
            uint64_t from = k * j->grid.group, to = from + j->grid.group;
            size_t at = i * j->groups + k;
            double least;

            to = to < j->w->cols ? to : j->w->cols;
            least = group_error(j, x, from, to, j->meta[0][at], 1);
            if (j->meta[1])
                least = fmin(least,
                             group_error(j, x, from, to, j->meta[1][at], -1));
            j->sum[i] += least;
        }
    }
}

static void power_rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (size_t i = begin; i < end; i++) {
        j->sum[i] = 0;
        for (uint64_t k = 0; k < j->w->cols; k++) {
            double w = j->x[i * j->w->cols + k];

            j->sum[i] += (double)j->w->squares[k] * w * w;
        }
    }
}

static void add(const struct job *j, double *plain, double *fisher)
{
    const float *f = j->w->outputs;

    *plain = *fisher = 0;
    for (uint64_t i = 0; i < j->w->rows; i++) {
        *plain += j->sum[i];
        *fisher += f ? (double)f[i] * j->sum[i] : 0;
    }
}

static void negate(struct job *j)
{
    size_t n = (size_t)j->w->rows * (size_t)j->w->cols;

    for (size_t i = 0; i < n; i++)
        j->x[i] = -j->x[i];
}

static int search(const struct job *j, uint32_t *meta, struct err *e)
{
    const struct grid_params p = { .rows = j->w->rows,
                                   .cols = j->w->cols,
                                   .group = j->grid.group,
                                   .symmetric = j->grid.symmetric,
                                   .bits = j->grid.bits,
                                   .search = GRID_HESSIAN,
                                   .norm = 2,
                                   .candidates = GRID_CANDIDATES_FEW,
                                   .scale_dtype = DT_F16,
                                   .dtype = DT_F32,
                                   .importance = j->w->inputs };

    return grid_search(&p, j->x, meta, e);
}

/* j->sum of one grid. */
static int one_grid(struct job *j, struct err *e)
{
    size_t n =
        (size_t)j->w->rows * (size_t)quant_groups(j->w->cols, j->grid.group);
    uint32_t *meta = mem_alloc(2 * n * sizeof(*meta), j->w->name, e);
    int rc = meta ? search(j, meta, e) : e->code;

    j->groups = quant_groups(j->w->cols, j->grid.group);
    j->meta[0] = meta;
    j->meta[1] = j->grid.symmetric ? meta + n : NULL;
    if (rc >= 0 && j->meta[1]) {
        negate(j);
        rc = search(j, j->meta[1], e);
        negate(j);
    }
    if (rc >= 0)
        threads_for(j->w->rows, 1, error_rows, j);
    free(meta);
    return rc;
}

static int measure(struct job *j, const struct bits_grids *g,
                   struct bits_errors *out, struct err *e)
{
    threads_for(j->w->rows, 1, power_rows, j);
    add(j, &out->plain.power, &out->fisher.power);
    for (int i = 0; i < g->n; i++) {
        j->grid = g->grid[i];
        if (i && j->w->cols % j->grid.group) {
            out->plain.error[i] = out->fisher.error[i] = INFINITY;
            continue;
        }
        if (one_grid(j, e) < 0)
            return err_prefix(e, "'%s'", j->w->name);
        add(j, &out->plain.error[i], &out->fisher.error[i]);
    }
    return 0;
}

int bits_measure(const struct bits_weight *w, const struct bits_grids *g,
                 struct bits_errors *out, struct err *e)
{
    size_t n = (size_t)w->rows * (size_t)w->cols;
    float *x = mem_alloc(n * sizeof(*x), w->name, e);
    double *sum = x ? mem_alloc(w->rows * sizeof(*sum), w->name, e) : NULL;
    struct job j = { .w = w, .x = x, .sum = sum };
    int rc = sum ? 0 : e->code;

    *out = (struct bits_errors){ 0 };
    if (sum && !to_f32(x, w->data, w->dtype, n))
        rc = err_set(e, E_BUG, "the weight is no float");
    if (rc >= 0)
        rc = measure(&j, g, out, e);
    free(sum);
    free(x);
    return rc;
}

double bits_taken(struct module_grid g, uint64_t rows, uint64_t cols)
{
    double groups = (double)rows * (double)quant_groups(cols, g.group);

    return (double)rows * (double)cols * g.bits +
           groups * (16 + (g.symmetric ? 0 : g.bits));
}
