/* delta.h - linear attention by the gated delta rule (Gated DeltaNet, Yang et al.
 * 2024, eq. 10), as Qwen3-Next and Qwen3.5 have it (struct delta).
 *
 * q, k and v go through a causal convolution of `kernel` tokens for each
 * channel, and silu; q and k are divided by their lengths, q by sqrt(k_dim),
 * too.  A value head has a state S [k_dim, v_dim], zero at first, f32:
 *
 *     S = exp(g) S;  S = S + k (b (v - Sᵀ k))ᵀ;  o = Sᵀ q
 *     b = sigmoid(B x), g = -exp(A_log) softplus(A x + dt_bias)
 *
 * and puts out RMSNorm(o) silu(z).  Kimi Delta Attention (Kimi Linear, 2025) has a
 * decay of each dim, S = diag(exp(g)) S, with A and what makes z products of two
 * matrices, and puts out RMSNorm(o) sigmoid(z).  The state runs through the sequence token by
 * token; heads and sequences are independent. */
#ifndef FORGE_DELTA_H
#define FORGE_DELTA_H

#include "model/internal.h"

/* Load what is not in the list of linears: convolution, gates, norm; where layers
 * run.  Errors as model_load_layer(). */
MUST_CHECK int delta_load(struct layer *l, struct err *e);
/* w: those of a layer of m; NULL is allowed. */
void delta_release(const struct model *m, struct delta_weights *w);
/* out[rows, v_heads * v_dim], from the input in[rows, H] of attention; goes on
 * from and updates s->cache. */
MUST_CHECK int delta_run(struct layer *l, const struct state *s, const void *in,
                         void *out, struct err *e);
/* f32 numbers that a layer keeps in a KV cache. */
int64_t delta_cached(const struct delta *d);

/* A call of forward_table.recur() for the batch, without what the linears put out
 * and without weights. */
struct forward_recur delta_call(const struct layer *l, const struct state *s,
                                void *out);
/* What forward_table.recur() does, on the host; mamba_heads() of DELTA_MAMBA.  m has
 * the type of the elements. */
MUST_CHECK int delta_heads(const struct model *m, const struct forward_recur *a,
                           struct err *e);

#endif
