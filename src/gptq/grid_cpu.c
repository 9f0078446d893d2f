/* grid_cpu.c - see grid.h: the search on the CPU, rows over threads. */
#include "gptq/grid.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/quant.h"
#include "common/threads.h"
#include "gptq/grid_cost.h"

/* A group and the best grid found for it so far. */
struct search {
    const struct grid_params *p;
    const float *w, *c;
    size_t n; /* up to a multiple of GRID_LANES */
    grid_cost_fn *cost;
    uint32_t best, last;
    double best_cost;
    bool any;
};

static void try_grid(struct search *s, float scale, int zero)
{
    const struct grid_params *p = s->p;
    uint32_t meta = quant_meta(scale, zero, p->symmetric, p->scale_dtype);
    struct qgrid g;
    double cost;

    if (s->any && meta == s->last)
        return;
    g = quant_grid(meta, p->scale_dtype);
    cost = s->cost(s->w, s->c, s->n, g.scale, (float)-g.zero,
                   (float)(QUANT_LEVELS - 1 - g.zero), (float)p->norm) *
           (p->norm == 2 ? (double)g.scale * g.scale : pow(g.scale, p->norm));
    s->last = meta;
    if (!s->any || cost < s->best_cost) {
        s->best = meta;
        s->best_cost = cost;
    }
    s->any = true;
}

static int clamp_zero(float z)
{
    return z <= 0 ? 0 : z >= QUANT_LEVELS - 1 ? QUANT_LEVELS - 1 : (int)z;
}

/* Asymmetric: the zero belongs to the scale as it will be stored. */
static void try_factor(struct search *s, double f, float lo, float hi)
{
    const struct grid_params *p = s->p;
    float scale, stored;
    uint32_t meta;
    int zero;

    if (p->symmetric) {
        try_grid(s, (float)(f * 2 * fmaxf(-lo, hi) / (QUANT_LEVELS - 1)), 8);
        return;
    }
    scale = (float)(f * ((double)hi - lo) / (QUANT_LEVELS - 1));
    meta = quant_meta(scale, 0, false, p->scale_dtype);
    stored = quant_grid(meta, p->scale_dtype).scale;
    zero = clamp_zero(rintf((float)(-f * lo) / stored));
    try_grid(s, scale, zero);
    if (p->search == GRID_ABSMAX)
        return;
    if (zero > 0)
        try_grid(s, scale, zero - 1);
    if (zero < QUANT_LEVELS - 1)
        try_grid(s, scale, zero + 1);
}

uint32_t grid_search_group(const struct grid_params *p, const float *w,
                           const float *importance, size_t n, double *cost)
{
    struct search s = {
        .p = p,
        .w = w,
        .c = importance,
        .n = (n + GRID_LANES - 1) / GRID_LANES * GRID_LANES,
        .cost = grid_cost_best(),
    };
    int steps = p->search == GRID_ABSMAX ? 1 : p->candidates;
    double range = GRID_FACTOR_HI - GRID_FACTOR_LO;
    float lo = 0, hi = 0;

    for (size_t i = 0; i < n; i++) {
        lo = w[i] < lo ? w[i] : lo;
        hi = w[i] > hi ? w[i] : hi;
    }
    if (lo == 0 && hi == 0)
        s.best = quant_meta(0, 8, p->symmetric, p->scale_dtype);
    else if (steps == 1)
        try_factor(&s, 1, lo, hi);
    else
        for (int i = 0; i < steps; i++)
            try_factor(&s, GRID_FACTOR_HI - range * i / (steps - 1), lo, hi);
    if (cost)
        *cost = s.best_cost;
    return s.best;
}

/* ---- rows over threads ---- */

struct job {
    const struct grid_params *p;
    const char *w;
    uint32_t *meta;
    pthread_mutex_t lock;
    int rc;
    uint64_t bad_row; /* the first row with an error */
    struct err err;
};

static void report(struct job *j, uint64_t row, int rc, const struct err *e)
{
    pthread_mutex_lock(&j->lock);
    if (!j->rc || row < j->bad_row) {
        j->rc = rc;
        j->err = *e;
        j->bad_row = row;
    }
    pthread_mutex_unlock(&j->lock);
}

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

    if (!to_f32(x, j->w + row * stride, p->dtype, p->cols))
        return err_set(e, E_DATA, "%s is no float type", dtype_name(p->dtype));
    for (uint64_t i = 0; i < p->cols; i++)
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
            grid_search_group(p, w, p->importance ? c : NULL, n, NULL);
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
        report(j, begin, rc, &e);
    free(x);
}

static int search(const struct grid_params *p, const void *w, uint32_t *meta,
                  struct err *e)
{
    struct job j = { .p = p, .w = w, .meta = meta };

    pthread_mutex_init(&j.lock, NULL);
    threads_for(p->rows, 8, search_rows, &j);
    pthread_mutex_destroy(&j.lock);
    if (j.rc < 0)
        *e = j.err;
    return j.rc;
}

const struct grid_backend grid_cpu = { .name = "cpu", .search = search };
