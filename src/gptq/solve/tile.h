/* tile.h - SOLVE_ROWS rows of a weight matrix while they are solved: target w,
 * codes, grids, and the displacement d = w - q.
 *
 * Transposed: the 48 values of one input are contiguous (solve_kernel.h),
 * inputs in the order of the factor's columns.  The inputs of a group are
 * adjacent columns, and every group begins at a multiple of FACTOR_PANEL
 * (tile_fits()). */
#ifndef FORGE_TILE_H
#define FORGE_TILE_H

#include "common/math/dtype.h"
#include "common/math/lanes.h"
#include "gptq/solve/factor.h"
#include "gptq/solve/solve_kernel.h"
#include "gptq/solve/split.h"

enum { TILE_BATCH = 6 /* tiles that are worked on together, at most */ };

/* A group: columns c0..c1-1 of the factor. */
struct tile_group {
    uint64_t c0, c1;
    uint64_t group; /* its number, groups as stored */
};

/* What all tiles of a matrix share, read-only: an order of inputs, the factor
 * of H + lambda I in that order, and H. */
struct tile_plan {
    const struct factor *f;
    /* [padded/8][padded][8]: panel p holds the columns 8p..8p+7 of H in the
     * factor's order, row by row; zero in the padding.  NULL: the factor and H
     * are on the GPU */
    float *h;
    struct tile_group *group; /* [groups], in the order of quantization */
    uint64_t groups;
    uint64_t widest; /* columns of the widest group */
    /* Products are those of split.h: the parts of the factor and of H between
     * groups have been split, those inside a group are f32. */
    bool split;
};

struct tile {
    const struct tile_plan *plan;
    const struct solve_kernels *k;
    float *w;            /* [padded][48]: the target */
    float *d;            /* [padded][48]: w - q; not yet quantized: w */
    uint8_t *codes;      /* [padded][48] */
    float *scale, *zero; /* [groups][48], groups as stored */
    float top;           /* the largest code, set by tile_load() */
    uint32_t *meta;      /* [groups][48]: qmeta4 of scale and zero */
    float *acc;          /* [widest][48]: sums for the group in work */
    float *scratch;      /* 3 times [widest][48] */
    uint8_t *trial;      /* [widest][48]: codes of candidates */
    /* plan->split: the left side of products (tile_set_left), and split_add()'s
     * working memory. */
    uint16_t *left;
    float *work;
};

/* Whether groups of this many inputs can all begin at multiples of
 * FACTOR_PANEL. */
static inline bool tile_fits(uint64_t group)
{
    return group % FACTOR_PANEL == 0;
}
/* f: a factor in ORDER_GROUP or ORDER_INSIDE, built with p of h by factor_build();
 * its panels are split where the plan's products are.  f must outlive the plan; h
 * is copied.  E_TEMP. */
MUST_CHECK int tile_plan_open(struct tile_plan *plan, struct factor *f,
                              const struct factor_params *p, const float *h,
                              struct err *e);
void tile_plan_close(struct tile_plan *plan); /* a zeroed one is allowed */

/* How many tiles of the plan a thread should work on together: up to TILE_BATCH,
 * within 24 MiB. */
int tile_batch(const struct tile_plan *plan);
/* Memory for one tile of the plan at a time, to be loaded again and again;
 * tile_close() it.  E_TEMP. */
MUST_CHECK int tile_open(struct tile *s, const struct tile_plan *plan,
                         struct err *e);
void tile_close(struct tile *s);
/* Load the targets w = d = x[rows][cols], inputs as stored, rows <= SOLVE_ROWS,
 * to be quantized to codes of 8 bits, else 4.  Missing rows, dead inputs and the
 * padding are zero. */
void tile_load(struct tile *s, const float *x, uint64_t rows, uint64_t cols,
               int bits);
/* Undo quantization: d = w. */
void tile_restart(struct tile *s);
/* Set the grid of row r, group number `group` as stored. */
void tile_set_grid(struct tile *s, uint64_t group, uint64_t r, uint32_t meta,
                   enum dtype scale_dtype);
/* code[cols] = the codes of row r, one a byte, inputs as stored. */
void tile_codes(const struct tile *s, uint64_t r, uint8_t *code);
/* Round all targets to nearest on the grids that are set: codes and d. */
void tile_round(struct tile *s);
/* loss[48] = d H dᵀ of each row, H undamped. */
void tile_loss(struct tile *s, double *loss);

/* sum[r] += sum over i of x[i][r] y[i][r], x and y [8][48]; sum overlaps
 * neither. */
void tile_products(float *sum, const float *x, const float *y);

/* Address of row r of column c's panel, of L and of H: 8 floats a row, where they
 * are not split.  c: the panel's first column; r >= c in L. */
split_at tile_at_factor, tile_at_hessian; /* of a struct tile_plan */
static inline const float *tile_factor(const struct tile_plan *p, uint64_t c,
                                       uint64_t r)
{
    return tile_at_factor(p, c, r);
}
static inline const float *tile_hessian(const struct tile_plan *p, uint64_t c,
                                        uint64_t r)
{
    return tile_at_hessian(p, c, r);
}

/* sum[c - c0][r] += sum over k in k0..k1-1 of x[k][r] P[k][c], or -=, for columns
 * c0..c1-1 of a matrix P in panels; all four are multiples of 8. */
struct tile_product {
    struct split_part part; /* of P */
    bool inside;            /* of one group, so P is f32 in any plan */
    bool of_target;         /* x is w; otherwise d */
    bool in_place;          /* sum is d from column c0 on; otherwise acc */
    bool minus;             /* -= */
};
/* The product for each of n tiles of one plan, in pieces of rows k: a piece of P
 * stays in the caches for all tiles, one of x for all columns.  With plan->split
 * and outside of a group x is not read: tile_set_left() has copied it. */
void tile_multiply(struct tile *s, int n, const struct tile_product *p);
/* To be called when rows k0..k1-1 of x, which is s->w or s->d, have changed, before
 * products read them; minus: products that are subtracted. */
void tile_set_left(struct tile *s, const float *x, uint64_t k0, uint64_t k1,
                   bool minus);

#endif
