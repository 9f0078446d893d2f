/* tune_table.h - the function table of forge-tune on a GPU (device/plugin.h): weights
 * whose codes are tuned.  Pointers are device memory. */
#ifndef FORGE_TUNE_TABLE_H
#define FORGE_TUNE_TABLE_H

#include "common/math/dtype.h"
#include "device/plugin.h"

#define TUNE_TABLE "forge_tune_table"
enum { TUNE_TABLE_VERSION = 2 };

/* Adam (Kingma, Ba 2015); epsilon is far below gradients, which are smaller the more
 * weights a model has. */
#define TUNE_BETA1   0.9
#define TUNE_BETA2   0.98
#define TUNE_EPSILON 1e-12F

/* Numbers v[rows, cols] behind the codes of a linear (tune/tuned.h), Adam's moments, the
 * gradient g with respect to the weights, qmeta4 [rows, groups], and elements w[rows,
 * cols] of the weights, which forward_table.product() reads as they are. */
struct tune_module {
    int64_t rows, cols, group;
    enum dtype scale_dtype, dtype; /* of scales, of w */
    const uint32_t *meta;
    float *v, *first, *second;
    const float *g;
    void *w;
};

/* The table.  Functions return as device/plugin.h says. */
struct tune_table {
    uint32_t version;
    /* w = the values of the codes nearest to v. */
    int (*values)(struct cuda_context *c, const struct tune_module *m,
                  struct err *e);
    /* A step of Adam, and values(), of n linears, the host's list, whose w are of the same
     * type: rate: in steps of the grid; back: 1 - beta^step of both moments. */
    int (*step)(struct cuda_context *c, const struct tune_module *m, int64_t n,
                float rate, const float back[2], struct err *e);
};

#endif
