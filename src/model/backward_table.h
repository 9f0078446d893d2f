/* backward_table.h - the function table of the backward pass
 * (device/plugin.h): the CPU's is backward_cpu, a GPU's comes from the plug-in.
 *
 * All numbers are f32, row-major and contiguous unless said otherwise; pointers
 * are memory where layers run (the host's, or the device's of
 * forward_table.h), unless they are called the host's.  Sums are made in an
 * order that depends only on the sizes of a call. */
#ifndef FORGE_BACKWARD_TABLE_H
#define FORGE_BACKWARD_TABLE_H

#include "common/math/dtype.h"
#include "device/plugin.h"
#include "model/forward_table.h"

#define BACKWARD_TABLE "forge_backward_table"
enum { BACKWARD_TABLE_VERSION = 10 };

/* y[rows, out] = x[rows, in] W^T + bias; back: y[rows, in] = x[rows, out] W,
 * which is added to y if `add`. */
struct backward_linear {
    int64_t rows, out, in;
    const void *w;     /* [out, in] */
    bool bf16;         /* w is of bf16, on a GPU; or f32 */
    const float *bias; /* [out], or NULL; not with back */
    const float *x;
    float *y;
    bool back, add;
    bool rounded; /* x and w are rounded to bf16; on a GPU where w is */
};

/* to[out, in] += g^T x, the gradient with respect to the weights of a linear, of rows
 * g[rows, out] with respect to its outputs, and of its inputs x[rows, in]. */
struct backward_weights {
    int64_t rows, out, in;
    const float *g, *x;
    float *to;
    bool rounded; /* g and x are rounded to bf16 */
};

/* RMS norm y = w x / r, r^2 = mean x^2 + eps, of rows of n elements:
 *
 *     gx = (u - x (x . u) / (n r^2)) / r,  u = w gy,
 *
 * with gy the gradient with respect to y; in double.  g = gx, or add: g += gx.
 * g may be gy or x. */
struct backward_norm {
    enum dtype dtype; /* of x */
    int64_t rows, n;
    const void *x; /* leading dimension ld */
    int64_t ld;
    const float *w; /* [n] */
    double eps;
    const float *gy; /* [rows, n] */
    float *g;        /* leading dimension ldg */
    int64_t ldg;
    bool add;
};

/* An MLP y = weight * down(act(gate(x)) * up(x)), or of ACT_CLAMPED what enum
 * activation says: gin += the gradient with respect to x.  Row i of the MLP is
 * row token[i] of in (x), g (the gradient with respect to y) and gin; a token
 * occurs once at most. */
enum { MLP_GATE, MLP_UP, MLP_DOWN, MLP_LINEARS };
struct backward_mlp {
    int64_t rows, h, width;
    const void *w[MLP_LINEARS];     /* [width, h], [width, h], [h, width] */
    bool bf16;                      /* as in struct backward_linear */
    const float *bias[MLP_LINEARS]; /* down's is not used; NULL: none */
    const int64_t *token;           /* [rows]; NULL: row i */
    const float *weight;            /* [rows]; NULL: 1 */
    const float *in, *g;            /* [..., h] */
    float *gin;
    struct forward_gating gating;
    bool weigh_inputs; /* y = down(act(gate(weight x)) * up(weight x)) */
    /* [rows] each, or NULL: += |.|^2 of the gradients with respect to what gate,
     * and up, put out, for row i of the MLP. */
    float *squares[MLP_DOWN];
    /* Added to: the gradients with respect to w.  NULL: not wanted. */
    float *weights[MLP_LINEARS];
    bool rounded; /* as in struct backward_linear and struct backward_weights */
};

/* The MLPs of a layer's experts, whose weights are all there, bf16: rows first[i]..first[i +
 * 1]-1 of `of` are those of expert i.  h and width are multiples of 8. */
struct backward_experts {
    /* Rounded, rows of all; w, bias, squares and weights are not used. */
    struct backward_mlp of;
    int64_t experts, tokens, top_k;
    const int64_t *first; /* the host's, [experts + 1] */
    const int64_t *row;   /* [tokens * top_k]: rows of each token, or -1 */
    /* The host's lists [experts]: W, and what the gradients with respect to it are added
     * to, or NULL. */
    const void *const *w[MLP_LINEARS];
    float *const *weights[MLP_LINEARS];
};

/* Head norms, RoPE and causal softmax attention of each sequence: from
 * go[rows, n_heads * v_dim], the gradient with respect to the attention's
 * output.  q [rows, n_heads * head_dim], k [rows, n_kv_heads * head_dim] and
 * v [rows, n_kv_heads * v_dim], the outputs of the linears, are replaced by the
 * gradients with respect to them.  Numbers as in struct forward_attend. */
struct backward_attend {
    int64_t rows, n_sequences;
    const int64_t *first; /* the host's, [n_sequences + 1] */
    int64_t n_heads, n_kv_heads, head_dim, v_dim, window, chunk;
    float scale, eps, cap;
    const float *sinks, *growth;
    const float *q_norm, *k_norm; /* [head_dim], or NULL */
    int64_t rotary_at, rotary;
    bool pairs;
    const float *cs; /* [positions, rotary] */
    const float *go;
    float *q, *k, *v;
    bool rounded; /* on a GPU: products by its TF32, numbers of 11 bits */
};

/* Latent attention: keys and values from kv_a's outputs a [rows, kv_lora +
 * rope] and kv_b's b [rows, heads * (nope + v_dim)]; back: the reverse for
 * gradients.  The rotary part of a key is shared by all heads, so its gradient
 * is their sum.  key [rows, heads * (nope + rope)], value [rows, heads *
 * v_dim]. */
struct backward_latent {
    int64_t rows, heads, nope, rope, v_dim, kv_lora;
    float *key, *value, *a, *b;
    bool back;
};

/* g[rows, h] = sum_v c_v w_v, with z = W y, p = softmax(z) and
 *
 *     c_v = s_v sqrt(p_v) - p_v sum_u s_u sqrt(p_u)
 *
 * for random signs s: the mean of c cT is diag(p) - p pT, as that of the
 * gradients of -log p_t with respect to z for tokens t drawn from p.  s_v is -1
 * where bit v % 64 of mix(mix(first + row) + v / 64) is set, mix(i) the i-th
 * number of SplitMix64 from 0.  Logits are z = scale W y, with a cap z = cap
 * tanh(scale W y / cap): then each w_v is multiplied by scale (1 - (z_v /
 * cap)^2). */
struct backward_head {
    int64_t rows, h, vocab;
    uint64_t first;
    const uint16_t *w; /* [vocab, h], bf16 */
    const float *y;
    float *g;
    float scale, cap; /* cap 0: none */
    bool rounded;     /* as in struct backward_linear, and by c, too */
};

/* g[rows, h] = by * sum_v (q_v - p_v) w_v, the gradient of by * KL(p || q) with
 * respect to y, of q = softmax(z) with the logits z of y, and p of those of ref; logits
 * as in struct backward_head. */
struct backward_divergence {
    int64_t rows, h, vocab;
    const uint16_t *w; /* [vocab, h], bf16 */
    const float *ref, *y;
    float by, scale, cap;
    float *g;
    double *kl;   /* the host's: its sum over the rows */
    bool rounded; /* as in struct backward_linear, and by (q - p), too */
};

/* The table.  Functions return as device/plugin.h says. */
struct backward_table {
    uint32_t version;
    /* Zeroed memory of the host that the device can access, released as
     * forward_table's; NULL in the CPU's table. */
    int (*pinned)(struct cuda_context *c, void **p, size_t n, struct err *e);
    /* to[n] = x[n], of type t; and back, rounded to nearest. */
    int (*widen)(struct cuda_context *c, enum dtype t, const void *x, int64_t n,
                 float *to, struct err *e);
    int (*narrow)(struct cuda_context *c, enum dtype t, const float *x,
                  int64_t n, void *to, struct err *e);
    /* to[n] = by * x[n], or add: to += by * x; to may be x. */
    int (*scale)(struct cuda_context *c, const float *x, float by, bool add,
                 int64_t n, float *to, struct err *e);
    /* to[rows] += |.|^2 of each row of x[rows, n], summed in double. */
    int (*squares)(struct cuda_context *c, const float *x, int64_t rows,
                   int64_t n, float *to, struct err *e);
    int (*linear)(struct cuda_context *c, const struct backward_linear *a,
                  struct err *e);
    int (*norm)(struct cuda_context *c, const struct backward_norm *a,
                struct err *e);
    int (*weights)(struct cuda_context *c, const struct backward_weights *a,
                   struct err *e);
    int (*mlp)(struct cuda_context *c, const struct backward_mlp *a,
               struct err *e);
    /* NULL in the CPU's table. */
    int (*experts)(struct cuda_context *c, const struct backward_experts *a,
                   struct err *e);
    /* weight[rows] = sigmoid(in[rows, n] w[n]), in double. */
    int (*gates)(struct cuda_context *c, const float *in, const float *w,
                 int64_t rows, int64_t n, float *weight, struct err *e);
    int (*attend)(struct cuda_context *c, const struct backward_attend *a,
                  struct err *e);
    int (*latent)(struct cuda_context *c, const struct backward_latent *a,
                  struct err *e);
    int (*head)(struct cuda_context *c, const struct backward_head *a,
                struct err *e);
    /* NULL in the CPU's table. */
    int (*divergence)(struct cuda_context *c,
                      const struct backward_divergence *a, struct err *e);
};

extern const struct backward_table backward_cpu;

#endif
