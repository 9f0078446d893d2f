/* fisher_descent.c - see fisher_descent.h.
 *
 * Half the gradient, G = F E H, is computed anew for every block of rows, by
 * two matrix products.  Codes of a tile of columns move, row by row, then those of the
 * next.  When row i of E changes by d, row i of G changes by F_ii d H, and row j by
 * F_ji d H, which is F_ji / F_ii times row i's change: within the tile that is brought up
 * to date at once.  The columns behind it are when all rows have moved, by a product:
 * G += F D H, D the tile's changes of E. */
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
    uint64_t ld;      /* n in whole tiles */
    float *h;         /* [n, ld], 0 behind n */
    float *f;         /* [rows, rows] */
    float *e;         /* [rows, n]: E = q - target */
    uint8_t *code;    /* [rows, n] */
    float *pushed;    /* [BLOCK, n]: F E */
    float *grad;      /* [BLOCK, ld]: F E H, 0 behind n */
    float *scale;     /* [BLOCK, n]: at each input */
    float *change;    /* [BLOCK, TILE]: of E, in the current tile of columns */
    float *carry;     /* [BLOCK, TILE]: F change */
    uint64_t row;     /* first of the block */
    int count;
    size_t tile; /* the current one */
};

/* ---- H, F and codes in the working layout ---- */

static void fill_hessian(void *ctx, size_t begin, size_t end)
{
    const struct work *w = ctx;
    const uint32_t *input = w->c->plan->f->input;

    for (uint64_t c = begin; c < end; c++) {
        float *h = w->h + c * w->ld;

        memset(h + w->n, 0, (w->ld - w->n) * sizeof(*h));
        for (uint64_t r = 0; r < w->n; r++) {
            uint64_t i = input[c], j = input[r];

            h[r] = w->c->hessian[i > j ? i * (i + 1) / 2 + j :
                                         j * (j + 1) / 2 + i];
        }
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
                                    .ldb = (int64_t)w->ld,
                                    .c = w->grad + t * TILE,
                                    .ldc = (int64_t)w->ld });
}

static size_t tiles(const struct work *w)
{
    return (w->n + TILE - 1) / TILE;
}

/* Tiles behind the current one. */
static void carry_tiles(void *ctx, size_t begin, size_t end)
{
    const struct work *w = ctx;

    for (size_t t = w->tile + 1 + begin; t < w->tile + 1 + end; t++)
        blas_sgemm(
            &(struct sgemm){ .m = w->count,
                             .n = width(w, t),
                             .k = width(w, w->tile),
                             .a = w->carry,
                             .lda = TILE,
                             .b = w->h + w->tile * TILE * w->ld + t * TILE,
                             .ldb = (int64_t)w->ld,
                             .beta = 1,
                             .c = w->grad + t * TILE,
                             .ldc = (int64_t)w->ld });
}

static void carry(struct work *w)
{
    blas_sgemm(&(struct sgemm){ .m = w->count,
                                .n = width(w, w->tile),
                                .k = w->count,
                                .a = w->f + w->row * w->rows + w->row,
                                .lda = (int64_t)w->rows,
                                .b = w->change,
                                .ldb = TILE,
                                .c = w->carry,
                                .ldc = TILE });
    threads_for(tiles(w) - w->tile - 1, 2, carry_tiles, w);
}

/* ---- moves ---- */

static void load_scales(void *ctx, size_t begin, size_t end)
{
    const struct work *w = ctx;
    const struct tile_plan *p = w->c->plan;

    for (size_t i = begin; i < end; i++)
        for (uint64_t g = 0; g < p->groups; g++) {
            float scale = grid_of(w, w->row + i, p->group[g].group).scale;

            for (uint64_t c = p->group[g].c0; c < p->group[g].c1; c++)
                w->scale[i * w->n + c] = scale;
        }
}

/* to += by x, of a tile. */
static inline void add_times(float *restrict to, const float *restrict x,
                             float by)
{
    for (int k = 0; k < TILE; k++)
        to[k] += by * x[k];
}

/* Visit the codes of row i of the block in the tile.  Returns the number of moves. */
static int64_t move_row(struct work *w, uint64_t i)
{
    uint64_t row = w->row + i, n = w->n, c0 = w->tile * TILE;
    int count = width(w, w->tile);
    float f = w->f[row * w->rows + row], *g = w->grad + i * w->ld + c0;
    const float *scale = w->scale + i * n + c0;
    float top = (float)quant_top(w->c->bits);
    int64_t moved = 0;

    for (int c = 0; c < count; c++) {
        const float *h = w->h + (c0 + (uint64_t)c) * w->ld + c0;
        float curve = f * h[c] * scale[c], d;
        uint8_t *code = w->code + row * n + c0 + c;
        float to = (float)*code - g[c] / curve;

        if (curve == 0 || w->c->plan->f->dead[c0 + (uint64_t)c])
            continue;
        to = to < 0 ? 0 : to > top ? top : rintf(to);
        if ((int)to == *code)
            continue;
        d = (to - (float)*code) * scale[c];
        *code = (uint8_t)to;
        w->e[row * n + c0 + (uint64_t)c] += d;
        w->change[i * TILE + (uint64_t)c] = d;
        add_times(g, h, d * f);
        moved++;
    }
    return moved;
}

static int64_t move_tile(struct work *w)
{
    uint64_t c0 = w->tile * TILE;
    float by[TILE]; /* what the row's moves change */
    int64_t moved = 0;

    memset(w->change, 0, BLOCK * TILE * sizeof(*w->change));
    for (uint64_t i = 0; i < (uint64_t)w->count; i++) {
        const float *f = w->f + (w->row + i) * w->rows + w->row;
        float *g = w->grad + i * w->ld + c0;
        int64_t m;

        for (int k = 0; k < TILE; k++)
            by[k] = -g[k];
        m = move_row(w, i);
        moved += m;
        add_times(by, g, 1);
        for (uint64_t j = i + 1; m && j < (uint64_t)w->count; j++)
            add_times(w->grad + j * w->ld + c0, by, f[j] / f[i]);
    }
    return moved;
}

static int64_t move_block(struct work *w)
{
    int64_t moved = 0;

    threads_for((size_t)w->count, 4, load_scales, w);
    for (w->tile = 0; w->tile < tiles(w); w->tile++) {
        int64_t m = move_tile(w);

        moved += m;
        if (m)
            carry(w);
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
        for (uint64_t i = 0; i < (uint64_t)w->count; i++)
            for (uint64_t c = 0; c < w->n; c++)
                loss += (double)w->grad[i * w->ld + c] *
                        (double)w->pushed[i * w->n + c];
    }
    return loss;
}

/* ---- fisher_descent() ---- */

static int open_work(struct work *w, const struct fisher_descent *c,
                     struct err *e)
{
    uint64_t n = c->plan->f->cols, rows = c->rows;
    size_t size;

    *w = (struct work){ .c = c, .rows = rows, .n = n };
    w->ld = tiles(w) * TILE;
    if (blas_open(e) < 0)
        return e->code;
    w->h = mem_pages(n * w->ld * sizeof(float), "rows", e);
    w->f = w->h ? mem_pages(rows * rows * sizeof(float), "rows", e) : NULL;
    w->e = w->f ? mem_pages(rows * n * sizeof(float), "rows", e) : NULL;
    w->code = w->e ? mem_pages(rows * n, "rows", e) : NULL;
    size = BLOCK * (2 * n + w->ld + 2 * TILE) * sizeof(float);
    w->pushed = w->code ? mem_pages(size, "rows", e) : NULL;
    if (!w->pushed)
        return e->code;
    w->grad = w->pushed + BLOCK * n;
    w->scale = w->grad + BLOCK * w->ld;
    w->change = w->scale + BLOCK * n;
    w->carry = w->change + BLOCK * TILE;
    memset(w->grad, 0, BLOCK * w->ld * sizeof(*w->grad));
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
    room = (uint8_t *)w.pushed;
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
