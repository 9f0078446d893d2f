/* units.h - the linears of a model as units that have one grid, what each unit costs
 * on each grid, and the rules of forge-grid that say the choice.
 *
 * A unit is what runtimes load as one matrix (arch/choice.h), or one linear.  With g
 * the gradients of log p with respect to a linear's output, F = mean(2 g g^T) and H =
 * mean(2 x x^T), an error E of its weights costs
 *
 *     KL ~ 1/2 mean((g^T E x)^2) ~ 1/8 sum over i, j of F_ii H_jj E_ij^2,
 *
 * of which GPTQ leaves F_ii R_jj^2 E_ij^2 (gptq/bits/errors.h).
 *
 * forge-gradient knows F of o, down, k, v and kv_a.  What the others put out is
 * multiplied: queries by keys, gate's and up's outputs by each other, before down.  A
 * relative error of such a factor costs what the same error of the product would:
 *
 *     KL ~ error / power * fisher.power / 8   of k (kv_a), of down.
 *
 * An expert's costs count by its share of the tokens and by (scale / top_k)^2, the
 * square of a router's weight.  Without F: error / power, the same for all. */
#ifndef FORGE_BITS_UNITS_H
#define FORGE_BITS_UNITS_H

#include "arch/config.h"
#include "gptq/bits/budget.h"

struct bits_module {
    struct linear l;
    struct bits_errors errors;
    bool known;   /* F */
    double share; /* an expert's part of the tokens; 1 */
    bool chosen;  /* is to have a grid; else it stands for others alone */
    size_t unit;  /* if chosen */
};

struct bits_units {
    const struct model_config *config;
    struct bits_grids grids; /* the first is the default */
    bool fisher;             /* F is there */
    struct bits_module *module;
    size_t modules, n;
    struct bits_unit *unit; /* [n] */
    size_t *last;           /* [n]: index of a module of each unit */
    double weights;         /* number, of all that are chosen */
};

/* Zero-initialise, and set config, grids and fisher; bits_units_release() it. */
/* Append a linear that was measured; of one that is not chosen, power is enough.
 * E_TEMP. */
MUST_CHECK int bits_units_add(struct bits_units *u, const struct bits_module *m,
                              struct err *e);
/* Bits and costs of each unit.  E_DATA: there are no gradients for a linear. */
MUST_CHECK int bits_units_cost(struct bits_units *u, struct err *e);
/* The rules of those units whose chosen grid is not the default, a line each, sorted:
 * "model.layers.1[024].mlp.down_proj=64,8bit".  free() *text.  E_TEMP. */
MUST_CHECK int bits_units_rules(const struct bits_units *u, char **text,
                                struct err *e);
/* Sums over all units of their chosen grids, or with `grid` >= 0 of that. */
void bits_units_sum(const struct bits_units *u, int grid, double *bits,
                    double *cost);
void bits_units_release(struct bits_units *u);

#endif
