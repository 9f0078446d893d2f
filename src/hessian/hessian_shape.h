/* hessian_shape.h - size, layout and type of a Hessian, for CPU and GPU. */
#ifndef FORGE_HESSIAN_SHAPE_H
#define FORGE_HESSIAN_SHAPE_H

#include "common/math/dtype.h"

struct hessian_shape {
    uint64_t cols;    /* length of x: H is [cols, cols] */
    uint64_t block;   /* size of diagonal blocks; 0: the whole matrix, packed */
    enum dtype dtype; /* of x in the products: DT_BF16 or DT_F32 */
};

struct ledger;        /* device/ledger.h */
struct token_weights; /* hessian/token_weights.h */

/* What forge-hessian makes of its inputs: hessian_set.h. */
struct hessian_set_params {
    enum dtype dtype;    /* of the products; DT_NONE: BF16 for BF16 activations,
                            else F32 */
    uint64_t block;      /* size of diagonal blocks; 0: the whole matrix */
    uint64_t max_tokens; /* per name; 0: all */
    uint64_t skip;       /* first tokens of a sequence that are left out, but of
                          * experts, whose rows are gathered */
    double blend;        /* k of blend.h; 0: none */
    int n_inputs;        /* input streams, for merging */
    /* keep what experts' Hessians are blended with, alone: nothing is written */
    bool prior;
    bool partial;  /* experts' activations are left to who merges the parts */
    int64_t parts; /* sum every parts-th sequence apart, and merge, so that the
                    * result is that of as many partial runs; 0, 1: all at
                    * once.  Experts' inputs have no parts */
    /* Write the moments of linears that are no experts' in as many frames as `pieces`, with
     * name_rows of their numbers or rows in their names; piece >= 0: merge these numbers
     * alone, of these linears alone.  pieces 0, 1: whole. */
    int64_t piece, pieces;
    int64_t share, shares; /* emit only what this share of the experts needs
                              (hessian_set_wants()); shares 0: all */
    const char
        *rows; /* of linears that are no experts': emit only what these need,
                       * for these (hessian_rows.h); NULL: all */
    struct token_weights *weights; /* of tokens, but of experts; NULL: 1 */
    struct ledger *ledger; /* of loans that come in; NULL: there are none */
};

#endif
