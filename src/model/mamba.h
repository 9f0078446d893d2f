/* mamba.h - Mamba 2 (Dao and Gu 2024), as Granite 4 has it; the sizes are those
 * of struct delta: k_heads groups of v_heads heads.
 *
 * in_proj puts out z, x, B, C and a step t for each head; x, B and C go through a
 * convolution (short_conv.h).  A head has a state S [k_dim, v_dim], zero at
 * first, f32, and D is one number of it:
 *
 *     s = softplus(t + dt_bias), between step_min and step_max
 *     S = exp(-exp(A_log) s) S + B (s x)ᵀ;  y = Sᵀ C + D x
 *
 * B and C are those of its group.  The layer puts out RMSNorm(y silu(z)), the
 * norm over all heads of a group. */
#ifndef FORGE_MAMBA_H
#define FORGE_MAMBA_H

#include "model/internal.h"

/* As delta_load(), delta_release(), delta_run(), delta_heads() (delta.h); what a
 * layer keeps in a KV cache is delta_cached(), too. */
MUST_CHECK int mamba_load(struct layer *l, struct err *e);
void mamba_release(const struct model *m, struct mamba_weights *w);
MUST_CHECK int mamba_run(struct layer *l, const struct state *s, const void *in,
                         void *out, struct err *e);
/* work: [rows, channels] f32 on the host. */
MUST_CHECK int mamba_heads(const struct model *m, const struct forward_recur *a,
                           struct buffer *work, struct err *e);

#endif
