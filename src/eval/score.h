/* score.h - measures how far one model's predictions are from another's.
 *
 * Per position, in natural logarithms: the logits at position t of a sequence
 * predict token t+1.  With p the original's softmax and q the other's,
 *
 *     nll = -ln p[target]          perplexity = exp(mean nll)
 *     KL(p || q) = sum_v p[v] (ln p[v] - ln q[v])
 *     top1 = fraction of positions where argmax p = argmax q
 *
 * Logits are f32, all sums f64.  Equal rows give KL = 0 exactly; results depend
 * neither on the CPU nor on the number of threads. */
#ifndef FORGE_SCORE_H
#define FORGE_SCORE_H

#include "common/base.h"

/* The result at one position. */
struct score {
    double nll_original, nll_other;
    double kl;         /* KL(p || q) >= 0 */
    bool agree;        /* equal argmax; of equal logits the first counts */
    uint32_t position; /* in its sequence, from 0 */
};

/* Compare two rows of logits, [vocab] each.  target < vocab: the next token of
 * the text.  s->position is the caller's.  False: a logit of either row is not
 * finite. */
MUST_CHECK bool score_row(const float *original, const float *other,
                          size_t vocab, size_t target, struct score *s);

/* The histogram of the KL divergences: bins between the powers of
 * 10^(1 / KL_PER_DECADE) from KL_FROM to 10. */
enum { KL_PER_DECADE = 4, KL_EDGES = 7 * KL_PER_DECADE + 1 };
#define KL_FROM 1e-6

/* Bins of positions in a sequence, each as long as all before it: 0..15, 16..31,
 * 32..63, ... */
enum { BIN_FIRST = 16, POSITION_BINS = 29 };

/* Means over some positions. */
struct score_means {
    uint64_t positions;
    double ppl_original, ppl; /* may be infinity */
    double kl_mean, kl_sem;   /* sem: standard error of the mean */
};

/* Statistics over all positions. */
struct score_result {
    struct score_means all;
    /* by the position in the sequence; bin i begins at score_bin_from(i) */
    struct score_means bin[POSITION_BINS];
    size_t bins; /* none behind the longest sequence's */
    double kl_median, kl_p99, kl_max;
    double top1; /* 0..1 */
    /* positions below the first edge, between edges i - 1 and i, and from the
     * last edge on */
    uint64_t kl_count[KL_EDGES + 1];
};

/* Summarize s[n], n > 0; kl[n]: scratch memory. */
struct score_result score_summarize(const struct score *s, size_t n,
                                    double *kl);
/* The first position of a bin. */
uint64_t score_bin_from(size_t bin);
/* The q-quantile (0 <= q <= 1) of n > 0 ascending numbers, linearly
 * interpolated at index q (n - 1), as numpy and torch do by default. */
double score_quantile(const double *ascending, size_t n, double q);

#endif
