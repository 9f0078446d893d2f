/* moe.h - mixtures of experts: the router, and one pass over the experts of a
 * layer.
 *
 * The pass is expert-major: for each expert the rows of its tokens are
 * gathered, run through gate, up and down, and added, multiplied by the
 * token's weight, to the sum of that token.  The weights of one expert, and of
 * those that are read ahead (read_ahead.h), are in memory at a time. */
#ifndef FORGE_MOE_H
#define FORGE_MOE_H

#include "common/io/region.h"
#include "model/model.h"

/* ---- routing ---- */

/* The experts of n tokens.  Within a token they are in descending order of the
 * router's choice, ties by index.  The host's memory. */
struct routing {
    int64_t n, top_k;
    int32_t *experts; /* [n, top_k] expert indices */
    float *weights;   /* [n, top_k] factors of the experts' outputs: 1 where
                       * the scores are those of their inputs (struct moe) */
    float *scores;    /* [n, top_k] the router's scores (softmax or sigmoid),
                       * before correction bias, renormalization and scale */
    double *mass;     /* [experts] sums of the scores over all tokens, whether
                   * chosen or not; NULL: not computed */
};
/* Allocate for n tokens.  E_TEMP. */
MUST_CHECK int routing_create(struct routing *r, int64_t n, int64_t top_k,
                              struct err *e);
/* Let router_run() compute mass.  E_TEMP. */
MUST_CHECK int routing_want_mass(struct routing *r, int64_t experts,
                                 struct err *e);
void routing_release(struct routing *r);

struct router;

/* Load the router of layer `index`, which has experts.  E_DATA: a tensor is
 * missing or has another shape, an expert map is malformed. */
MUST_CHECK int router_load(struct model *m, int64_t index, struct router **r,
                           struct err *e);
void router_release(struct router *r); /* NULL is allowed */
/* Route n tokens: rows[n, H], elements at POINT_MLP_IN, to tokens at..at+n-1
 * of `to`.  Computed in f32 in both precisions.  E_DATA: a score is not
 * finite. */
MUST_CHECK int router_run(const struct router *r, const void *rows, int64_t n,
                          struct routing *to, int64_t at, struct err *e);

/* logits [n, experts], the host's: what the router makes of x[n, H], f32 where layers run.
 * Where there is a backward pass (backward_use_device()).  E_TEMP. */
MUST_CHECK int router_logits(const struct router *r, const float *x, int64_t n,
                             float *logits, struct err *e);

/* A token's choice changes where a margin becomes negative: the key (score + correction
 * bias) of the last expert that is chosen less that of the first that is not; and, where
 * groups are chosen first, that between what these are ranked by.  With m >= 0 the margin
 * in the original model, d how far from it this model's is, and s^2 the mean of d^2 over
 * the tokens, phi the density of the normal distribution,
 *
 *     objective = by * sum over tokens and their margins of phi(u) u (d / s)^2 / 2, u = m / s:
 *
 * `by` times what the probability of a change, Phi(-m / s) for errors that are normal,
 * gains with s^2, dPhi(-u) / d(s^2) = phi(u) u / (2 s^2), for d^2 in place of s^2.
 *
 * In the original itself d is not known.  There s is what 4 bits are expected to do: all
 * logits of a token are MARGIN_NOISE of their standard deviation off, keys by their
 * derivatives.  In place of the objective comes a sum over the margins with random signs,
 *
 *     sum of +-sqrt(by phi(u) u) m / s,
 *
 * the second moment of whose gradients is the objective's second derivative, as that of
 * backward_table.h's random sums of logits is KL's. */
#define MARGIN_NOISE 0.05
struct margins {
    /* [n, experts], the host's: the original's; NULL: a random sum. */
    const float *logits;
    double by;
    /* Of a random sum: token i has the signs of number first + i. */
    uint64_t first;
};
/* gx[n, H] += the gradient of the objective or of the sum with respect to the router's
 * inputs x[n, H], f32 where layers run; s is held constant.  Errors of router_logits(). */
MUST_CHECK int router_margins(const struct router *r, const struct margins *m,
                              const float *x, int64_t n, float *gx,
                              struct err *e);

/* ---- the experts ---- */

/* Statistics of an expert, sums over its tokens: see arch/hitmap.h. */
enum {
    EXPERT_TOKENS, /* number of tokens */
    EXPERT_SCORES,
    EXPERT_WEIGHTS,
    EXPERT_SQUARES,
    EXPERT_NORMS, /* weight * ||output|| */
    EXPERT_MASS,  /* scores of all tokens, routed to it or not */
    EXPERT_STATS
};

/* Rows of an expert's tokens, elements, device memory. */
struct expert_rows {
    int64_t expert, n;
    int64_t turn;     /* how many experts of the pass came before this one */
    int64_t all;      /* rows of the expert, of all parts */
    const void *rows; /* [n, width] input of the linears */
    /* [n, H], NULL unless experts_pass.reference is set.  For in(): x_ref, the
     * rows of experts_pass.reference for these tokens.  For mid():
     * E_ref(x_ref) - W_down rows - b, where E_ref is the checkpoint's expert,
     * W_down its down projection and b that one's bias */
    const void *reference;
    /* [n], the host's: each row's choice in the routing, token * top_k + k */
    const int64_t *slot;
    const int64_t *device_slot; /* the same in device memory, on a device */
    bool last;                  /* the last rows of this expert */
};

/* Callbacks of a caller that quantizes experts during the pass.  Order of the
 * calls, for experts 0, 1, ...:
 *
 *     in(0) in(1) | codes(gate and up 0) mid(0) in(2) |
 *                   codes(gate and up 1) mid(1) in(3) codes(down 0) |
 *                   codes(gate and up 2) mid(2) in(4) codes(down 1) | ...
 *
 * so that while the pass waits for codes the solver has inputs of two other
 * experts to work on. */
struct expert_hooks {
    /* Input rows of gate and up [n, H] and of down [n, moe.width].  Called for
     * parts of an expert's tokens; an expert without tokens has one part of 0
     * rows. */
    int (*in)(void *arg, const struct expert_rows *r, struct err *e);
    int (*mid)(void *arg, const struct expert_rows *r, struct err *e);
    /* Wait for the codes of these n linears (gate and up, or down).  *codes is
     * used until the next call; a linear that is not in it, or NULL: the
     * checkpoint's weights. */
    int (*codes)(void *arg, const struct linear *l, int n,
                 const struct quantized **codes, struct err *e);
    void *arg;
};

/* Outputs of experts, rows [n, H] that are not weighted yet, one expert after the
 * other: put() gets what a pass computes, rows of device memory, before they are added
 * to the sums; or get() gives them, so that no expert runs: to[n, H], the host's, the
 * next n rows of this expert. */
struct expert_outputs {
    int (*put)(void *arg, const struct expert_rows *r, struct err *e);
    int (*get)(void *arg, int64_t expert, int64_t n, void *to, struct err *e);
    void *arg;
};

/* Experts share, share + shares, ... of a layer; shares 0: all. */
struct expert_share {
    int64_t share, shares;
};

/* The linears of all experts of a layer, in memory. */
struct experts_kept;
MUST_CHECK int experts_load(struct model *m, int64_t layer,
                            struct experts_kept **k, struct err *e);
void experts_release(struct experts_kept *k); /* NULL is allowed */

/* *to[choices], device memory to be released: the row of each choice, or -1, where row i
 * is that of choice[i].  E_TEMP. */
MUST_CHECK int experts_place_rows(const struct model *m, const int64_t *choice,
                                  int64_t rows, int64_t choices, int64_t **to,
                                  struct err *e);

/* Arguments of experts_run(). */
struct experts_pass {
    struct model *m;
    int64_t layer;
    const struct routing *routing; /* of n tokens */
    const void *in; /* [n, H] elements at POINT_MLP_IN, device memory */
    float *sum;     /* [n, H] f32, device memory; += weight * output of each
                     * expert; NULL: only the statistics are wanted */
    const struct quantized *codes;        /* used instead of the checkpoint's
                                       * weights; may be NULL; not with hooks */
    const struct experts_kept *kept;      /* NULL: experts are read one by one;
                                       * not with hooks */
    const struct expert_hooks *hooks;     /* NULL: none */
    const struct expert_outputs *outputs; /* NULL: none */
    struct expert_share of;               /* of others nothing is computed */
    const char *dir;                      /* with hooks: for temporary files */
    /* With hooks: [n, H] inputs of the reference stream at POINT_MLP_IN, for
     * expert_rows.reference; NULL: none. */
    const void *reference;
    bool far;      /* `reference` is not in the device's own memory, which slows
                    * reading it: rows are kept there from in() to mid() */
    double *stats; /* out: [experts, EXPERT_STATS], or NULL */
    /* Called after each expert, or NULL. */
    void (*done)(void *arg, int64_t expert);
    void *done_arg;
};

/* Run all experts of the layer.  E_DATA: a tensor is missing or has another
 * shape than config.json says; E_IO, E_TEMP; or what a hook returns. */
MUST_CHECK int experts_run(const struct experts_pass *p, struct err *e);
/* to[r->n, H] = r->reference + share[slot] * (reference[token] - here[token]),
 * elements, device memory: the gap of these rows plus their share of the
 * difference of the streams.  share [n * top_k]. */
MUST_CHECK int experts_add_share(struct model *m, const struct expert_rows *r,
                                 int64_t top_k, const float *share,
                                 const void *reference, const void *here,
                                 void *to, struct err *e);
/* The statistics that follow from the routing alone; EXPERT_NORMS is 0.
 * remapped: model_remapped() is not NULL, so a weight of 0 is the choice of a
 * pruned expert and does not count.  stats [experts, EXPERT_STATS]. */
void experts_count(const struct routing *r, bool remapped, int64_t experts,
                   double *stats);

/* ---- the routed experts of a layer, over all tokens ----
 *
 * Collects the inputs of all batches, so that each expert runs once:
 *
 *     mixture_open()
 *     each batch:   layer_run() to POINT_MLP_IN; mixture_take();
 *                   layer_run() to POINT_OUT; store x
 *     mixture_run()
 *     each batch:   load x; mixture_add(); store x
 *     mixture_close()
 *
 * or, where the f32 sums of all tokens would take too much memory, behind
 * mixture_run(), with what it has used, once more for some tokens after the others:
 *
 *     mixture_run_part(); each of their batches: load x; mixture_add(); store x
 *
 * On the host the rows are in regions (common/io/region.h) of `dir`. */
struct mixture {
    struct model *m;
    int64_t layer;
    struct router *router;
    struct routing routing;
    void *in;   /* inputs, as in struct experts_pass */
    float *sum; /* outputs, as in struct experts_pass, of tokens
                              * first..first+summed-1 */
    int64_t first, summed;
    bool spilled;            /* `in` is in host memory that the device reads */
    struct region ins, sums; /* memory of in and sum on the host */
    /* as in struct experts_pass; set by the caller */
    const void *reference;
    bool far;
    const struct experts_kept *kept;
    const struct expert_outputs *outputs;
    struct expert_share of;
    const char *dir;
};
/* For at most `tokens` tokens, and sums of the outputs of so many at a time: all;
 * fewer, for mixture_run_part(); 0: mixture_add() will not be called.  Errors as
 * router_load(), region_reserve(). */
MUST_CHECK int mixture_open(struct mixture *x, struct model *m, int64_t layer,
                            int64_t tokens, int64_t sums, const char *dir,
                            struct err *e);
void mixture_close(struct mixture *x); /* zeroed is allowed */
/* Start again with other tokens, at most as many as it was opened for. */
MUST_CHECK int mixture_restart(struct mixture *x, int64_t tokens,
                               struct err *e);
/* Keep the rows of tokens at..at+rows-1, the batch s at POINT_MLP_IN, and route them. */
MUST_CHECK int mixture_take(struct mixture *x, const struct state *s,
                            int64_t at, struct err *e);
/* Keep the rows alone: the caller fills x->routing. */
MUST_CHECK int mixture_keep(struct mixture *x, const struct state *s,
                            int64_t at, struct err *e);
/* router_logits() of the batch s at POINT_MLP_IN; logits [rows, experts]. */
MUST_CHECK int mixture_logits(const struct mixture *x, const struct state *s,
                              float *logits, struct err *e);
/* Run all experts; arguments as in struct experts_pass. */
MUST_CHECK int mixture_run(struct mixture *x, const struct quantized *codes,
                           const struct expert_hooks *hooks, double *stats,
                           struct err *e);
/* Run all experts over tokens at..at+n-1, n at most as many as have sums at a time. */
MUST_CHECK int mixture_run_part(struct mixture *x,
                                const struct quantized *codes, int64_t at,
                                int64_t n, struct err *e);
/* rows[n, H], elements, += the experts' outputs for tokens at..at+n-1. */
MUST_CHECK int mixture_add(const struct mixture *x, void *rows, int64_t at,
                           int64_t n, struct err *e);

/* x[n, H], elements, += sum[n, H]. */
MUST_CHECK int model_add(const struct model *m, void *x, const float *sum,
                         int64_t n, struct err *e);

#endif
