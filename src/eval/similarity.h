/* similarity.h - measures how far one model's last hidden states are from
 * another's, where a model has no output head and so no predictions to compare.
 *
 * Per token, with o the original's state behind the final norm and q the
 * other's:
 *
 *     cosine = o q / (|o| |q|)          error = |q - o| / |o|
 *
 * States are f32, all sums f64, each in the order of its elements and tokens.
 * Equal rows give a cosine of exactly 1 and an error of exactly 0. */
#ifndef FORGE_SIMILARITY_H
#define FORGE_SIMILARITY_H

#include "common/base.h"

/* The result at one token. */
struct similarity {
    double cosine; /* -1..1 */
    double error;  /* >= 0, may be infinity */
};

/* Compare two rows, [n] each.  Of a row of zeros the cosine is 0, and if it is
 * the original's the error infinity, unless both are zeros: 1 and 0.  False: an
 * element of either row is not finite. */
MUST_CHECK bool similarity_row(const float *original, const float *other,
                               size_t n, struct similarity *s);

/* Statistics over all tokens.  sem: standard error of the mean over tokens, 0 of
 * one. */
struct similarity_result {
    uint64_t tokens;
    double cosine_mean, cosine_sem, cosine_min;
    /* over the last tokens of the sequences, one each */
    double cosine_last, cosine_last_sem;
    /* sqrt(mean error^2), and sem(error^2) / (2 error_rms), its standard error
     * by the delta method */
    double error_rms, error_sem;
};

/* Summarize the tokens of count > 0 sequences: sequence i is
 * s[start[i]..start[i + 1] - 1], which are one or more. */
struct similarity_result similarity_summarize(const struct similarity *s,
                                              const size_t *start,
                                              size_t count);

#endif
