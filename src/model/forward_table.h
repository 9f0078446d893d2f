/* forward_table.h - the function table of the forward pass on a GPU
 * (device/plugin.h).
 *
 * Unlike other tables, it works on rows and weights that stay in device
 * memory: every pointer is device memory unless it is called the host's.
 * Operations of a context are executed in order and asynchronously: a call
 * returns when the operation is queued; get() and functions with results for
 * the host wait.  The caller may reuse host memory when a call has returned.
 *
 * "Elements" are float (DT_F32), or bf16 in a uint16_t (DT_BF16), rounded
 * where the CPU rounds (model.h).  Sums are f32, in an order that depends only
 * on the sizes of a call. */
#ifndef FORGE_FORWARD_TABLE_H
#define FORGE_FORWARD_TABLE_H

#include "arch/config.h"
#include "common/math/fp8.h"
#include "device/plugin.h"
#include "forge_w4a16.h"

#define FORWARD_TABLE "forge_forward_table"
enum { FORWARD_TABLE_VERSION = 11 };

/* RMS norm: out[rows, n] = w * x / rms(x) for rows of n elements, leading
 * dimension ld. */
struct forward_norm {
    enum dtype dtype;
    const void *x;
    int64_t rows, n, ld;
    const float *w; /* [n] */
    float eps;
    void *out; /* may be x where ld is n */
};

/* act(g) * u, or of ACT_CLAMPED what enum activation says. */
struct forward_gating {
    enum activation act;
    float alpha, limit; /* ACT_CLAMPED's */
};

/* out[rows, n] = x W^T + b; add: out += x W^T + b; with `second` U: out =
 * act(x W^T + b) * (x U^T + b2).  x [rows, depth], W and U [n, depth]. */
struct forward_product {
    enum dtype dtype; /* of x, w and out */
    int64_t rows, n, depth;
    const void *x, *w, *second; /* w, second: made by weight(); second
                                      * may be NULL */
    const struct cuda_w4 *codes, *second_codes; /* made by linear(), instead of
                                                 * w and second; or NULL */
    const float *bias, *second_bias;            /* [n], or NULL */
    void *out;
    bool add;
    struct forward_gating gating; /* with second */
};

/* out[rows, n] = act(g) * u, elements, of gate and up that are there; ldg, ldu:
 * elements of their rows. */
struct forward_pair {
    enum dtype dtype;
    int64_t rows, n;
    const void *g, *u;
    int64_t ldg, ldu;
    struct forward_gating gating;
    void *out;
};

struct cuda_w4; /* a 4-bit linear of the device */

/* Codes of W[rows, depth] with a grid for each `group` inputs of a row
 * (common/math/quant.h); the host's. */
struct forward_codes {
    enum dtype dtype, scale_dtype; /* of W, of the scales */
    int64_t rows, depth;
    uint64_t group;
    const void *nibbles;  /* [rows, depth / 2] */
    const uint32_t *meta; /* [rows, groups] */
};

/* y[rows, n] = x[rows, depth] W[first..first+n-1]^T in f32, for the host. */
struct forward_sums {
    enum dtype dtype, weights; /* of x, of w */
    int64_t rows, all, depth;  /* all: rows of W */
    int64_t first, n;
    const void *x, *w; /* w: made by weight() if weights == dtype, else
                        * row-major */
    float *y;          /* the host's, leading dimension ld */
    int64_t ld;
};

/* A token for each row of `of`, whose y is not used, drawn from softmax(z): z = scale y,
 * or with a cap cap tanh(scale y / cap), without the banned tokens.  The host's: uniform
 * [rows], in 0..1, banned, and ids [rows], the first token where the sum of the
 * probabilities is larger than uniform; -1: a logit is not finite. */
struct forward_draw {
    struct forward_sums of;
    float scale, cap;
    const double *uniform;
    const int32_t *banned;
    int64_t bans;
    int32_t *ids;
};

/* The experts of `rows` tokens, by the logits x W^T + shift in f32, as
 * route_token() chooses them: equal logits give the CPU's bits. */
struct forward_route {
    enum dtype dtype; /* of x */
    enum router_kind kind;
    struct moe moe; /* n_experts: rows of W */
    int64_t rows, depth;
    const void *x;
    const float *w; /* [n_experts, depth], row-major */
    const float *shift,
        *bias; /* [n_experts], or NULL; bias: the correction's */
    /* As in struct routing, the host's.  The first expert of a token with a
     * logit that is not finite is -1, and the rest is not written. */
    int32_t *experts;        /* [rows, top_k] */
    float *weights, *scores; /* [rows, top_k] */
    double *mass; /* [n_experts], += the scores of all these tokens in
                              * their order; NULL: not wanted */
};

/* Heads in a matrix: head h of row r begins at element r * row + h * head. */
struct forward_heads {
    const void *p;
    int64_t row, head;
};

/* Causal softmax attention of each sequence: out[rows, n_heads * v_dim], from
 * the outputs of the linears q, k, v.  Heads of q and k are normalized
 * (q_norm, k_norm), and RoPE rotates their dims rotary_at..rotary_at+rotary-1
 * (struct rotation in kernels.h). */
struct forward_attend {
    enum dtype dtype;
    int64_t rows, n_sequences;
    const int64_t *first; /* the host's, [n_sequences + 1]: first row of each
                           * sequence */
    int64_t past; /* sequences go on behind so many rows of k, v and tail, which
                   * earlier calls have rotated; q begins there */
    int64_t
        each; /* rows of k, v and tail that a sequence has, from i * each on,
                   * turned; 0: they are the batch's, and only one goes on */
    int64_t n_heads, n_kv_heads, head_dim, v_dim;
    int64_t window;      /* the query at position p sees keys p - window + 1..p;
                     * 0: 0..p */
    int64_t chunk;       /* it sees keys p - p % chunk..p; 0: by window */
    float scale, eps;    /* scale: of scores; eps: of the norms */
    float cap;           /* scores s become cap tanh(s / cap); 0: they stay */
    const float *sinks;  /* [n_heads]: a score without a value; NULL: none */
    const float *growth; /* [positions]: queries, which then do not turn (rotary
                          * is 0), are multiplied by it; NULL: they are not */
    const float *q_norm, *k_norm; /* [head_dim], or NULL */
    int64_t rotary_at, rotary;
    bool pairs;      /* RoPE rotates (2i, 2i+1) instead of (i, i + rotary/2) */
    const float *cs; /* [positions, rotary]: cosines, then sines; not read
                      * where rotary is 0 */
    bool
        turned; /* keys, or their tail, are normalized and rotated already; k_norm
                  * is NULL */
    struct forward_heads q, k, v; /* q.p may be overwritten, and k.p if
                                   * tail.p is NULL and not turned */
    struct forward_heads tail;    /* latent attention: the last tail_dim dims
                                   * of keys, shared by all heads; p NULL: k
                                   * has all dims */
    int64_t tail_dim;
    void *out;
};

/* x[rows, n] += factor * y[rows, n], elements; the product is rounded first; ld:
 * elements of a row of x. */
struct forward_add_times {
    enum dtype dtype;
    float factor;
    int64_t rows, n, ld;
    void *x;
    const void *y;
};

/* Residual streams of rows by the formulas of altup.h.  A row of x has H elements of
 * the stream at hand, then n streams of H. */
struct forward_streams {
    enum dtype dtype;
    int64_t rows, width, ld; /* width: H; ld: elements of a row */
    int64_t n, active;       /* n: ALTUP_STREAMS at most */
    double eps;
    void *x;
    const float
        *router;     /* R of altup.h with the norm's weights, over H: [n, H] */
    const float *by; /* predict(): P [n n, n]; correct(): C [n, n] */
    const float *scale; /* correct(): s [H], or NULL */
    const void *a, *b;  /* join(): [rows, H], elements */
    void *out; /* predict(): [rows, H], or NULL; correct(): [rows, H] */
};

/* out[rows, heads * dim] *= sigmoid(g), elements: the output of attention by the
 * gates of its heads, which have dim numbers each. */
struct forward_gate_heads {
    enum dtype dtype;
    int64_t rows, heads, dim;
    struct forward_heads g;
    void *out;
};

/* Linear attention of each sequence behind its linears: convolution, states, norm
 * and gate, by the formulas of delta.h, and of mamba.h if form is DELTA_MAMBA:
 * out[rows, v_heads * v_dim], elements. */
struct forward_recur {
    enum dtype dtype;
    enum delta_form form;
    struct delta of; /* sizes; limits of a step */
    double eps;      /* of the norm */
    int64_t rows, n_sequences;
    const int64_t *first; /* the host's, [n_sequences + 1]: first row of each
                           * sequence */
    /* By key heads (groups), whose part of v, z, a and b is that of all their value
     * heads.  Of DELTA_MAMBA k is B, q is C and v is x: in a row x, B, C without
     * gaps. */
    struct forward_heads q, k, v, z;
    struct forward_heads a; /* of a value head one number, of DELTA_CHANNELS
                             * k_dim; of DELTA_MAMBA its step */
    struct forward_heads b; /* of a value head one number; not of DELTA_MAMBA */
    /* The convolution's channels are those of q, k, v; of DELTA_MAMBA of x, B, C. */
    const float *filter, *bias; /* [channels, kernel]; [channels], or NULL */
    const float *decay, *shift; /* A_log [v_heads]; dt_bias, as many as a */
    const float *skip;          /* D [v_heads], of DELTA_MAMBA */
    const float *norm;          /* [v_dim]; of DELTA_MAMBA [v_heads * v_dim] */
    /* A single sequence goes on from what these have, and leaves there what goes on:
     * states [v_heads, k_dim, v_dim], and the inputs of the last tokens, old [kernel -
     * 1, channels]; NULL: sequences begin with zeros. */
    float *states, *old;
    void *out;
};

/* x[rows, n] += sigmoid(in[rows, n] w) * y[rows, n], elements; w [n]. */
struct forward_gate {
    enum dtype dtype;
    int64_t rows, n;
    const void *in, *y;
    const float *w;
    void *x;
};

/* to[rows, n] = a - b - bias, elements; to may be a or b. */
struct forward_difference {
    enum dtype dtype;
    int64_t rows, n;
    const void *a, *b;
    const float *bias; /* [n], or NULL */
    void *to;
};

/* The rows of an expert's tokens: row i belongs to choice slot[i] of the
 * routing, so to token slot[i] / top_k. */
struct forward_rows {
    enum dtype dtype;
    int64_t rows, n, top_k;
    const int64_t *slot; /* [rows] */
    const float *by;     /* [choices]: gather() multiplies rows by it; NULL: it
                          * copies */
};

/* A layer's experts, whose weights are all there, bf16: rows first[i]..first[i + 1]-1 are
 * those of expert i.  h and width are multiples of 8. */
struct forward_experts {
    int64_t experts, tokens, top_k, h, width;
    const int64_t *first; /* the host's, [experts + 1] */
    const int64_t *slot;  /* [rows]: as in struct forward_rows */
    const int64_t *row;   /* [tokens * top_k]: the row of each choice, or -1 */
    /* Of gate and up [width, h], and of down [h, width], made by weight(); the host's
     * lists [experts]. */
    const void *const *w[3];
    struct forward_gating gating;
    const void *in;      /* [tokens, h], elements */
    const float *by;     /* as in struct forward_rows */
    const float *weight; /* [tokens * top_k] */
    /* [tokens, h]: += weight * output, in the order of the experts. */
    float *sum;
};

/* The table.  Functions that return int: see device/plugin.h. */
struct forward_table {
    uint32_t version;
    /* Allocate n bytes.  spill: host memory that the device can access will do
     * if its own is full; *spilled tells. */
    int (*alloc)(struct cuda_context *c, void **p, size_t n, bool spill,
                 bool *spilled, struct err *e);
    void (*release)(struct cuda_context *c, void *p); /* NULL is allowed */
    /* Bytes that may be allocated now: up to --gpu-memory, else half of what
     * is free, since other programs use the device, too. */
    int (*room)(struct cuda_context *c, size_t *n, struct err *e);
    /* Copy n bytes: from the host, to the host, within the device. */
    int (*put)(struct cuda_context *c, void *to, const void *host, size_t n,
               struct err *e);
    int (*get)(struct cuda_context *c, void *host, const void *from, size_t n,
               struct err *e);
    int (*copy)(struct cuda_context *c, void *to, const void *from, size_t n,
                struct err *e);
    /* Of `rows` pieces of n bytes that are to_row and from_row bytes apart. */
    int (*copy_rows)(struct cuda_context *c, void *to, size_t to_row,
                     const void *from, size_t from_row, size_t n, int64_t rows,
                     struct err *e);
    int (*zero)(struct cuda_context *c, void *to, size_t n, struct err *e);
    /* Copy weights W[rows, depth], elements, from the host in the form that
     * product() and sums() read. */
    int (*weight)(struct cuda_context *c, enum dtype t, int64_t rows,
                  int64_t depth, const void *host, void **w, struct err *e);
    /* The same of what codes stand for, to the CPU's bits.  E_CONFIG: depth is no
     * multiple of 8. */
    int (*codes)(struct cuda_context *c, const struct forward_codes *a,
                 void **w, struct err *e);

    /* The same of 8-bit floats, the host's: the bf16 that fp8_to_bf16() makes. */
    int (*fp8)(struct cuda_context *c, const struct fp8_matrix *m, void **w,
               struct err *e);

    /* A 4-bit linear in 4 bits, from the host's tensors of any layout. */
    int (*linear)(struct cuda_context *c, const struct forge_w4a16_linear *l,
                  struct cuda_w4 **w, struct err *e);
    void (*drop)(struct cuda_context *c, struct cuda_w4 *w); /* or NULL */

    int (*norm)(struct cuda_context *c, const struct forward_norm *a,
                struct err *e);
    int (*product)(struct cuda_context *c, const struct forward_product *a,
                   struct err *e);
    int (*sums)(struct cuda_context *c, const struct forward_sums *a,
                struct err *e);
    int (*draw)(struct cuda_context *c, const struct forward_draw *a,
                struct err *e);
    int (*route)(struct cuda_context *c, const struct forward_route *a,
                 struct err *e);
    int (*attend)(struct cuda_context *c, const struct forward_attend *a,
                  struct err *e);
    /* What attend() does to keys in front of attention, in place: norm and RoPE of
     * a->k, or of a->tail, which have the rows of the batch alone.  Nothing else of a is
     * read but the batch and the sizes. */
    int (*turn)(struct cuda_context *c, const struct forward_attend *a,
                struct err *e);
    int (*gate_heads)(struct cuda_context *c,
                      const struct forward_gate_heads *a, struct err *e);
    int (*recur)(struct cuda_context *c, const struct forward_recur *a,
                 struct err *e);
    int (*gate)(struct cuda_context *c, const struct forward_gate *a,
                struct err *e);
    int (*pair)(struct cuda_context *c, const struct forward_pair *a,
                struct err *e);
    /* x[n] += y[n], x elements. */
    int (*add)(struct cuda_context *c, enum dtype t, void *x, const float *y,
               int64_t n, struct err *e);
    int (*add_times)(struct cuda_context *c, const struct forward_add_times *a,
                     struct err *e);
    /* out = p[active], and the streams stay; out NULL: streams = p, and the stream
     * at hand = p[active]. */
    int (*predict)(struct cuda_context *c, const struct forward_streams *a,
                   struct err *e);
    /* The stream at hand = (it + a + b) / sqrt(2). */
    int (*join)(struct cuda_context *c, const struct forward_streams *a,
                struct err *e);
    /* Streams by the stream at hand; out = s times the active one. */
    int (*correct)(struct cuda_context *c, const struct forward_streams *a,
                   struct err *e);
    /* g[rows, n] = max(g - mean - cutoff * deviation, 0), elements, of each row. */
    int (*sparsify)(struct cuda_context *c, enum dtype t, double cutoff,
                    void *g, int64_t rows, int64_t n, struct err *e);
    int (*subtract)(struct cuda_context *c, const struct forward_difference *d,
                    struct err *e);
    /* to[rows, n] = from[token of the row, n], times r->by. */
    int (*gather)(struct cuda_context *c, const struct forward_rows *r,
                  void *to, const void *from, struct err *e);
    /* sum[token, n] += weight[slot] * out[row, n], if sum is not NULL;
     * squares[row] = sum of squares of out[row]. */
    int (*scatter)(struct cuda_context *c, const struct forward_rows *r,
                   float *sum, const float *weight, const void *out,
                   double *squares, struct err *e);
    int (*experts)(struct cuda_context *c, const struct forward_experts *a,
                   struct err *e);
    /* to[row, n] = from[row, n] + share[slot] * (reference[token, n] -
     * x[token, n]); to may be from. */
    int (*add_share)(struct cuda_context *c, const struct forward_rows *r,
                     void *to, const void *from, const float *share,
                     const void *reference, const void *x, struct err *e);
    /* Whether all n elements are finite. */
    int (*finite)(struct cuda_context *c, enum dtype t, const void *x,
                  int64_t n, bool *yes, struct err *e);
};

extern struct plugin_table forward_plugin;

/* The table; to be called only if device_gpu() is not NULL. */
static inline const struct forward_table *forward_functions(void)
{
    return (const struct forward_table *)forward_plugin.functions;
}

#endif
