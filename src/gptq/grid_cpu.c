/* grid_cpu.c - see grid.h: the search on the CPU, rows over threads. */
#include "gptq/grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/lanes.h"
#include "common/quant.h"
#include "common/threads.h"
#include "gptq/grid_cost.h"

/* The factors that are tried, and their exponents in a qmeta. */
struct factors {
    int n;
    double factor[GRID_CANDIDATES_MAX], exponent[GRID_CANDIDATES_MAX];
};

/* A group and the best grid found for it so far. */
struct search {
    const struct grid_params *p;
    const float *w, *c;
    size_t n; /* up to a multiple of GRID_LANES */
    grid_cost_fn *cost;
    double unit; /* exponent of the scale of factor 1 */
    struct grid_batch batch;
    uint32_t meta[GRID_BATCH]; /* of the batch */
    uint32_t best, last;
    double best_cost;
    bool any;
    bool stops; /* when what is left costs more than the best, then done */
    bool done;
};

static double exponent_of(double scale)
{
    return 256 * log2(scale);
}

static void choose_factors(const struct grid_params *p, struct factors *f)
{
    double range = GRID_FACTOR_HI - GRID_FACTOR_LO;

    f->n = p->search == GRID_ABSMAX ? 1 : p->candidates;
    for (int i = 0; i < f->n; i++) {
        f->factor[i] = f->n == 1 ? 1 : GRID_FACTOR_HI - range * i / (f->n - 1);
        f->exponent[i] = exponent_of(f->factor[i]);
    }
}

/* Scales get smaller, and what lies outside of a grid costs more, the smaller
 * its scale is: once that alone is more than the best costs, half of the
 * candidates are left. */
static bool only_dearer(const struct search *s)
{
    const struct grid_batch *b = &s->batch;
    float scale = b->scale[b->n - 1];

    return s->stops &&
           grid_outside(s->w, s->c, s->n, scale * b->lo[b->n - 1],
                        scale * b->hi[b->n - 1]) > 1.001 * s->best_cost;
}

static void try_batch(struct search *s)
{
    const struct grid_params *p = s->p;
    double cost[GRID_BATCH];

    s->cost(s->w, s->c, s->n, &s->batch, (float)p->norm, cost);
    for (int k = 0; k < s->batch.n; k++) {
        double scale = s->batch.scale[k];

        cost[k] *= p->norm == 2 ? scale * scale : pow(scale, p->norm);
        if (!s->any || cost[k] < s->best_cost) {
            s->best = s->meta[k];
            s->best_cost = cost[k];
        }
        s->any = true;
    }
    s->done = only_dearer(s);
    s->batch.n = 0;
}

static void try_grid(struct search *s, uint32_t meta)
{
    struct grid_batch *b = &s->batch;
    struct qgrid g;

    if ((s->any || b->n) && meta == s->last)
        return;
    g = quant_grid(meta, s->p->scale_dtype);
    s->meta[b->n] = s->last = meta;
    b->scale[b->n] = g.scale;
    b->lo[b->n] = (float)-g.zero;
    b->hi[b->n++] = (float)(QUANT_LEVELS - 1 - g.zero);
    if (b->n == GRID_BATCH)
        try_batch(s);
}

static int clamp_zero(float z)
{
    return z <= 0 ? 0 : z >= QUANT_LEVELS - 1 ? QUANT_LEVELS - 1 : (int)z;
}

/* Asymmetric: the zero belongs to the scale as it will be stored. */
static void try_factor(struct search *s, double f, double exponent, float lo,
                       float hi)
{
    const struct grid_params *p = s->p;
    double reach =
        p->symmetric ? f * 2 * fmaxf(-lo, hi) : f * ((double)hi - lo);
    float scale = (float)(reach / (QUANT_LEVELS - 1)), stored;
    uint32_t meta = quant_meta_near(exponent + s->unit, scale, 0, p->symmetric,
                                    p->scale_dtype);
    int zero;

    if (p->symmetric || !isfinite(scale) || scale <= 0) {
        try_grid(s, meta);
        return;
    }
    stored = quant_grid(meta, p->scale_dtype).scale;
    zero = clamp_zero(rintf((float)(-f * lo) / stored));
    try_grid(s, quant_with_zero(meta, zero));
    if (p->search == GRID_ABSMAX)
        return;
    if (zero > 0)
        try_grid(s, quant_with_zero(meta, zero - 1));
    if (zero < QUANT_LEVELS - 1)
        try_grid(s, quant_with_zero(meta, zero + 1));
}

static uint32_t search_group(const struct grid_params *p,
                             const struct factors *f, const float *w,
                             const float *importance, size_t n)
{
    struct search s = {
        .p = p,
        .w = w,
        .c = importance,
        .n = (n + GRID_LANES - 1) / GRID_LANES * GRID_LANES,
    };
    struct grid_range r = grid_range(w, s.n);

    s.stops = p->symmetric && p->norm == 2 && r.tame;
    s.cost = r.tame ? grid_cost_tame() : grid_cost_best();
    s.unit = exponent_of(
        (p->symmetric ? 2 * (double)fmaxf(-r.lo, r.hi) : (double)r.hi - r.lo) /
        (QUANT_LEVELS - 1));
    if (r.lo == 0 && r.hi == 0)
        s.best = quant_meta(0, 8, p->symmetric, p->scale_dtype);
    else
        for (int i = 0; i < f->n && !s.done; i++)
            try_factor(&s, f->factor[i], f->exponent[i], r.lo, r.hi);
    if (s.batch.n)
        try_batch(&s);
    return s.best;
}

/* ---- rows over threads ---- */

struct job {
    const struct grid_params *p;
    struct factors factors;
    const char *w;
    uint32_t *meta;
    struct threads_error error; /* by row */
};

/* Divided by its largest, so that sums neither overflow nor vanish. */
static void normalise(float *c, const float *importance, size_t n)
{
    float top = 0;

    for (size_t i = 0; i < n; i++)
        top = importance[i] > top ? importance[i] : top;
    for (size_t i = 0; i < n; i++)
        c[i] = top > 0 ? importance[i] / top : 1;
}

static size_t padded(uint64_t group)
{
    return (group + GRID_LANES - 1) / GRID_LANES * GRID_LANES;
}

/* x[cols], w and c[padded(group)]: room to work in. */
static int search_row(const struct job *j, uint64_t row, float *x, float *w,
                      float *c, struct err *e)
{
    const struct grid_params *p = j->p;
    uint64_t stride = p->cols * dtype_bits(p->dtype) / 8;
    uint64_t groups = quant_groups(p->cols, p->group);
    size_t room = padded(p->group);
    bool finite;

    if (!to_f32(x, j->w + row * stride, p->dtype, p->cols))
        return err_set(e, E_DATA, "%s is no float type", dtype_name(p->dtype));
    finite = lanes_finite(x, p->cols);
    for (uint64_t i = 0; !finite && i < p->cols; i++)
        if (!isfinite(x[i]))
            return err_set(e, E_DATA, "row %llu: input %llu is not finite",
                           (unsigned long long)row, (unsigned long long)i);
    for (uint64_t g = 0; g < groups; g++) {
        uint64_t first = g * p->group, left = p->cols - first;
        size_t n = left < p->group ? left : p->group;

        memset(w + n, 0, (room - n) * sizeof(*w));
        memset(c + n, 0, (room - n) * sizeof(*c));
        memcpy(w, x + first, n * sizeof(*w));
        if (p->importance)
            normalise(c, p->importance + first, n);
        j->meta[row * groups + g] =
            search_group(p, &j->factors, w, p->importance ? c : NULL, n);
    }
    return 0;
}

static void search_rows(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    size_t cols = j->p->cols, room = padded(j->p->group);
    struct err e;
    float *x = mem_alloc((cols + 2 * room) * sizeof(*x), "grid", &e);
    int rc = x ? 0 : e.code;

    for (size_t r = begin; r < end && !rc; r++) {
        rc = search_row(j, r, x, x + cols, x + cols + room, &e);
        begin = r;
    }
    if (rc < 0)
        threads_error_add(&j->error, begin, &e);
    free(x);
}

static int search(const struct grid_params *p, const void *w, uint32_t *meta,
                  struct err *e)
{
    struct job j = { .p = p, .w = w, .meta = meta };

    choose_factors(p, &j.factors);
    threads_error_init(&j.error);
    threads_for(p->rows, 8, search_rows, &j);
    return threads_error_take(&j.error, e);
}

const struct grid_backend grid_cpu = { .name = "cpu", .search = search };
