/* sample.h - the next token from logits. */
#ifndef FORGE_SAMPLE_H
#define FORGE_SAMPLE_H

#include "common/base.h"

struct sampler {
    bool greedy;        /* the largest logit, the first of equal ones */
    double temperature; /* > 0 */
    int64_t top_k;      /* that many of the largest; 0: all */
    double top_p;       /* the fewest whose probabilities come to this */
    uint64_t seed;      /* moves on with each token */
    void *room;         /* own; sampler_release() */
    int64_t vocab;
};

/* *id of logits[vocab].  Temperature first, then top-k, then top-p, as in
 * transformers.  Equal seeds give equal tokens.  E_TEMP. */
MUST_CHECK int sampler_next(struct sampler *s, const float *logits,
                            int64_t vocab, int32_t *id, struct err *e);
void sampler_release(struct sampler *s);

#endif
