/* fisher_descent.c - see fisher_descent.h.
 *
 * Half the gradient, G = F E H, is computed anew for every block of rows, by
 * two matrix products.  When row i of E changes by d, row i of G changes by
 * F_ii d H, and row j by F_ji d H, which is F_ji / F_ii times row i's change:
 * so later rows of the block are brought up to date without another product. */
#include "gptq/solve/fisher_descent.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/quant.h"
#include "common/math/threads.h"

enum { BLOCK = 64, TILE = 128 };

struct work {
    const struct fisher_descent *c;
    uint64_t rows, n; /* n: inputs, in the factor's order */
    float *h;         /* [n, n] */
    float *f;         /* [rows, rows] */
    float *e;         /* [rows, n]: E = q - target */
    uint8_t *code;    /* [rows, n] */
    float *pushed;    /* [BLOCK, n]: F E */
    float *grad;      /* [BLOCK, n]: F E H */
    float *before;    /* [n]: the current row of grad before its moves */
    float *scale;     /* [n]: the current row's scale at each input */
    uint64_t row;     /* first of the block */
    int count;
};

/* ---- H, F and codes in the working layout ---- */

static void fill_hessian(void *ctx, size_t begin, size_t end)
{
    const struct work *w = ctx;
    const uint32_t *input = w->c->plan->f->input;

    for (uint64_t c = begin; c < end; c++)
        for (uint64_t r = 0; r < w->n; r++) {
            uint64_t i = input[c], j = input[r];

            w->h[c * w->n + r] = w->c->hessian[i > j ? i * (i + 1) / 2 + j :
                                                       j * (j + 1) / 2 + i];
        }
}

static void fill_fisher(struct work *w)
{
    const float *from = w->c->fisher;

    for (uint64_t i = 0; i < w->rows; i++)
        for (uint64_t j = 0; j <= i; j++)
            w->f[i * w->rows + j] = w->f[j * w->rows + i] = *from++;
}

static struct qgrid grid_of(const struct work *w, uint64_t row, uint64_t group)
{
    uint64_t groups = quant_groups(w->n, w->c->group);

    return quant_grid(w->c->meta[row * groups + group], w->c->scale_dtype);
}

/* Unpack a row's codes and set its errors E; store_row() packs the codes. */
static void load_row(struct work *w, uint64_t row, const uint8_t *codes,
                     uint8_t *room)
{
    const uint32_t *input = w->c->plan->f->input;

    quant_unpack_row(room, codes + row * quant_row_bytes(w->n, w->c->bits),
                     w->n, w->c->bits);
    for (uint64_t c = 0; c < w->n; c++) {
        struct qgrid g = grid_of(w, row, input[c] / w->c->group);

        w->code[row * w->n + c] = room[input[c]];
        w->e[row * w->n + c] = quant_value(room[input[c]], g) -
                               w->c->target[row * w->n + input[c]];
    }
}

static void store_row(const struct work *w, uint64_t row, uint8_t *codes,
                      uint8_t *room)
{
    for (uint64_t c = 0; c < w->n; c++)
        room[w->c->plan->f->input[c]] = w->code[row * w->n + c];
    quant_pack_row(codes + row * quant_row_bytes(w->n, w->c->bits), room, w->n,
                   w->c->bits);
}

/* ---- products ---- */

static int width(const struct work *w, size_t tile)
{
    uint64_t left = w->n - tile * TILE;

    return (int)(left < TILE ? left : TILE);
}

static void push_tiles(void *ctx, size_t begin, size_t end)
{
    const struct work *w = ctx;
    int n = (int)w->n, rows = (int)w->rows;

    for (size_t t = begin; t < end; t++)
        blas_sgemm(&(struct sgemm){ .m = w->count,
                                    .n = width(w, t),
                                    .k = rows,
                                    .a = w->f + w->row * w->rows,
                                    .b = w->e + t * TILE,
                                    .ldb = n,
                                    .c = w->pushed + t * TILE,
                                    .ldc = n });
}

static void grad_tiles(void *ctx, size_t begin, size_t end)
{
    const struct work *w = ctx;
    int n = (int)w->n;

    for (size_t t = begin; t < end; t++)
        blas_sgemm(&(struct sgemm){ .m = w->count,
                                    .n = width(w, t),
                                    .k = n,
                                    .a = w->pushed,
                                    .b = w->h + t * TILE,
                                    .ldb = n,
                                    .c = w->grad + t * TILE,
                                    .ldc = n });
}

static size_t tiles(const struct work *w)
{
    return (w->n + TILE - 1) / TILE;
}

/* ---- moves ---- */

static void load_scales(struct work *w, uint64_t row)
{
    const struct tile_plan *p = w->c->plan;

    for (uint64_t g = 0; g < p->groups; g++) {
        float scale = grid_of(w, row, p->group[g].group).scale;

        for (uint64_t c = p->group[g].c0; c < p->group[g].c1; c++)
            w->scale[c] = scale;
    }
}

/* Visit the codes of row i of the block.  Returns the number of moves. */
static int64_t move_row(struct work *w, uint64_t i)
{
    uint64_t row = w->row + i, n = w->n;
    float f = w->f[row * w->rows + row], *g = w->grad + i * n;
    float top = (float)quant_top(w->c->bits);
    int64_t moved = 0;

    load_scales(w, row);
    for (uint64_t c = 0; c < n; c++) {
        const float *h = w->h + c * n;
        float curve = f * h[c] * w->scale[c], d;
        int code = w->code[row * n + c];
        float to = (float)code - g[c] / curve;

        if (curve == 0 || w->c->plan->f->dead[c])
            continue;
        to = to < 0 ? 0 : to > top ? top : rintf(to);
        if ((int)to == code)
            continue;
        d = (to - (float)code) * w->scale[c];
        w->code[row * n + c] = (uint8_t)to;
        w->e[row * n + c] += d;
        d *= f;
        for (uint64_t k = 0; k < n; k++)
            g[k] += d * h[k];
        moved++;
    }
    return moved;
}

static int64_t move_block(struct work *w)
{
    uint64_t n = w->n;
    int64_t moved = 0;

    for (uint64_t i = 0; i < (uint64_t)w->count; i++) {
        const float *f = w->f + (w->row + i) * w->rows + w->row;
        float *g = w->grad + i * n;
        int64_t m;

        memcpy(w->before, g, n * sizeof(*g));
        m = move_row(w, i);
        moved += m;
        for (uint64_t j = i + 1; m && j < (uint64_t)w->count; j++) {
            float part = f[j] / f[i], *to = w->grad + j * n;

            for (uint64_t k = 0; k < n; k++)
                to[k] += part * (g[k] - w->before[k]);
        }
    }
    return moved;
}

static void next_block(struct work *w, uint64_t row)
{
    w->row = row;
    w->count = (int)(w->rows - row < BLOCK ? w->rows - row : BLOCK);
}

static int64_t sweep(struct work *w)
{
    int64_t moved = 0;

    for (uint64_t row = 0; row < w->rows; row += BLOCK) {
        next_block(w, row);
        threads_for(tiles(w), 1, push_tiles, w);
        threads_for(tiles(w), 1, grad_tiles, w);
        moved += move_block(w);
    }
    return moved;
}

static double loss_of(struct work *w)
{
    double loss = 0;

    for (uint64_t row = 0; row < w->rows; row += BLOCK) {
        next_block(w, row);
        memcpy(w->pushed, w->e + row * w->n,
               (size_t)w->count * w->n * sizeof(float));
        threads_for(tiles(w), 1, grad_tiles, w);
        for (uint64_t i = 0; i < (uint64_t)w->count * w->n; i++)
            loss += (double)w->grad[i] * (double)w->pushed[i];
    }
    return loss;
}

/* ---- fisher_descent() ---- */

static int open_work(struct work *w, const struct fisher_descent *c,
                     struct err *e)
{
    uint64_t n = c->plan->f->cols, rows = c->rows;

    *w = (struct work){ .c = c, .rows = rows, .n = n };
    if (blas_open(e) < 0)
        return e->code;
    w->h = mem_pages(n * n * sizeof(float), "rows", e);
    w->f = w->h ? mem_pages(rows * rows * sizeof(float), "rows", e) : NULL;
    w->e = w->f ? mem_pages(rows * n * sizeof(float), "rows", e) : NULL;
    w->code = w->e ? mem_pages(rows * n, "rows", e) : NULL;
    w->pushed = w->code ?
                    mem_pages((2 * BLOCK + 2) * n * sizeof(float), "rows", e) :
                    NULL;
    if (!w->pushed)
        return e->code;
    w->grad = w->pushed + BLOCK * n;
    w->before = w->grad + BLOCK * n;
    w->scale = w->before + n;
    threads_for(n, 64, fill_hessian, w);
    fill_fisher(w);
    return 0;
}

static void close_work(struct work *w)
{
    free(w->h);
    free(w->f);
    free(w->e);
    free(w->code);
    free(w->pushed);
}

int64_t fisher_descent(const struct fisher_descent *c, uint8_t *codes,
                       double *loss, struct err *e)
{
    int64_t moved = 0, now = 1;
    struct work w;
    uint8_t *room;

    if (open_work(&w, c, e) < 0) {
        close_work(&w);
        return e->code;
    }
    room = (uint8_t *)w.before;
    for (uint64_t r = 0; r < w.rows; r++)
        load_row(&w, r, codes, room);
    for (int i = 0; i < c->sweeps && now; i++) {
        now = sweep(&w);
        moved += now;
    }
    *loss = loss_of(&w);
    for (uint64_t r = 0; r < w.rows; r++)
        store_row(&w, r, codes, room);
    close_work(&w);
    return moved;
}
