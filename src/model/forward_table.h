/* forward_table.h - the GPU's functions of the forward pass; see
 * device/plugin.h.
 *
 * Unlike those of other stages they work on rows and weights that stay in the
 * device's memory: every pointer is the device's, unless it is called host.
 * Operations of a context happen one after the other, and a call returns when
 * they are under way; get() and those that give the host something wait for them.
 * Memory of the host may be changed when a call has returned.
 *
 * "Elements" are float (DT_F32), or bf16 in a uint16_t (DT_BF16), rounded where
 * the CPU rounds (model.h); sums are f32, in an order that depends on the sizes of
 * a call alone. */
#ifndef FORGE_FORWARD_TABLE_H
#define FORGE_FORWARD_TABLE_H

#include "common/math/dtype.h"
#include "device/plugin.h"

#define FORWARD_TABLE "forge_forward_table"
enum { FORWARD_TABLE_VERSION = 2 };

/* out[rows, n] = norms of rows of n elements of x, which lie ld apart. */
struct forward_norm {
    enum dtype dtype;
    const void *x;
    int64_t rows, n, ld;
    const float *w; /* [n] */
    float eps;
    void *out; /* may be x where ld is n */
};

/* out[rows, n] = x[rows, depth] W[n, depth]^T + b, or out += that, or
 * out = silu(x G^T + b) * (x U^T + b), where second is U. */
struct forward_product {
    enum dtype dtype; /* of x, w and out */
    int64_t rows, n, depth;
    const void *x, *w, *second;      /* weights of weight(); NULL: none */
    const float *bias, *second_bias; /* [n], or NULL */
    void *out;
    bool add;
};

/* y[rows, ld] = x[rows, depth] W[first .. first + n - 1]^T in f32. */
struct forward_sums {
    enum dtype dtype, weights; /* of x, of w */
    int64_t rows, all, depth;  /* of w: all rows */
    int64_t first, n;
    const void *x, *w; /* w: of weight() if it has x's dtype, else as it lies */
    float *y;          /* host */
    int64_t ld;
};

/* Heads of rows: head h of row r begins at element r * row + h * head. */
struct forward_heads {
    const void *p;
    int64_t row, head;
};

/* out[rows, n_heads * v_dim] = causal softmax attention of each sequence, from
 * what linears put out: heads of q and k are normalized, and their dims rotary_at
 * .. rotary_at + rotary - 1 turned (struct rotation of kernels.h). */
struct forward_attend {
    enum dtype dtype;
    int64_t rows, n_sequences;
    const int64_t *first; /* host, [n_sequences + 1]: first row of each */
    int64_t n_heads, n_kv_heads, head_dim, v_dim;
    int64_t window; /* a query at p sees keys > p - window; 0: all <= p */
    float scale, eps;
    const float *q_norm, *k_norm; /* [head_dim], or NULL */
    int64_t rotary_at, rotary;
    bool pairs;
    const float *cs;              /* [positions, rotary]: cosines, sines */
    struct forward_heads q, k, v; /* what q holds may be changed, and k.p if
                                     there is no tail */
    struct forward_heads tail;    /* the last `tail_dim` dims of every key, one
                                  for all heads; p NULL: k has all dims */
    int64_t tail_dim;
    void *out;
};

/* x[rows, n] += sigmoid(in[rows, n] w) * y[rows, n], elements. */
struct forward_gate {
    enum dtype dtype;
    int64_t rows, n;
    const void *in, *y;
    const float *w; /* [n] */
    void *x;
};

/* to = a - b - bias of rows of n elements; to may be a or b. */
struct forward_difference {
    enum dtype dtype;
    int64_t rows, n;
    const void *a, *b;
    const float *bias; /* [n], or NULL */
    void *to;
};

/* Rows of an expert's tokens: slot[i] / top_k is the token of row i. */
struct forward_rows {
    enum dtype dtype;
    int64_t rows, n, top_k;
    const int64_t *slot; /* [rows] */
};

struct forward_table {
    uint32_t version;
    /* n bytes.  spill: memory of the host that the device reads and writes
     * serves as well, where the device's own ends; *spilled says so. */
    int (*alloc)(struct cuda_context *c, void **p, size_t n, bool spill,
                 bool *spilled, struct err *e);
    void (*release)(struct cuda_context *c, void *p); /* NULL is allowed */
    /* Bytes that may be taken now: what is allowed, or half of what is free,
     * since others use the device, too. */
    int (*room)(struct cuda_context *c, size_t *n, struct err *e);
    int (*put)(struct cuda_context *c, void *to, const void *host, size_t n,
               struct err *e);
    int (*get)(struct cuda_context *c, void *host, const void *from, size_t n,
               struct err *e);
    int (*copy)(struct cuda_context *c, void *to, const void *from, size_t n,
                struct err *e);
    int (*zero)(struct cuda_context *c, void *to, size_t n, struct err *e);
    /* Weights W[rows, depth], elements, from the host. */
    int (*weight)(struct cuda_context *c, enum dtype t, int64_t rows,
                  int64_t depth, const void *host, void **w, struct err *e);

    int (*norm)(struct cuda_context *c, const struct forward_norm *a,
                struct err *e);
    int (*product)(struct cuda_context *c, const struct forward_product *a,
                   struct err *e);
    int (*sums)(struct cuda_context *c, const struct forward_sums *a,
                struct err *e);
    int (*attend)(struct cuda_context *c, const struct forward_attend *a,
                  struct err *e);
    int (*gate)(struct cuda_context *c, const struct forward_gate *a,
                struct err *e);
    /* x[n] elements += y[n]. */
    int (*add)(struct cuda_context *c, enum dtype t, void *x, const float *y,
               int64_t n, struct err *e);
    int (*subtract)(struct cuda_context *c, const struct forward_difference *d,
                    struct err *e);
    /* to[rows, n] = the rows of the tokens. */
    int (*gather)(struct cuda_context *c, const struct forward_rows *r,
                  void *to, const void *from, struct err *e);
    /* sum[token, n] += weight[slot] * out[row, n]; squares[rows]: the sum of the
     * squares of each row of out. */
    int (*scatter)(struct cuda_context *c, const struct forward_rows *r,
                   float *sum, const float *weight, const void *out,
                   double *squares, struct err *e);
    /* to[row, n] = from[row, n] + share[slot] * (reference[token, n] -
     * x[token, n]); to may be from. */
    int (*owe)(struct cuda_context *c, const struct forward_rows *r, void *to,
               const void *from, const float *share, const void *reference,
               const void *x, struct err *e);
    /* Whether n elements are neither infinite nor NaN. */
    int (*finite)(struct cuda_context *c, enum dtype t, const void *x,
                  int64_t n, bool *yes, struct err *e);
};

extern struct plugin_table forward_plugin;

/* While device_gpu() is there. */
static inline const struct forward_table *forward_functions(void)
{
    return (const struct forward_table *)forward_plugin.functions;
}

#endif
