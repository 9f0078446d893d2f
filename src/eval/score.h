/* score.h - how far one model's predictions are from another's.
 *
 * Everything is counted a position, in natural logarithms: the logits at
 * position t of a sequence predict token t+1.  With p the original's softmax
 * and q the other's,
 *
 *     nll = -ln p[target]          perplexity = exp(mean nll)
 *     KL(p || q) = sum_v p[v] (ln p[v] - ln q[v])
 *     top1 = share of positions where argmax p = argmax q
 *
 * Logits are f32, every sum is f64.  Equal rows give KL 0 exactly, and the
 * figures depend neither on the CPU nor on the number of threads. */
#ifndef FORGE_SCORE_H
#define FORGE_SCORE_H

#include "common/base.h"

/* One position. */
struct score {
    double nll_original, nll_other;
    double kl;  /* of the original from the other, >= 0 */
    bool agree; /* the same most probable token, the first one among equals */
};

/* Compare two rows of `vocab` logits.  target < vocab: the token that came.
 * False when a logit of either row is not finite. */
MUST_CHECK bool score_row(const float *original, const float *other,
                          size_t vocab, size_t target, struct score *s);

/* What is known after all positions. */
struct score_result {
    uint64_t positions;
    double ppl_original, ppl; /* infinity when beyond a double */
    double kl_mean, kl_sem;   /* sem: standard error of the mean */
    double kl_median, kl_p99, kl_max;
    double top1; /* 0..1 */
};

/* Summarize n > 0 scores in their order; kl is scratch for n doubles. */
struct score_result score_summarize(const struct score *s, size_t n,
                                    double *kl);
/* The q-th quantile (0..1) of n > 0 ascending numbers, interpolated between
 * neighbours at position q (n - 1), as numpy and torch do by default. */
double score_quantile(const double *ascending, size_t n, double q);

#endif
