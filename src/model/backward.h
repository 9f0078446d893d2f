/* backward.h - gradients of random sums of the logits with respect to the
 * residual stream, and to what linears put out, from the head down.
 *
 * The sums are those of backward_table.h's head: the second moment of the
 * gradients is the Fisher information of the model's own distribution p, the
 * second-order term of the KL divergence when the residual stream changes.  The
 * backward pass goes through the head, norms, attention and MLPs; in a mixture
 * the router's choices and weights are held constant, unless margins are given.  f32 throughout, by the
 * functions of backward_table.h.  Rows x of the residual stream are the host's unless said
 * otherwise, gradients g are memory where layers run. */
#ifndef FORGE_BACKWARD_H
#define FORGE_BACKWARD_H

#include "common/io/region.h"
#include "model/model.h"

/* Before anything is loaded: run layers and their backward pass on the device
 * that device_open() opened, if there is one and `need` bytes fit, of which E_TEMP says
 * that "`what`" so many, or device_declined() says otherwise. */
MUST_CHECK int backward_use_device(struct model *m, const char *what,
                                   double need, struct err *e);

/* *n: bytes of device memory that gradients of a layer leave.  On a device only. */
MUST_CHECK int backward_spare_bytes(const struct model *m, size_t *n,
                                    struct err *e);

/* Zeroed f32 numbers of all tokens, where layers run: on the host a region; on
 * a device its memory, as long as a layer fits beside them, else pinned memory
 * of the host.  Zero-initialise. */
struct token_rows {
    const struct model *m;
    struct region region;
    float *p;
};
/* n numbers; dir: for temporary files.  Errors of region_reserve(); E_TEMP. */
MUST_CHECK int token_rows_open(struct token_rows *t, const struct model *m,
                               const char *dir, int64_t n, struct err *e);
void token_rows_close(struct token_rows *t);

/* g[n, H] = gradients with respect to x[n, H], elements, the output of the
 * last layer.  Row i's signs are those of number `first` + i.  E_DATA: a
 * tensor is missing or has another shape; E_CONFIG: no OpenBLAS; E_TEMP. */
MUST_CHECK int backward_head(struct model *m, const void *x, int64_t n,
                             uint64_t first, float *g, struct err *e);
/* The same of KL(p || q), p of the logits of the stream ref[n, H] and q of those of x[n,
 * H], elements where layers run, times `by`: g = by W^T (q - p) behind the norm.  *kl: its
 * sum over the rows.  W is rounded to bf16 in both. */
struct kl_head;
MUST_CHECK int kl_head_open(struct model *m, struct kl_head **k, struct err *e);
void kl_head_close(struct kl_head *k); /* NULL is allowed */
MUST_CHECK int kl_head_run(struct kl_head *k, const void *ref, const void *x,
                           int64_t n, float by, float *g, double *kl,
                           struct err *e);
/* Where model_adds_scaled(): the gradient to[n, H] with respect to what o
 * (attention) or down puts out, from g[n, H], that with respect to the residual
 * stream behind it. */
struct backward_output {
    int64_t layer;
    bool attention;
    int64_t n;
    /* [n, H], elements, the host's or not: what the linear put out; NULL: there is no
     * norm behind it */
    const void *y;
    bool there; /* y is where layers run */
    const float *g;
    float *to;
};
MUST_CHECK int backward_output(struct model *m, const struct backward_output *o,
                               struct err *e);
/* |g|^2 of tokens, where layers run: p[i * ld + row] is of linear i <
 * model_linear_common() of a layer.  Functions add to it.  p NULL: not wanted. */
struct token_squares {
    float *p;
    int64_t ld;
};
/* From the layer's output to its residual stream behind attention: g[n, H] is
 * replaced; x[n, H], elements, is the latter stream.  out[n, H]: gradients with
 * respect to what the MLP puts out: backward_output()'s, or g.  dir: for
 * temporary files of mixtures.  squares: of the dense MLP's linears, or of the
 * shared expert's (its down projection's as if its gate were 1).  Errors as
 * above. */
struct backward_block {
    int64_t layer, n;
    const void *x;
    bool there; /* x is where layers run; else it is the host's */
    const char *dir;
    const float *out;
    float *g;
    struct token_squares squares;
    /* Of a mixture (moe.h): where tokens go, NULL: where the router sends them; and an
     * objective whose gradients are added, or NULL. */
    const struct routing *routing;
    const struct margins *margins;
};
MUST_CHECK int backward_mlp(struct model *m, const struct backward_block *b,
                            struct err *e);

/* The backward pass of a layer's attention: linears, norms, and state of a
 * batch. */
struct attention_back;
MUST_CHECK int backward_attention_open(struct model *m, int64_t layer,
                                       struct attention_back **a,
                                       struct err *e);
void backward_attention_close(struct attention_back *a); /* NULL is allowed */
/* From the residual stream behind attention to the one in front of it, of whole
 * sequences: sequence i has rows first[i]..first[i+1]-1.  Errors as above. */
struct attention_batch {
    const void *x;        /* elements: the stream in front */
    bool there;           /* as above */
    const int64_t *first; /* [n_sequences + 1] */
    int64_t n_sequences;
    const float *out; /* as above, of o */
    float *g;         /* is replaced */
    struct token_squares squares;
    /* [rows, ...], elements, where layers run: o's input, if weights are tuned */
    const void *attended;
};
MUST_CHECK int backward_attention(struct attention_back *a,
                                  const struct attention_batch *b,
                                  struct err *e);
/* After backward_attention(): [rows, l->rows] gradients with respect to the
 * output of l, a linear that makes keys or values alone; NULL: it is not one. */
const float *backward_attention_of(const struct attention_back *a,
                                   const struct linear *l);
/* to[n], elements, where the model computes = g[n].  Errors of the device. */
MUST_CHECK int backward_narrow(const struct model *m, const float *g, int64_t n,
                               void *to, struct err *e);
/* to[n], elements, the host's = g[n].  room: work memory of the device,
 * model_buffer_release() it. */
MUST_CHECK int backward_get(const struct model *m, const float *g, int64_t n,
                            struct buffer *room, void *to, struct err *e);

#endif
