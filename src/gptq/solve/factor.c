/* factor.c - see factor.h. */
#include "gptq/solve/factor.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/lanes.h"
#include "common/math/threads.h"
#include "device/device.h"
#include "gptq/solve/cholesky.h"
#include "gptq/solve/split.h"

enum { TILE = 128, ROWS = CHOLESKY_ROWS };

/* ---- checks of H ---- */

static int find_bad(const struct factor_params *p, const float *h,
                    struct err *e)
{
    uint64_t g = p->block;

    for (uint64_t i = 0; i < p->cols; i++) {
        uint64_t first = g ? i / g * g : 0;

        for (uint64_t j = first; j <= i; j++)
            if (!isfinite(h[factor_at(p, i, j)]))
                return err_set(e, E_DATA, "hessian: (%llu, %llu) is not finite",
                               (unsigned long long)i, (unsigned long long)j);
        if (h[factor_at(p, i, i)] < 0)
            return err_set(e, E_DATA, "hessian: (%llu, %llu) is negative",
                           (unsigned long long)i, (unsigned long long)i);
    }
    return 0;
}

struct scan {
    const struct factor_params *p;
    const float *h;
    atomic_bool bad;
};

static void scan_rows(void *ctx, size_t begin, size_t end)
{
    struct scan *j = ctx;
    uint64_t g = j->p->block;
    bool bad = false;

    for (size_t i = begin; i < end; i++) {
        uint64_t first = g ? i / g * g : 0;
        const float *row = j->h + factor_at(j->p, i, first);

        bad |= !lanes_finite(row, i - first + 1) || row[i - first] < 0;
    }
    if (bad)
        atomic_store(&j->bad, true);
}

int factor_check(const struct factor_params *p, const float *h, struct err *e)
{
    struct scan j = { .p = p, .h = h };

    threads_for(p->cols, 64, scan_rows, &j);
    return j.bad ? find_bad(p, h, e) : 0;
}

/* ---- order ---- */

struct key {
    float diag;     /* sorted descending by it */
    uint32_t input; /* or the group's number; equal ones as stored */
};

static int by_importance(const void *a, const void *b)
{
    const struct key *x = a, *y = b;

    return x->diag != y->diag  ? (x->diag < y->diag ? 1 : -1) :
           x->input < y->input ? -1 :
                                 x->input > y->input;
}

static void sort_groups(const struct factor_params *p, const float *h,
                        struct key *k, struct key *groups)
{
    uint64_t n = (p->cols + p->group - 1) / p->group, to = 0;

    for (uint64_t g = 0; g < n; g++) {
        groups[g] = (struct key){ .diag = -1, .input = (uint32_t)g };
        for (uint64_t i = g * p->group; i < p->cols && i < (g + 1) * p->group;
             i++)
            groups[g].diag = fmaxf(groups[g].diag, h[factor_at(p, i, i)]);
    }
    for (uint64_t g = 0; p->order == ORDER_INSIDE && g < n; g++)
        groups[g].diag = (float)(n - g);
    if (p->cols % p->group % FACTOR_PANEL) /* else the other groups would not
                                              begin at a panel */
        groups[n - 1].diag = INFINITY;
    qsort(groups, n, sizeof(*groups), by_importance);
    for (uint64_t g = 0; g < n; g++) {
        uint64_t first = groups[g].input * p->group, begin = to;

        for (uint64_t i = first; i < p->cols && i < first + p->group; i++)
            k[to++] = (struct key){ .diag = h[factor_at(p, i, i)],
                                    .input = (uint32_t)i };
        qsort(k + begin, to - begin, sizeof(*k), by_importance);
    }
}

static int set_order(struct factor *f, const struct factor_params *p,
                     const float *h, struct err *e)
{
    struct key *k = mem_zero(2 * p->cols, sizeof(*k), "factor", e);

    if (!k)
        return e->code;
    for (uint64_t i = 0; i < p->cols; i++)
        k[i] =
            (struct key){ .diag = h[factor_at(p, i, i)], .input = (uint32_t)i };
    if (p->order == ORDER_ACTIVATION)
        qsort(k, p->cols, sizeof(*k), by_importance);
    else if (p->order != ORDER_NATURAL)
        sort_groups(p, h, k, k + p->cols);
    for (uint64_t c = 0; c < p->cols; c++) {
        f->input[c] = k[p->cols - 1 - c].input;
        f->dead[c] = h[factor_at(p, f->input[c], f->input[c])] == 0;
        f->n_dead += f->dead[c];
    }
    free(k);
    return 0;
}

/* ---- the matrix ---- */

struct fill {
    const struct factor *f;
    const struct factor_params *p;
    const float *h;
    float *upper; /* H's upper triangle by rows, each from its diagonal on */
    float *a;     /* see cholesky.h */
    lanes_transpose_fn *transpose;
    _Atomic uint32_t *done;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Column c of row i of the upper triangle lies at upper_at(n, i) + c. */
static int64_t upper_at(uint64_t n, uint64_t i)
{
    return (int64_t)(i * n - i * (i + 1) / 2);
}

/* Copy rows i0..i1-1, columns c0..c1-1 of the packed lower triangle, as far as
 * they lie on or below the diagonal, to `upper`, transposed. */
static void transpose_part(const struct fill *j, uint64_t i0, uint64_t i1,
                           uint64_t c0, uint64_t c1)
{
    for (uint64_t c = c0; c < c1; c++) {
        float *to = j->upper + upper_at(j->p->cols, c);

        for (uint64_t i = i0 > c ? i0 : c; i < i1; i++)
            to[i] = j->h[i * (i + 1) / 2 + c];
    }
}

/* The same for a square of LANES x LANES that lies below the diagonal. */
static void transpose_lanes(const struct fill *j, uint64_t i0, uint64_t c0)
{
    const float *from[LANES];
    float *to[LANES];

    for (uint64_t k = 0; k < LANES; k++) {
        from[k] = j->h + (i0 + k) * (i0 + k + 1) / 2 + c0;
        /* more streams than the hardware prefetcher follows */
        __builtin_prefetch(from[k] + 2 * LANES - 1);
        to[k] = j->upper + upper_at(j->p->cols, c0 + k) + i0;
    }
    j->transpose(to, from);
}

/* Make `upper` from the packed triangle, rows of tiles begin..end-1.  With both
 * triangles at hand, a row of the permuted matrix is gathered from one row of
 * H. */
static void transpose_rows(void *ctx, size_t begin, size_t end)
{
    const struct fill *j = ctx;
    uint64_t n = j->p->cols;

    for (uint64_t i0 = begin * TILE; i0 < end * TILE && i0 < n; i0 += TILE) {
        uint64_t i1 = least(i0 + TILE, n), c = 0;

        for (; c < i0; c += LANES) {
            uint64_t i = i0;

            for (; i + LANES <= i1; i += LANES)
                transpose_lanes(j, i, c);
            transpose_part(j, i, i1, c, c + LANES);
        }
        transpose_part(j, i0, i1, c, i1);
    }
}

/* Gather 16 rows of a panel of the permuted matrix, from row r0 on. */
static void pick_rows(const struct fill *j, float *to, uint64_t r0,
                      uint64_t cols)
{
    enum { N = 16 };
    const uint32_t *in = j->f->input;
    const float *row[N][2];
    uint32_t own[N];

    for (int r = 0; r < N; r++) {
        uint64_t i = own[r] = in[r0 + r];

        row[r][0] = j->h + i * (i + 1) / 2;
        row[r][1] = j->upper + upper_at(j->p->cols, i);
    }
    for (uint64_t c = 0; c < cols; c++, to += ROWS) {
        uint32_t i = in[c];

        for (int r = 0; r < N; r++)
            to[r] = row[r][i > own[r]][i];
    }
}

static void fill_panels(void *ctx, size_t begin, size_t end)
{
    const struct fill *j = ctx;
    const uint32_t *in = j->f->input;
    uint64_t n = j->p->cols;

    for (uint64_t q = begin; q < end; q++) {
        float *to = j->a + cholesky_at(q);
        uint64_t first = q * ROWS, cols = least(n, first + ROWS);

        if (!j->p->block && first + ROWS <= n) {
            for (uint64_t r = 0; r < ROWS; r += 16)
                pick_rows(j, to + r, first + r, cols);
        } else {
            memset(to, 0, ROWS * (first + ROWS) * sizeof(*to));
            for (uint64_t c = 0; c < cols; c++)
                for (uint64_t r = first; r < cols; r++)
                    to[c * ROWS + r - first] =
                        factor_element(j->p, j->h, in[r], in[c]);
        }
        for (uint64_t r = first; r < first + ROWS; r++)
            to[r * ROWS + r - first] =
                r < n ?
                    (float)((double)factor_element(j->p, j->h, in[r], in[r]) +
                            j->f->dead[r] + j->f->lambda) :
                    1;
    }
}

struct pack {
    struct factor *f;
    const float *a;
    lanes_transpose_fn *transpose;
};

/* Copy LANES rows from r, LANES columns from c0, of cholesky.h's panels into
 * the two panels of factor.h that these columns fill; r - c0 is a multiple of
 * LANES. */
static void pack_lanes(const struct pack *j, uint64_t r, uint64_t c0)
{
    enum { N = FACTOR_PANEL, PANELS = LANES / N };
    float part[LANES][LANES], *to[LANES];
    const float *from[LANES];
    uint64_t padded = j->f->padded;
    uint64_t next = cholesky_at(r / ROWS + 1) - cholesky_at(r / ROWS);

    for (uint64_t k = 0; k < LANES; k++) {
        from[k] = j->a + cholesky_at(r / ROWS) + (c0 + k) * ROWS + r % ROWS;
        __builtin_prefetch(from[k] + next);
        to[k] = part[k];
    }
    j->transpose(to, from);
    for (uint64_t k = 0; r == c0 && k < LANES; k++)
        for (uint64_t c = k + 1; c < LANES; c++)
            part[k][c] = 0; /* above the diagonal */
    for (uint64_t p = 0; p < PANELS && c0 + p * N < padded; p++) {
        uint64_t first = c0 + p * N, k = r < first ? first - r : 0;
        float *panel = j->f->panel + factor_panel_at(padded, first / N);

        for (; k < LANES && r + k < padded; k++)
            memcpy(panel + (r + k - first) * N, part[k] + p * N,
                   N * sizeof(float));
    }
}

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    const struct pack *j = ctx;

    for (uint64_t c = begin * LANES; c < end * LANES; c += LANES)
        for (uint64_t r = c; r < j->f->padded; r += LANES)
            pack_lanes(j, r, c);
}

/* ---- factor_build() and its steps ---- */

void factor_free(struct factor *f)
{
    if (!f)
        return;
    if (f->gpu)
        f->gpu_free(f->gpu);
    free(f->input);
    free(f->dead);
    free(f->panel);
    free(f);
}

static int open_factor(struct factor **out, const struct factor_params *p,
                       const float *h, struct err *e)
{
    struct factor *f = mem_zero(1, sizeof(*f), "factor", e);

    if (!f)
        return e->code;
    *out = f;
    f->cols = p->cols;
    f->padded = (p->cols + FACTOR_PANEL - 1) / FACTOR_PANEL * FACTOR_PANEL;
    f->input = mem_zero(p->cols, sizeof(*f->input), "factor", e);
    f->dead = f->input ? mem_zero(p->cols, 1, "factor", e) : NULL;
    return f->dead ? set_order(f, p, h, e) : e->code;
}

/* Mean of diag H over inputs that are not dead; dead ones would make lambda too
 * small for the others. */
static double mean_diagonal(const struct factor *f,
                            const struct factor_params *p, const float *h)
{
    double sum = 0;

    for (uint64_t i = 0; i < p->cols; i++)
        sum += h[factor_at(p, i, i)];
    return f->n_dead < p->cols ? sum / (double)(p->cols - f->n_dead) : 1;
}

static int factorize(struct factor *f, struct fill *fill)
{
    const struct factor_params *p = fill->p;
    uint64_t panels = (p->cols + ROWS - 1) / ROWS;

    if (!p->block)
        threads_for((p->cols + TILE - 1) / TILE, 1, transpose_rows, fill);
    for (double d = p->damping; f->n_tried < FACTOR_TRIES; d *= 10) {
        d = d > 1 ? 1 : d;
        f->tried[f->n_tried++] = d;
        f->lambda = d * f->mean;
        threads_for(panels, 1, fill_panels, fill);
        if (!cholesky(fill->a, panels, fill->done))
            return 0;
        if (d >= 1)
            break;
    }
    return 1;
}

/* `upper` shares its memory with f->panel: H is gathered before the panels are
 * written. */
static int open_memory(struct factor *f, struct fill *fill, struct err *e)
{
    uint64_t n = factor_panel_at(f->padded, f->padded / FACTOR_PANEL);
    uint64_t panels = (f->cols + ROWS - 1) / ROWS;

    fill->done = mem_alloc(panels * sizeof(*fill->done), "factor", e);
    fill->a = fill->done ?
                  mem_pages(cholesky_at(panels) * sizeof(float), "factor", e) :
                  NULL;
    fill->upper = f->panel =
        fill->a ? mem_pages(n * sizeof(float), "factor", e) : NULL;
    return f->panel ? 0 : e->code;
}

int factor_plan(struct factor **out, const struct factor_params *p,
                const float *h, struct err *e)
{
    struct factor *f = NULL;
    int rc;

    *out = NULL;
    if (p->cols > INT32_MAX / 2) /* the square's bytes fit 64 bits */
        return err_set(e, E_DATA, "hessian: too many inputs");
    if ((rc = open_factor(&f, p, h, e)) < 0) {
        factor_free(f);
        return rc;
    }
    f->mean = mean_diagonal(f, p, h);
    *out = f;
    return 0;
}

int factor_build(struct factor **out, const struct factor_params *p,
                 const float *h, struct err *e)
{
    struct fill fill = { .p = p, .h = h, .transpose = lanes_transpose_best() };
    struct factor *f;
    int rc;

    *out = NULL;
    if ((rc = factor_check(p, h, e)) < 0 || (rc = factor_plan(&f, p, h, e)) < 0)
        return rc;
    fill.f = f;
    if (!(rc = open_memory(f, &fill, e)) && !(rc = factorize(f, &fill))) {
        struct pack pack = { f, fill.a, fill.transpose };

        threads_for((f->padded + LANES - 1) / LANES, 2, pack_panels, &pack);
    }
    free(fill.a);
    free(fill.done);
    if (rc < 0)
        factor_free(f);
    else
        *out = f;
    return rc;
}

/* ---- split panels ---- */

float *factor_at_row(const void *factor, uint64_t c, uint64_t k)
{
    const struct factor *f = factor;
    uint64_t p = c / FACTOR_PANEL;

    return f->panel + factor_panel_at(f->padded, p) +
           (k - p * FACTOR_PANEL) * FACTOR_PANEL;
}

struct splitting {
    const struct factor *f;
    uint64_t block;
};

static void split_blocks(void *ctx, size_t begin, size_t end)
{
    const struct splitting *j = ctx;
    uint64_t n = j->f->padded;

    for (size_t i = begin; i < end; i++) {
        uint64_t c1 = least((i + 1) * j->block, n);

        split_right(&(struct split_part){ .at = factor_at_row,
                                          .of = j->f,
                                          .c0 = i * j->block,
                                          .c1 = c1,
                                          .k0 = c1,
                                          .k1 = n });
    }
}

void factor_split(struct factor *f, uint64_t block)
{
    struct splitting j = { f, block };

    f->split = true;
    threads_for((f->padded + block - 1) / block, 1, split_blocks, &j);
}
