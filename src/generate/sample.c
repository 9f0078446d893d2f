/* sample.c - see sample.h. */
#include "generate/sample.h"

#include <math.h>
#include <stdlib.h>

#include "common/math/splitmix.h"

struct choice {
    double p;
    int32_t id;
};

static int32_t largest(const float *logits, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* Descending probability, ascending id. */
static int order(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;

    if (x->p != y->p)
        return x->p < y->p ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Uniform in [0, 1), 53 bits. */
static double draw(uint64_t *seed)
{
    return (double)(splitmix64(*seed += SPLITMIX_STEP) >> 11) /
           9007199254740992.0;
}

/* Number of the sorted candidates c[n] that top-k and top-p keep; *sum of
 * their p. */
static int64_t kept(const struct sampler *s, const struct choice *c, int64_t n,
                    double *sum)
{
    double all = 0;
    int64_t k = 0;

    if (s->top_k && s->top_k < n)
        n = s->top_k;
    for (int64_t i = 0; i < n; i++)
        all += c[i].p;
    *sum = 0;
    while (k < n && (!k || *sum < s->top_p * all))
        *sum += c[k++].p;
    return k;
}

int sampler_next(struct sampler *s, const float *logits, int64_t vocab,
                 int32_t *id, struct err *e)
{
    float top = logits[largest(logits, vocab)];
    struct choice *c;
    double sum, at;
    int64_t n, i = 0;

    *id = largest(logits, vocab);
    if (s->greedy)
        return 0;
    if (vocab > s->vocab &&
        mem_grow(&s->room, (size_t)vocab * sizeof(*c), "sampling", e) < 0)
        return e->code;
    s->vocab = vocab > s->vocab ? vocab : s->vocab;
    c = s->room;
    for (int64_t k = 0; k < vocab; k++)
        c[k] = (struct choice){
            exp(((double)logits[k] - (double)top) / s->temperature), (int32_t)k
        };
    qsort(c, (size_t)vocab, sizeof(*c), order);
    n = kept(s, c, vocab, &sum);
    at = draw(&s->seed) * sum;
    while (i + 1 < n && at >= c[i].p)
        at -= c[i++].p;
    *id = c[i].id;
    return 0;
}

void sampler_release(struct sampler *s)
{
    free(s->room);
    s->room = NULL;
    s->vocab = 0;
}
