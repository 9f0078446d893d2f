/* altup.h - several residual streams (AltUp, Baykal et al. 2023), a low-rank path
 * beside attention (LAuReL, Menghani et al. 2024), layers' own inputs, and sparse
 * gates, as Gemma 3n has them.  See struct altup.
 *
 * With streams h[n] of H elements, of which h[a] is the active one, a layer is
 *
 *     m(x) = tanh(R norm_r(x) / H)                 R [n, H]
 *     p[j] = h[j] + sum over i of (P m(h[a]))[j, i] h[i]      P [n n, n]
 *     x = p[a];  l = norm_in(x);  l = l + norm_l(B A l)      A [rank, H], B [H, rank]
 *     x = (x + norm_behind(attention(norm_in(x))) + l) / sqrt(2)
 *     x = x + norm_behind(mlp(norm_in(x)))
 *     h[j] = p[j] + (1 + (C m(x))[j]) (x - p[a])              C [n, n]
 *     h[1 ..] += norm_u(U (act(G (s h[a])) * u))   G [inputs, H], U [H, inputs]
 *
 * u: the layer's own input for this token; s [H], or 1.  x is computed in f32 and
 * rounded to elements once for each line. */
#ifndef FORGE_ALTUP_H
#define FORGE_ALTUP_H

#include "model/internal.h"

/* ---- a layer (altup.c) ---- */

/* Load what the run needs beside its linears.  Errors as model_load_layer(). */
MUST_CHECK int altup_load(struct layer *l, struct err *e);
/* w: those of a layer of m; NULL is allowed. */
void altup_release(const struct model *m, struct altup_weights *w);
/* out[rows, H] = p[a], and the state stays; out NULL: h = p, and x = p[a]. */
MUST_CHECK int altup_predict(const struct layer *l, const struct state *s,
                             void *out, struct err *e);
/* Behind x += attention: x = (x + l) / sqrt(2). */
MUST_CHECK int altup_laurel(struct layer *l, const struct state *s,
                            struct err *e);
/* Behind x += mlp: the last two lines. */
MUST_CHECK int altup_correct(struct layer *l, const struct state *s,
                             struct err *e);
/* g[rows, n] = max(g - mean - cutoff * deviation, 0), of each row. */
MUST_CHECK int altup_sparsify(const struct model *m, double cutoff, void *g,
                              int64_t rows, int64_t n, struct err *e);
/* What these do on a device, on the host: forward_table.predict(), join(), correct().
 * m has the type of the elements. */
MUST_CHECK int streams_predict(const struct model *m,
                               const struct forward_streams *a, struct err *e);
MUST_CHECK int streams_join(const struct model *m,
                            const struct forward_streams *a, struct err *e);
MUST_CHECK int streams_correct(const struct model *m,
                               const struct forward_streams *a, struct err *e);

/* Call fn(ctx, r, work) for r < rows on all threads; work: as many numbers, the
 * thread's own. */
typedef void altup_row_fn(const void *ctx, int64_t r, float *work);
MUST_CHECK int altup_rows(int64_t rows, int64_t work, altup_row_fn *fn,
                          const void *ctx, struct err *e);

/* ---- the rows in front of the first layer, and behind the last
 * (altup_ends.c) ---- */

/* Load what makes rows of tokens; the caller releases it, after an error, too.
 * E_CONFIG: the table of the layers' inputs is not stored so that its rows can be
 * read one by one; others as model_load_layer(). */
MUST_CHECK int altup_entry_load(struct model *m, struct altup_entry **out,
                                struct err *e);
void altup_entry_release(struct altup_entry *w); /* NULL is allowed */
/* On the host, wherever layers run: out[n, model_row()] from embeddings h[n, H] of the
 * tokens, elements: stream 0 is
 * h, stream i T[i] h as long as h; a layer's input is (norm(M h / sqrt(H)) + E[token])
 * / sqrt(2). */
MUST_CHECK int altup_enter(const struct altup_entry *w, const int32_t *tokens,
                           int64_t n, const void *h, void *out, struct err *e);

struct altup_exit;
/* As altup_entry_load(). */
MUST_CHECK int altup_exit_load(struct model *m, struct altup_exit **out,
                               struct err *e);
void altup_exit_release(struct altup_exit *w); /* NULL is allowed */
/* out[n, H] = mean of stream 0 and of T[i] stream i as long as stream 0; x[n,
 * model_row()].  out may be x.  Both are where layers run; the host computes. */
MUST_CHECK int altup_leave(const struct altup_exit *w, const void *x, int64_t n,
                           void *out, struct err *e);

#endif
