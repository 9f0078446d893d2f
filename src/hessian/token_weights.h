/* token_weights.h - weights of tokens in Hessians and cross moments:
 * H = mean of w 2 x xT, D and G likewise.  0 leaves a token out.
 *
 * The file is a stream of activation frames, f32 [tokens, linears], named as
 * the input, one for each sequence.  Each column is divided by its mean over all
 * tokens; w is the mean of the columns, but for those of zeros, and 1 if all are.
 *
 * KL is to second order E[(gT E x)^2], x the input of a linear, g the gradient
 * of log p with respect to its output, E the error of its weights: with |g|^2 of
 * the linears that read the input as columns, H is the nearest to it among those
 * that give all outputs the same (YAQA, 2025, the first round). */
#ifndef FORGE_TOKEN_WEIGHTS_H
#define FORGE_TOKEN_WEIGHTS_H

#include "common/base.h"

struct token_weights;
struct frame; /* common/io/stream.h */
struct room;  /* hessian/hessian_entry.h */

/* A regular file.  E_USAGE: it is none; E_DATA: other frames, two of a name and
 * sequence; E_TEMP; errors of stream_open(). */
MUST_CHECK int token_weights_open(struct token_weights **w, const char *path,
                                  const char *key, struct err *e);
void token_weights_close(struct token_weights *w); /* NULL is allowed */
/* JSON of the file's HEAD, for stream_inherit(); w NULL: NULL. */
const char *token_weights_head(const struct token_weights *w);
/* Whether there are any for an input; w may be NULL. */
bool token_weights_have(const struct token_weights *w, const char *name);
/* *root = sqrt(w) of n tokens of a sequence of the input `name`, until the next call.
 * Memory has those of one name.  E_DATA: there are none, or not n; one is
 * negative or not finite; E_TEMP; E_IO. */
MUST_CHECK int token_weights_get(struct token_weights *w, const char *name,
                                 uint64_t sequence, uint64_t n,
                                 const float **root, struct err *e);
/* Replace the rows of f, on the host, by their products with root[rows], rounded to
 * f's dtype, in room.  E_TEMP. */
MUST_CHECK int token_weights_apply(struct frame *f, const float *root,
                                   struct room *room, struct err *e);

#endif
