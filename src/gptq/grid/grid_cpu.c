/* grid_cpu.c - see grid.h: the search on the CPU, rows over threads. */
#include "gptq/grid/grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"
#include "common/math/row.h"
#include "common/math/threads.h"
#include "gptq/grid/grid_cost.h"

/* The factors f, and their exponents in a qmeta4. */
struct factors {
    int n;
    double factor[GRID_CANDIDATES_MAX], exponent[GRID_CANDIDATES_MAX];
};

/* A group and the best grid found for it so far. */
struct search {
    const struct grid_params *p;
    const float *w, *c;
    size_t n; /* inputs, padded to a multiple of GRID_LANES */
    grid_cost_fn *cost;
    int top;     /* the largest code */
    double unit; /* exponent of the scale for f = 1 */
    struct grid_batch batch;
    uint32_t meta[GRID_BATCH]; /* of the batch */
    uint32_t best, last;
    double best_cost;
    bool any;
    bool stops; /* the early exit of only_dearer() is allowed */
    bool done;
};

static double exponent_of(double scale)
{
    return 256 * log2(scale);
}

static void choose_factors(const struct grid_params *p, struct factors *f)
{
    double range = GRID_FACTOR_HI - GRID_FACTOR_LO;

    f->n = p->candidates;
    for (int i = 0; i < f->n; i++) {
        f->factor[i] = f->n == 1 ? 1 : GRID_FACTOR_HI - range * i / (f->n - 1);
        f->exponent[i] = exponent_of(f->factor[i]);
    }
}

/* Early exit: scales are tried in descending order, and the clipping error
 * (weights beyond the grid's ends) only grows as the scale shrinks.  Once it
 * alone exceeds the best cost, no later candidate can win.  Saves half of the
 * candidates. */
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
    b->hi[b->n++] = (float)(g.top - g.zero);
    if (b->n == GRID_BATCH)
        try_batch(s);
}

static int clamp_zero(float z, int top)
{
    return z <= 0 ? 0 : z >= (float)top ? top : (int)z;
}

/* Try an asymmetric factor: the nearest zero and its neighbours.  The zero is
 * computed from the scale as it will be stored. */
static void try_factor(struct search *s, double f, double exponent, float lo,
                       float hi)
{
    const struct grid_params *p = s->p;
    double reach =
        p->symmetric ? f * 2 * fmaxf(-lo, hi) : f * ((double)hi - lo);
    float scale = (float)(reach / s->top), stored;
    uint32_t meta = quant_meta_near(exponent + s->unit, scale, 0, p->symmetric,
                                    p->bits, p->scale_dtype);
    int zero;

    if (p->symmetric || !isfinite(scale) || scale <= 0) {
        try_grid(s, meta);
        return;
    }
    stored = quant_grid(meta, p->scale_dtype).scale;
    zero = clamp_zero(rintf((float)(-f * lo) / stored), s->top);
    try_grid(s, quant_with_zero(meta, zero));
    if (zero > 0)
        try_grid(s, quant_with_zero(meta, zero - 1));
    if (zero < s->top)
        try_grid(s, quant_with_zero(meta, zero + 1));
}

static uint32_t search_group(const struct grid_params *p,
                             const struct factors *f, const float *w,
                             const float *importance, size_t n,
                             struct grid_range r)
{
    struct search s = {
        .p = p,
        .w = w,
        .c = importance,
        .n = n,
        .top = quant_top(p->bits),
        .cost = r.tame ? grid_cost_tame() : grid_cost_best(),
        .stops = p->symmetric && p->norm == 2 && r.tame,
    };

    if (p->search == GRID_ABSMAX)
        return quant_span(r.lo, r.hi, p->symmetric, p->bits, p->scale_dtype);
    s.unit = exponent_of(quant_span_scale(r.lo, r.hi, p->symmetric, p->bits));
    if (r.lo == 0 && r.hi == 0)
        s.best = quant_meta(0, 8, p->symmetric, p->bits, p->scale_dtype);
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
    float *importance; /* normalised, [groups, padded group]; or NULL */
    uint32_t *meta;
    struct threads_error error; /* of the smallest row */
};

static size_t padded(uint64_t group)
{
    return (group + GRID_LANES - 1) / GRID_LANES * GRID_LANES;
}

/* Number of inputs of the group that begins with input `first`. */
static size_t group_size(const struct grid_params *p, uint64_t first)
{
    return p->cols - first < p->group ? p->cols - first : p->group;
}

/* importance of each group divided by its maximum, so that sums neither
 * overflow nor underflow, and padded by zeros. */
static int normalise(struct job *j, struct err *e)
{
    const struct grid_params *p = j->p;
    size_t room = padded(p->group);
    float *c;

    j->importance = c =
        mem_zero(quant_groups(p->cols, p->group), room * sizeof(*c), "grid", e);
    if (!c)
        return e->code;
    for (uint64_t i = 0; i < p->cols; i += p->group, c += room) {
        const float *from = p->importance + i;
        size_t n = group_size(p, i);
        float top = 0;

        for (size_t k = 0; k < n; k++)
            top = from[k] > top ? from[k] : top;
        for (size_t k = 0; k < n; k++)
            c[k] = top > 0 ? from[k] / top : 1;
    }
    return 0;
}

/* Search the grids of a row.  w[padded group]: scratch memory. */
static int search_row(const struct job *j, uint64_t row, float *w,
                      struct err *e)
{
    const struct grid_params *p = j->p;
    size_t item = dtype_bits(p->dtype) / 8, room = padded(p->group);
    uint64_t groups = quant_groups(p->cols, p->group);
    const float *c = j->importance;

    for (uint64_t g = 0; g < groups; g++) {
        uint64_t first = g * p->group;
        size_t n = group_size(p, first);
        struct grid_range r;

        memset(w + n, 0, (room - n) * sizeof(*w));
        if (!to_f32(w, j->w + (row * p->cols + first) * item, p->dtype, n))
            return err_set(e, E_DATA, "%s is no float type",
                           dtype_name(p->dtype));
        r = grid_range(w, room);
        if (!r.tame && row_check(w, n, row, first, e) < 0)
            return e->code;
        j->meta[row * groups + g] =
            search_group(p, &j->factors, w, c ? c + g * room : NULL, room, r);
    }
    return 0;
}

static void search_rows(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    struct err e;
    float *w = mem_alloc(padded(j->p->group) * sizeof(*w), "grid", &e);
    int rc = w ? 0 : e.code;

    for (size_t r = begin; r < end && !rc; r++) {
        rc = search_row(j, r, w, &e);
        begin = r;
    }
    if (rc < 0)
        threads_error_add(&j->error, begin, &e);
    free(w);
}

static int search(const struct grid_params *p, const void *w, uint32_t *meta,
                  struct err *e)
{
    struct job j = { .p = p, .w = w, .meta = meta };

    choose_factors(p, &j.factors);
    if (p->importance && normalise(&j, e) < 0)
        return e->code;
    threads_error_init(&j.error);
    threads_for(p->rows, 8, search_rows, &j);
    free(j.importance);
    return threads_error_take(&j.error, e);
}

const struct grid_backend grid_cpu = { .name = "cpu", .search = search };
