/* hessian_table.h - the GPU's functions of this stage; see device/plugin.h.
 *
 * Hessians differ from the CPU's by the order of sums alone.  A new member of
 * struct hessian_shape: the plug-in computes with it or returns E_CONFIG. */
#ifndef FORGE_HESSIAN_TABLE_H
#define FORGE_HESSIAN_TABLE_H

#include "device/plugin.h"
#include "hessian/hessian_shape.h"

#define HESSIAN_TABLE "forge_hessian_table"
enum { HESSIAN_TABLE_VERSION = 2 };

struct cuda_hessian;
struct cuda_cross;
struct cross_shape; /* hessian/cross.h */

/* The tokens of one of several inputs of one width. */
struct cuda_tokens {
    const void *x;   /* [tokens, cols], bf16 and finite */
    uint64_t tokens; /* with none h is zero */
    float *h;        /* out: packed lower triangle, see hessian.h */
};

struct hessian_table {
    uint32_t version;
    /* As hessian_open(), _add() and _finish(), for bf16 tokens that are
     * finite: the caller has looked at them all on their way. */
    int (*open)(struct cuda_hessian **h, struct cuda_context *c,
                const struct hessian_shape *s, struct err *e);
    int (*add)(struct cuda_hessian *h, const void *x, uint64_t tokens,
               struct err *e);
    int (*finish)(struct cuda_hessian *h, float *out, struct err *e);
    void (*close)(struct cuda_hessian *h); /* NULL is allowed */
    /* Sums of y xT over tokens, of shape.dtype DT_BF16 and finite.  finish():
     * out[rows, cols] = factor times the sum. */
    int (*cross_open)(struct cuda_cross **x, struct cuda_context *c,
                      const struct cross_shape *s, struct err *e);
    int (*cross_add)(struct cuda_cross *x, const void *y, const void *from,
                     uint64_t tokens, struct err *e);
    int (*cross_finish)(struct cuda_cross *x, double factor, float *out,
                        struct err *e);
    void (*cross_close)(struct cuda_cross *x); /* NULL is allowed */
    /* The Hessians of n inputs, such as a layer's experts, whatever their
     * numbers of tokens, in one launch; when memory ends, in several.
     * E_CONFIG: cols is no multiple of 8. */
    int (*batch)(struct cuda_context *c, uint64_t cols,
                 const struct cuda_tokens *t, int n, struct err *e);
};

extern struct plugin_table hessian_plugin;

/* While device_gpu() is there. */
static inline const struct hessian_table *hessian_functions(void)
{
    return (const struct hessian_table *)hessian_plugin.functions;
}

#endif
