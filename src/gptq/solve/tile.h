/* tile.h - SOLVE_ROWS rows of a weight at work: their target, their codes and
 * grids, and what is left between target and codes.
 *
 * Values of one input lie together (see solve_kernel.h), inputs in the order
 * of a factor's columns; those of a group are neighbours, and every group
 * begins at a multiple of FACTOR_PANEL (tile_fits). */
#ifndef FORGE_TILE_H
#define FORGE_TILE_H

#include "common/math/dtype.h"
#include "common/math/lanes.h"
#include "gptq/solve/factor.h"
#include "gptq/solve/factor.h"
#include "gptq/solve/solve_kernel.h"

/* Inputs of one group: columns c0..c1 of the factor. */
struct tile_group {
    uint64_t c0, c1;
    uint64_t group; /* as stored */
};

/* What all tiles of a matrix share: an order, the factor of H + lambda I in
 * it, and H itself.  Read only while tiles are at work. */
struct tile_plan {
    const struct factor *f;
    /* [padded/8][padded][8]: panel p holds the columns 8p..8p+7 of H in the
     * factor's order, row by row; zero in the padding.  NULL: the factor is the
     * GPU's, and H with it */
    float *h;
    struct tile_group *group; /* [groups], in the order of quantization */
    uint64_t groups;
    uint64_t widest; /* columns of the widest group */
};

struct tile {
    const struct tile_plan *plan;
    const struct solve_kernels *k;
    float *w;            /* [padded][48]: the target */
    float *d;            /* [padded][48]: w - q */
    uint8_t *codes;      /* [padded][48] */
    float *scale, *zero; /* [groups][48], groups as stored */
    uint32_t *meta;      /* [groups][48] */
    float *acc;          /* [widest][48] */
    float *scratch;      /* 3 times [widest][48] */
    uint8_t *trial;      /* [widest][48]: codes that are thrown away */
};

/* Whether groups of this size can begin at multiples of FACTOR_PANEL. */
static inline bool tile_fits(uint64_t group)
{
    return group % FACTOR_PANEL == 0;
}
/* f: of ORDER_GROUP or ORDER_INSIDE with p->group; h: what it was made of.
 * The plan borrows f and h is not needed any more.  E_TEMP. */
MUST_CHECK int tile_plan_open(struct tile_plan *plan, const struct factor *f,
                              const struct factor_params *p, const float *h,
                              struct err *e);
void tile_plan_close(struct tile_plan *plan); /* a zeroed one is allowed */

/* One allocation for tiles of a plan; tile_close() frees it. */
MUST_CHECK int tile_open(struct tile *s, const struct tile_plan *plan,
                         struct err *e);
void tile_close(struct tile *s);
/* Targets of up to SOLVE_ROWS rows x[rows][cols], inputs as stored; rows that
 * are missing, dead inputs and the padding are zero. */
void tile_load(struct tile *s, const float *x, uint64_t rows, uint64_t cols);
/* Nothing is quantized again: d = w. */
void tile_restart(struct tile *s);
/* Grid of a group, as stored, of row r. */
void tile_set_grid(struct tile *s, uint64_t group, uint64_t r, uint32_t meta,
                   enum dtype scale_dtype);
/* Codes of row r: code[cols], inputs as stored. */
void tile_codes(const struct tile *s, uint64_t r, uint8_t *code);
/* Round all targets to nearest on the grids that are set. */
void tile_round(struct tile *s);
/* loss[48] = d H dᵀ, without damping. */
void tile_loss(struct tile *s, double *loss);

/* sum[48] += what each row's products x[8][48] y[8][48] add up to; no overlap. */
void tile_products(float *sum, const float *x, const float *y);

/* Column c of panels of either matrix, from row r on (r >= 8 (c / 8)). */
static inline const float *tile_factor(const struct tile_plan *p, uint64_t c,
                                       uint64_t r)
{
    return p->f->panel + factor_panel_at(p->f->padded, c / FACTOR_PANEL) +
           (r - c) * FACTOR_PANEL;
}
static inline const float *tile_hessian(const struct tile_plan *p, uint64_t c,
                                        uint64_t r)
{
    return p->h + (c / FACTOR_PANEL * p->f->padded + r) * FACTOR_PANEL;
}

/* Columns c0..c1, rows k0..k1 of a matrix; at() says where column c's panel has
 * row r.  All of them begin and end with panels. */
typedef const float *tile_at(const void *of, uint64_t c, uint64_t r);
struct tile_part {
    tile_at *at;
    const void *of;
    uint64_t c0, c1, k0, k1;
};
tile_at tile_at_factor, tile_at_hessian; /* of a struct tile_plan */
/* sum[c1-c0][48] += x[..k1][48] times the part, or -=.  A piece of x stays in the
 * first-level cache while all columns pass. */
void tile_add(const struct tile *s, float *sum, const float *x,
              const struct tile_part *p);
void tile_subtract(const struct tile *s, float *sum, const float *x,
                   const struct tile_part *p);

#endif
