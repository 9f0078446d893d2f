/* moe.h - mixtures of experts: which experts a token goes to, and one pass
 * over the experts of a layer.
 *
 * The pass is expert-major: for each expert the rows of its tokens are
 * gathered, run through gate, up and down, and added, times the token's
 * weight, to that token's sum.  One expert's weights are in memory at a time
 * (and the next one's, being read), whatever their number. */
#ifndef FORGE_MOE_H
#define FORGE_MOE_H

#include "common/io/region.h"
#include "model/model.h"

/* ---- routing ---- */

/* For each of n tokens its experts, what their outputs are multiplied by,
 * and the router's scores of them (sigmoid or softmax, before correction,
 * renormalization and scale).  The order within a token is that of falling
 * choice; equal choices in order of number. */
struct routing {
    int64_t n, top_k;
    int32_t *experts; /* [n, top_k] */
    float *weights;   /* [n, top_k] */
    float *scores;    /* [n, top_k] */
    double *mass; /* [experts], sums of their scores over all tokens, whoever
                         they chose; NULL: not wanted */
};
MUST_CHECK int routing_create(struct routing *r, int64_t n, int64_t top_k,
                              struct err *e);
/* Want the mass of this many experts, too. */
MUST_CHECK int routing_weigh(struct routing *r, int64_t experts, struct err *e);
void routing_release(struct routing *r);

struct router;

/* The router of layer `index`, which has experts. */
MUST_CHECK int router_load(struct model *m, int64_t index, struct router **r,
                           struct err *e);
void router_release(struct router *r); /* NULL is allowed */
/* Route n tokens: rows[n,H] elements (what is at POINT_MLP_IN) to tokens
 * at .. at+n-1 of `to`.  In f32 whatever the model's precision.  E_DATA: a
 * score is not finite. */
MUST_CHECK int router_run(const struct router *r, const void *rows, int64_t n,
                          struct routing *to, int64_t at, struct err *e);

/* ---- the experts ---- */

/* What is summed over the tokens of an expert: their number, the scores, the
 * weights, the squares of the weights, and weight * ||output||; and its mass,
 * the scores that all tokens gave it. */
enum {
    EXPERT_TOKENS,
    EXPERT_SCORES,
    EXPERT_WEIGHTS,
    EXPERT_SQUARES,
    EXPERT_NORMS,
    EXPERT_MASS,
    EXPERT_STATS
};

/* Rows of an expert's tokens, elements, where layers run. */
struct expert_rows {
    int64_t expert, n;
    const void *rows; /* [n, width] that a linear reads */
    /* [n, H], or NULL without experts_pass.reference.  in(): of these tokens; mid():
     * E_ref(x_ref) - W_down rows, where E_ref is the checkpoint's expert and x_ref
     * the reference of these tokens */
    const void *reference;
    const int64_t
        *slot; /* [n] of the host: the choice of routing that each is */
    const int64_t *slot_there; /* the same where layers run, if on a device */
    bool last;                 /* of the expert */
};

/* What a caller that quantizes on the way does.  Order of the calls, for
 * experts 0, 1, ...:
 *
 *     in(0) in(1) | codes(gate and up 0) mid(0) in(2) codes(down 0) |
 *                   codes(gate and up 1) mid(1) in(3) codes(down 1) | ...
 *
 * so that there is always an expert's input waiting to be worked on. */
struct expert_hooks {
    /* The rows that the expert's linears read: of width H for gate and up,
     * moe.width for down.  Called in parts; an expert without tokens has one
     * of 0 rows. */
    int (*in)(void *arg, const struct expert_rows *r, struct err *e);
    int (*mid)(void *arg, const struct expert_rows *r, struct err *e);
    /* Codes that are used in place of the checkpoint's weights for these n
     * linears (gate and up, or down): wait until they have come.  *codes is
     * used until the next call; NULL, or a module that is not in it: the
     * checkpoint's. */
    int (*codes)(void *arg, const struct linear *l, int n,
                 const struct quantized **codes, struct err *e);
    void *arg;
};

/* The linears of all experts of a layer, kept in memory. */
struct experts_kept;
MUST_CHECK int experts_load(struct model *m, int64_t layer,
                            struct experts_kept **k, struct err *e);
void experts_release(struct experts_kept *k); /* NULL is allowed */

struct experts_pass {
    struct model *m;
    int64_t layer;
    const struct routing *routing; /* n tokens */
    const void *in; /* [n, H] elements: what is at POINT_MLP_IN */
    float *sum;     /* [n, H]: weight * output of each expert is added */
    const struct quantized *codes;    /* without hooks; may be NULL */
    const struct experts_kept *kept;  /* without hooks; NULL: read one by one */
    const struct expert_hooks *hooks; /* NULL: none */
    const char *dir;                  /* with hooks: for temporary files */
    /* With hooks: what else the tokens could have at POINT_MLP_IN, and the
     * hooks see, through the checkpoint's weights; NULL: nothing. */
    const void *reference;
    double *stats; /* [experts, EXPERT_STATS], or NULL */
    /* after each expert; NULL: nothing */
    void (*done)(void *arg, int64_t expert);
    void *done_arg;
};

/* Run all experts of the layer.  E_DATA: a tensor is missing or has another
 * shape than the config says; else what a hook says. */
MUST_CHECK int experts_run(const struct experts_pass *p, struct err *e);
/* What rows of an expert owe, where layers run: to[r->n, H] = r->reference +
 * share[slot] * (reference[token] - here[token]), rows of H elements. */
MUST_CHECK int experts_owe(struct model *m, const struct expert_rows *r,
                           int64_t top_k, const float *share,
                           const void *reference, const void *here, void *to,
                           struct err *e);
/* The columns of the statistics that the routing alone tells; EXPERT_NORMS is
 * 0.  stats[experts, EXPERT_STATS]. */
void experts_count(const struct routing *r, int64_t experts, double *stats);

/* ---- the routed part of a layer, over all tokens ----
 *
 * The rows of all tokens are in memory, or in files of `dir`:
 *
 *     mixture_open()
 *     each batch:   layer_run() to POINT_MLP_IN; mixture_take();
 *                   layer_run() to POINT_OUT; put x away
 *     mixture_run()
 *     each batch:   get x; mixture_add(); put x away
 *     mixture_close() */
struct mixture {
    struct model *m;
    int64_t layer;
    struct router *router;
    struct routing routing;
    void *in; /* as in struct experts_pass */
    float *sum;
    struct region ins, sums; /* where they lie on the host */
    /* as in struct experts_pass; set by the caller */
    const void *reference;
    const struct experts_kept *kept;
    const char *dir;
};
MUST_CHECK int mixture_open(struct mixture *x, struct model *m, int64_t layer,
                            int64_t tokens, const char *dir, struct err *e);
void mixture_close(struct mixture *x); /* zeroed is allowed */
/* For other tokens, at most as many as it was opened for. */
void mixture_again(struct mixture *x, int64_t tokens);
/* Tokens at .. at + rows - 1: the batch, which is at POINT_MLP_IN. */
MUST_CHECK int mixture_take(struct mixture *x, const struct state *s,
                            int64_t at, struct err *e);
/* All experts; arguments as in struct experts_pass. */
MUST_CHECK int mixture_run(struct mixture *x, const struct quantized *codes,
                           const struct expert_hooks *hooks, double *stats,
                           struct err *e);
/* rows[n,H] elements, of tokens at .. at + n - 1, += what the experts say. */
MUST_CHECK int mixture_add(const struct mixture *x, void *rows, int64_t at,
                           int64_t n, struct err *e);

/* x[n,H] elements += sum[n,H]. */
MUST_CHECK int model_add(const struct model *m, void *x, const float *sum,
                         int64_t n, struct err *e);

#endif
