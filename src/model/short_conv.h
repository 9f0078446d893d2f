/* short_conv.h - the causal convolution of a few tokens for each channel, and
 * silu, that linear attention has in front of its states:
 *
 *     y(t) = silu(bias + sum over i < kernel of filter[i] x(t - kernel + 1 + i))
 */
#ifndef FORGE_SHORT_CONV_H
#define FORGE_SHORT_CONV_H

#include "model/internal.h"

/* Head `head` of a row of a product. */
const void *place_at(const struct model *m, const struct forward_heads *p,
                     int64_t row, int64_t head);
/* One element of it, the i-th. */
float place_number(const struct model *m, const struct forward_heads *p,
                   int64_t row, int64_t head, int64_t i);

struct conv {
    const struct model *m;
    const float *filter; /* [channels, kernel] */
    const float *bias;   /* [channels], or NULL */
    int64_t kernel, channels;
    float *old; /* [kernel - 1, channels] inputs of the tokens before, in a KV
                 * cache; NULL: zero */
};

/* Channels of one head. */
struct conv_stream {
    const struct forward_heads *from;
    int64_t head, channel, n; /* the first of them among all; how many */
    float *window;            /* [kernel, n] the last inputs, a ring */
    float *x;                 /* [n] the output */
};

/* Read the inputs of token `row`, from 1 - kernel on, of a sequence whose first
 * row is `first`; from row 0 on also set s->x. */
void conv_next(const struct conv *c, struct conv_stream *s, int64_t first,
               int64_t row);
/* Keep the last inputs of a sequence of so many rows in c->old. */
void conv_keep(const struct conv *c, const struct conv_stream *s, int64_t first,
               int64_t rows);
/* Run part(ctx, sequence, i) for i < n of each of so many sequences, on all
 * threads; the first error of one. */
MUST_CHECK int each_part(int64_t sequences, int64_t n,
                         int (*part)(const void *ctx, int64_t sequence,
                                     int64_t i, struct err *e),
                         const void *ctx, struct err *e);
/* x, rounded to bf16 in bf16 mode. */
float model_rounded(const struct model *m, float x);

#endif
