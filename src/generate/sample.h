/* sample.h - chooses the next token from logits. */
#ifndef FORGE_SAMPLE_H
#define FORGE_SAMPLE_H

#include "common/base.h"

/* Settings and state of the sampler; zero-initialise what is not set. */
struct sampler {
    bool greedy;        /* take the largest logit, the first of equal ones;
                         * ignores the rest */
    double temperature; /* > 0 */
    int64_t top_k;      /* sample from the k most probable tokens; 0: all */
    double top_p;       /* and of these from the fewest whose probabilities
                         * sum to top_p, 0..1 */
    uint64_t seed;      /* state of the random numbers, SplitMix64 */
    void *room;         /* work memory, freed by sampler_release() */
    int64_t vocab;      /* elements of room */
};

/* Choose *id from logits[vocab]: temperature, then top-k, then top-p, in the
 * order of transformers.  Equal seeds give equal tokens.  E_TEMP. */
MUST_CHECK int sampler_next(struct sampler *s, const float *logits,
                            int64_t vocab, int32_t *id, struct err *e);
void sampler_release(struct sampler *s);

#endif
