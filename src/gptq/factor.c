/* factor.c - see factor.h. */
#include "gptq/factor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/blas.h"
#include "common/threads.h"

enum { TILE = 256 };

/* ---- what H says ---- */

static uint64_t at(const struct factor_params *p, uint64_t i, uint64_t j)
{
    uint64_t g = p->block, t;

    if (g)
        return (i / g * g + i % g) * g + j % g; /* i / g == j / g */
    if (i < j) {
        t = i;
        i = j;
        j = t;
    }
    return i * (i + 1) / 2 + j;
}

static float element(const struct factor_params *p, const float *h, uint64_t i,
                     uint64_t j)
{
    return p->block && i / p->block != j / p->block ? 0 : h[at(p, i, j)];
}

static int check(const struct factor_params *p, const float *h, struct err *e)
{
    uint64_t g = p->block;

    for (uint64_t i = 0; i < p->cols; i++) {
        uint64_t first = g ? i / g * g : 0;

        for (uint64_t j = first; j <= i; j++)
            if (!isfinite(h[at(p, i, j)]))
                return err_set(e, E_DATA, "hessian: (%llu, %llu) is not finite",
                               (unsigned long long)i, (unsigned long long)j);
        if (h[at(p, i, i)] < 0)
            return err_set(e, E_DATA, "hessian: (%llu, %llu) is negative",
                           (unsigned long long)i, (unsigned long long)i);
    }
    return 0;
}

/* ---- order ---- */

struct key {
    float top, diag; /* largest first */
    uint32_t input;  /* ties: as stored */
};

static int by_importance(const void *a, const void *b)
{
    const struct key *x = a, *y = b;

    if (x->top != y->top)
        return x->top < y->top ? 1 : -1;
    if (x->diag != y->diag)
        return x->diag < y->diag ? 1 : -1;
    return x->input < y->input ? -1 : x->input > y->input;
}

/* Groups with an equal largest diagonal must not mix. */
static int by_group(const void *a, const void *b)
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
            groups[g].diag = fmaxf(groups[g].diag, h[at(p, i, i)]);
    }
    qsort(groups, n, sizeof(*groups), by_group);
    for (uint64_t g = 0; g < n; g++) {
        uint64_t first = groups[g].input * p->group, begin = to;

        for (uint64_t i = first; i < p->cols && i < first + p->group; i++)
            k[to++] =
                (struct key){ .diag = h[at(p, i, i)], .input = (uint32_t)i };
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
        k[i] = (struct key){ .diag = h[at(p, i, i)], .input = (uint32_t)i };
    if (p->order == ORDER_ACTIVATION)
        qsort(k, p->cols, sizeof(*k), by_importance);
    else if (p->order == ORDER_GROUP)
        sort_groups(p, h, k, k + p->cols);
    for (uint64_t c = 0; c < p->cols; c++) {
        f->input[c] = k[p->cols - 1 - c].input;
        f->dead[c] = h[at(p, f->input[c], f->input[c])] == 0;
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
    float *a;
};

static void fill_rows(void *ctx, size_t begin, size_t end)
{
    const struct fill *j = ctx;
    const uint32_t *in = j->f->input;
    uint64_t n = j->p->cols;

    for (size_t r = begin; r < end; r++) {
        float *to = j->a + r * n;
        uint64_t i = in[r];

        for (uint64_t c = 0; c < r && j->p->block; c++)
            to[c] = element(j->p, j->h, i, in[c]);
        for (uint64_t c = 0; c < r && !j->p->block; c++)
            to[c] = in[c] < i ? j->h[i * (i + 1) / 2 + in[c]] :
                                j->h[(uint64_t)in[c] * (in[c] + 1) / 2 + i];
        j->a[r * n + r] = (float)((double)element(j->p, j->h, in[r], in[r]) +
                                  (j->f->dead[r] ? 1 : 0) + j->f->lambda);
    }
}

/* ---- Cholesky in tiles ---- */

struct step {
    float *a;
    uint64_t n, k, size; /* the diagonal tile begins at k */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Rows below the diagonal tile: X Lᵀ = A. */
static void solve_rows(void *ctx, size_t begin, size_t end)
{
    const struct step *s = ctx;

    for (size_t t = begin; t < end; t++) {
        uint64_t r = s->k + s->size + t * TILE;

        blas_strsm_right(false, true, (int)least(TILE, s->n - r), (int)s->size,
                         s->a + s->k * s->n + s->k, (int)s->n,
                         s->a + r * s->n + s->k, (int)s->n);
    }
}

/* Tile t of the triangle to the lower right: A -= X Xᵀ. */
static void update_tiles(void *ctx, size_t begin, size_t end)
{
    const struct step *s = ctx;

    for (size_t t = begin; t < end; t++) {
        uint64_t i = 0, j = t, r, c;

        while (j > i)
            j -= ++i;
        r = s->k + s->size + i * TILE;
        c = s->k + s->size + j * TILE;
        blas_sgemm(false, true, (int)least(TILE, s->n - r),
                   (int)least(TILE, s->n - c), (int)s->size, -1,
                   s->a + r * s->n + s->k, (int)s->n, s->a + c * s->n + s->k,
                   (int)s->n, 1, s->a + r * s->n + c, (int)s->n);
    }
}

int factor_cholesky(float *a, uint64_t n)
{
    int rc = 0;

    for (uint64_t k = 0; k < n && !rc; k += TILE) {
        struct step s = { a, n, k, least(TILE, n - k) };
        uint64_t rest = n - k - s.size, tiles = (rest + TILE - 1) / TILE;

        if (blas_spotrf_lower((int)s.size, a + k * n + k, (int)n)) {
            rc = 1;
            break;
        }
        threads_for(tiles, 1, solve_rows, &s);
        threads_for(tiles * (tiles + 1) / 2, 1, update_tiles, &s);
    }
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = !isfinite(a[i * n + i]);
    return rc;
}

struct pack {
    struct factor *f;
    const float *a;
};

static void pack_panels(void *ctx, size_t begin, size_t end)
{
    const struct pack *j = ctx;
    uint64_t n = j->f->cols, padded = j->f->padded;

    for (size_t p = begin; p < end; p++) {
        float *to = j->f->panel + factor_panel_at(padded, p);
        uint64_t c0 = p * FACTOR_PANEL;

        for (uint64_t r = c0; r < padded; r++)
            for (uint64_t c = c0; c < c0 + FACTOR_PANEL; c++)
                *to++ = r < n && c <= r ? j->a[r * n + c] : (float)(r == c);
    }
}

/* ---- together ---- */

void factor_free(struct factor *f)
{
    if (!f)
        return;
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

/* The mean over inputs that are not dead: an input that never occurs says
 * nothing about the size of the others. */
static double mean_diagonal(const struct factor *f,
                            const struct factor_params *p, const float *h)
{
    double sum = 0;

    for (uint64_t i = 0; i < p->cols; i++)
        sum += h[at(p, i, i)];
    return f->n_dead < p->cols ? sum / (double)(p->cols - f->n_dead) : 1;
}

static int factorize(struct factor *f, const struct factor_params *p,
                     const float *h, float *a)
{
    double mean = mean_diagonal(f, p, h);
    struct fill fill = { f, p, h, a };

    for (double d = p->damping; f->n_tried < FACTOR_TRIES; d *= 10) {
        d = d > 1 ? 1 : d;
        f->tried[f->n_tried++] = d;
        f->lambda = d * mean;
        threads_for(p->cols, 16, fill_rows, &fill);
        if (!factor_cholesky(a, p->cols))
            return 0;
        if (d >= 1)
            break;
    }
    return 1;
}

int factor_build(struct factor **out, const struct factor_params *p,
                 const float *h, struct err *e)
{
    struct factor *f = NULL;
    float *a = NULL;
    uint64_t bytes;
    int rc;

    *out = NULL;
    if ((rc = blas_open(e)) < 0 || (rc = check(p, h, e)) < 0 ||
        (rc = open_factor(&f, p, h, e)) < 0)
        goto fail;
    if (f->padded > INT32_MAX || size_mul(f->padded, f->padded, &bytes) ||
        size_mul(bytes, sizeof(float), &bytes)) {
        rc = err_set(e, E_DATA, "hessian: too many inputs");
        goto fail;
    }
    a = mem_pages(bytes, "factor", e);
    if (!a) {
        rc = e->code;
        goto fail;
    }
    rc = factorize(f, p, h, a);
    if (!rc) {
        struct pack pack = { f, a };
        uint64_t panels = f->padded / FACTOR_PANEL;

        f->panel = mem_pages(factor_panel_at(f->padded, panels) * sizeof(float),
                             "factor", e);
        if (!f->panel) {
            rc = e->code;
            goto fail;
        }
        threads_for(panels, 4, pack_panels, &pack);
    }
    free(a);
    *out = f;
    return rc;
fail:
    free(a);
    factor_free(f);
    return rc;
}
