/* block_grid.c - see block_grid.h. */
#include "gptq/solve/block_grid.h"

#include <math.h>
#include <string.h>

#include "common/math/quant.h"

enum { ROWS = SOLVE_ROWS, COLS = FACTOR_PANEL };

uint32_t block_candidate(const struct block_params *p, int i, float lo,
                         float hi)
{
    int n = p->factors, sign = p->negative ? i % 2 : 0;
    int top = quant_top(p->bits);
    double low, scale;
    uint32_t meta;

    if (p->symmetric) {
        scale =
            block_factor(p, p->negative ? i / 2 : i) * 2 * fmaxf(-lo, hi) / top;
        meta = quant_meta((float)scale, 8, true, p->bits, p->scale_dtype);
        return sign ? quant_negative(meta) : meta;
    }
    low = block_factor(p, i % n) * lo;
    scale = (block_factor(p, i / n) * hi - low) / top;
    meta = quant_meta((float)scale, 0, false, p->bits, p->scale_dtype);
    if (!(scale > 0))
        return meta; /* a group of zeros: scale 1, zero 8 */
    scale = quant_grid(meta, p->scale_dtype).scale;
    return quant_meta((float)scale, (int)fmin(top, rint(-low / scale)), false,
                      p->bits, p->scale_dtype);
}

/* acc = d_< L: tile_set_left() has been told of the groups before g. */
void block_push(struct tile *s, int n, const struct tile_group *g)
{
    uint64_t end = (g->c1 + COLS - 1) / COLS * COLS;
    struct tile_product p = { .part = { .at = tile_at_factor,
                                        .of = s->plan,
                                        .c0 = g->c0,
                                        .c1 = end,
                                        .k0 = end,
                                        .k1 = s->plan->f->padded } };

    for (int i = 0; i < n; i++)
        memset(s[i].acc, 0, (end - g->c0) * ROWS * sizeof(float));
    tile_multiply(s, n, &p);
}

/* w = w'_G.  acc is set.  Solves x R_GG = -acc; then w' = w - x. */
static void update(struct tile *s, const struct tile_group *g, float *w)
{
    uint64_t end = (g->c1 + COLS - 1) / COLS * COLS, n = end - g->c0;

    for (uint64_t i = 0; i < n * ROWS; i++)
        w[i] = -s->acc[i];
    for (uint64_t c = n; c > 0;) {
        c -= COLS;
        s->k->subtract(w + c * ROWS, w + (c + COLS) * ROWS,
                       tile_factor(s->plan, g->c0 + c, g->c0 + c + COLS),
                       n - c - COLS, COLS);
        s->k->back(w + c * ROWS, tile_factor(s->plan, g->c0 + c, g->c0 + c));
    }
    for (uint64_t i = 0; i < n * ROWS; i++)
        w[i] = s->w[g->c0 * ROWS + i] - w[i];
}

/* Quantize the group with one grid per row.  d: the weights in, w - q out;
 * loss[48] += the group's cost. */
static void solve_group(struct tile *s, const struct tile_group *g,
                        const float *scale, const float *zero, float *d,
                        uint8_t *codes, float *loss)
{
    uint64_t n = (g->c1 + COLS - 1) / COLS * COLS - g->c0;
    float acc[COLS * ROWS], dist[ROWS];
    struct solve_panel p = {
        .acc = acc, .top = s->top, .loss = loss, .dist = dist
    };

    memset(dist, 0, sizeof(dist));
    for (int i = 0; i < COLS; i++) {
        p.scale[i] = scale;
        p.zero[i] = zero;
    }
    for (uint64_t c = n; c > 0;) {
        c -= COLS;
        memcpy(acc, s->acc + c * ROWS, sizeof(acc));
        s->k->product(acc, d + (c + COLS) * ROWS,
                      tile_factor(s->plan, g->c0 + c, g->c0 + c + COLS),
                      n - c - COLS);
        p.l = tile_factor(s->plan, g->c0 + c, g->c0 + c);
        p.d = d + c * ROWS;
        p.codes = codes + c * ROWS;
        s->k->panel(&p);
    }
}

/* lo[48], hi[48]: minimum and maximum of each row's w'_G, 0 included. */
static void range(const float *w, uint64_t n, float *lo, float *hi)
{
    memset(lo, 0, ROWS * sizeof(*lo));
    memset(hi, 0, ROWS * sizeof(*hi));
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t r = 0; r < ROWS; r++) {
            float x = w[i * ROWS + r];

            lo[r] = x < lo[r] ? x : lo[r];
            hi[r] = x > hi[r] ? x : hi[r];
        }
}

static void try_all(struct tile *s, const struct tile_group *g,
                    const struct block_params *p, const float *lo,
                    const float *hi, float *cost)
{
    uint64_t end = (g->c1 + COLS - 1) / COLS * COLS;
    int n = block_candidates(p);

    for (int i = 0; i < n; i++) {
        float scale[ROWS], zero[ROWS], loss[ROWS] = { 0 };
        uint32_t meta[ROWS];

        for (int r = 0; r < ROWS; r++) {
            struct qgrid q;

            meta[r] = block_candidate(p, i, lo[r], hi[r]);
            q = quant_grid(meta[r], p->scale_dtype);
            scale[r] = q.scale;
            zero[r] = (float)q.zero;
        }
        memcpy(s->scratch, s->w + g->c0 * ROWS,
               (end - g->c0) * ROWS * sizeof(float));
        solve_group(s, g, scale, zero, s->scratch, s->trial, loss);
        for (uint64_t r = 0; r < ROWS; r++)
            if (!i || loss[r] < cost[r]) {
                cost[r] = loss[r];
                tile_set_grid(s, g->group, r, meta[r], p->scale_dtype);
            }
    }
}

void block_quantize(struct tile *s, const struct tile_group *g, float *cost)
{
    solve_group(s, g, s->scale + g->group * ROWS, s->zero + g->group * ROWS,
                s->d + g->c0 * ROWS, s->codes + g->c0 * ROWS, cost);
    tile_set_left(s, s->d, g->c0, (g->c1 + COLS - 1) / COLS * COLS, false);
}

void block_solve(struct tile *s, const struct tile_group *g,
                 const struct block_params *p, float *cost)
{
    float lo[ROWS], hi[ROWS], best[ROWS];

    update(s, g, s->scratch);
    range(s->scratch, g->c1 - g->c0, lo, hi);
    try_all(s, g, p, lo, hi, best);
    block_quantize(s, g, cost);
}
