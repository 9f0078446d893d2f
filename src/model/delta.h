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

/* Load what is not in the list of linears: convolution, gates, norm.  Errors as
 * model_load_layer(). */
MUST_CHECK int delta_load(struct layer *l, struct err *e);
void delta_release(struct delta_weights *w); /* NULL is allowed */
/* out[rows, v_heads * v_dim], from the input in[rows, H] of attention; goes on
 * from and updates s->cache. */
MUST_CHECK int delta_run(struct layer *l, const struct state *s, const void *in,
                         void *out, struct err *e);
/* f32 numbers that a layer keeps in a KV cache. */
int64_t delta_cached(const struct delta *d);

#endif
