/* hessian_table.h - the functions of the GPU plug-in for forge-hessian; see
 * device/plugin.h.
 *
 * Hessians differ from the CPU's only by the order of floating-point sums.  The
 * plug-in must implement a new member of struct hessian_shape, or return
 * E_CONFIG. */
#ifndef FORGE_HESSIAN_TABLE_H
#define FORGE_HESSIAN_TABLE_H

#include "common/math/dtype.h"
#include "device/plugin.h"
#include "hessian/hessian_shape.h"

#define HESSIAN_TABLE "forge_hessian_table"
enum { HESSIAN_TABLE_VERSION = 5 };

struct cuda_hessian;
struct cuda_cross;
struct cross_shape; /* hessian/cross.h */

/* One input of batch(). */
struct cuda_tokens {
    const void *x;         /* [tokens, cols], bf16 and finite */
    uint64_t tokens;       /* 0: h becomes zero */
    float *h;              /* out: packed lower triangle, see hessian.h */
    bool x_there, h_there; /* x, h are the device's */
};

struct hessian_table {
    uint32_t version;
    /* As hessian_open(), hessian_add() and hessian_finish(), for bf16 tokens
     * whose elements the caller has found finite.  there: x or out is
     * the device's, as other processes lend it; it has been read when the context
     * has settled.  root, of an x that is the device's: [tokens], the host's, what its
     * rows are multiplied by, rounded to bf16 as token_weights_apply() does; NULL: they
     * are added as they are.  open(): E_CONFIG: not this shape. */
    int (*open)(struct cuda_hessian **h, struct cuda_context *c,
                const struct hessian_shape *s, struct err *e);
    int (*add)(struct cuda_hessian *h, const void *x, uint64_t tokens,
               bool there, const float *root, struct err *e);
    int (*finish)(struct cuda_hessian *h, float *out, bool there,
                  struct err *e);
    void (*close)(struct cuda_hessian *h); /* NULL is allowed */
    /* Cross moments (cross.h) of y[tokens, rows] and x (`from`)[tokens, cols],
     * both bf16 and finite; root is of the rows of both.  cross_finish():
     * out[rows, cols] = factor * sum of y xT. */
    int (*cross_open)(struct cuda_cross **x, struct cuda_context *c,
                      const struct cross_shape *s, struct err *e);
    int (*cross_add)(struct cuda_cross *x, const void *y, const void *from,
                     uint64_t tokens, bool there, const float *root,
                     struct err *e);
    int (*cross_finish)(struct cuda_cross *x, double factor, float *out,
                        bool there, struct err *e);
    void (*cross_close)(struct cuda_cross *x); /* NULL is allowed */
    /* The Hessians of n inputs of the same width (a layer's experts), each with
     * its own number of tokens, in one launch, or in several when device memory
     * is short.  E_CONFIG: cols is no multiple of 8. */
    int (*batch)(struct cuda_context *c, uint64_t cols,
                 const struct cuda_tokens *t, int n, struct err *e);
    /* The first of n bf16 or f32 numbers of the device that is not finite, or
     * n. */
    int (*finite)(struct cuda_context *c, enum dtype t, const void *x,
                  uint64_t n, uint64_t *first, struct err *e);
    /* Of a packed triangle of the device: d[cols]. */
    int (*diagonal)(struct cuda_context *c, const float *h, uint64_t cols,
                    float *d, struct err *e);
    /* Blending (blend.h) of a packed triangle h of the device, to the CPU's bits:
     * h = own h + (1 - own) prior; prior NULL: h = own h, then the diagonal += add.
     * prior: the device's. */
    int (*blend)(struct cuda_context *c, float *h, const float *prior,
                 uint64_t cols, double own, float add, struct err *e);
    /* Copy n bytes of the host's to the device. */
    int (*put)(struct cuda_context *c, void *to, const void *from, size_t n,
               struct err *e);
};

extern struct plugin_table hessian_plugin;

/* Valid while device_gpu() is not NULL. */
static inline const struct hessian_table *hessian_functions(void)
{
    return (const struct hessian_table *)hessian_plugin.functions;
}

#endif
