/* own.c - see own.h: some sequences at a time, a token each. */
#include "generate/own.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/math/splitmix.h"
#include "common/math/threads.h"

enum { TOGETHER = 128 }; /* sequences on the host */

struct draw {
    const struct own *o;
    int64_t first, vocab, at; /* first: number of the batch's first sequence;
                               * at: position of the token */
    float *logits;            /* [sequences, vocab]; become probabilities */
    int32_t *ids;             /* [sequences] */
    double *uniform;          /* [sequences], on a device */
};

/* Uniform in [0, 1), 53 bits. */
static double uniform(const struct draw *d, size_t i)
{
    uint64_t sequence =
        splitmix64_at(d->o->seed) + (uint64_t)d->first + (uint64_t)i;

    return (double)(splitmix64_at(splitmix64_at(sequence) + (uint64_t)d->at) >>
                    11) /
           9007199254740992.0;
}

static int32_t draw_one(const struct draw *d, size_t i)
{
    float *p = d->logits + i * (size_t)d->vocab, most = -INFINITY;
    double sum = 0, left;
    int32_t id = 0;

    for (int k = 0; k < d->o->settings->stops; k++)
        if (d->o->settings->stop[k] < d->vocab)
            p[d->o->settings->stop[k]] = -INFINITY;
    for (int64_t v = 0; v < d->vocab; v++)
        most = p[v] > most ? p[v] : most;
    for (int64_t v = 0; v < d->vocab; v++) {
        p[v] = expf(p[v] - most);
        sum += (double)p[v];
    }
    left = uniform(d, i) * sum;
    for (int64_t v = 0; v < d->vocab && left >= 0; v++) {
        if (p[v] > 0)
            id = (int32_t)v;
        left -= (double)p[v];
    }
    return id;
}

static void draw_some(void *ctx, size_t begin, size_t end)
{
    const struct draw *d = ctx;

    for (size_t i = begin; i < end; i++)
        d->ids[i] = draw_one(d, i);
}

/* The first tokens of n sequences. */
static void begin(struct draw *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        d->ids[i] = d->o->settings->first >= 0 ?
                        d->o->settings->first :
                        (int32_t)(uniform(d, (size_t)i) * (double)d->vocab);
}

/* The next tokens of n sequences, in place of theirs. */
static int draw_next(struct draw *d, int64_t n, struct err *e)
{
    const struct generate_settings *s = d->o->settings;
    const float *logits;

    if (generator_on_device(d->o->g)) {
        for (int64_t i = 0; i < n; i++)
            d->uniform[i] = uniform(d, (size_t)i);
        return generator_draw_each(d->o->g, d->ids, d->uniform, s->stop,
                                   s->stops, e);
    }
    if (generator_append_each(d->o->g, d->ids, &logits, e) < 0)
        return e->code;
    d->logits = (float *)(uintptr_t)logits;
    threads_for((size_t)n, 1, draw_some, d);
    return 0;
}

/* Sequences first..first+n-1, which are begun, into all[n, tokens]. */
static int write_some(const struct own *o, int64_t first, int64_t n,
                      int32_t *ids, int32_t *all, struct err *e)
{
    struct draw d = { .o = o,
                      .first = first,
                      .vocab = generator_config(o->g)->vocab_size,
                      .ids = ids };
    double room[GENERATE_MOST];

    d.uniform = room;

    begin(&d, n);
    while (true) {
        for (int64_t i = 0; i < n; i++)
            all[i * o->tokens + d.at] = ids[i];
        if (++d.at == o->tokens)
            return 0;
        if (draw_next(&d, n, e) < 0)
            return e->code;
    }
}

static int put(const struct own *o, int64_t number, const int32_t *ids,
               struct stream_writer *out, struct err *e)
{
    struct frame f = { .role = ROLE_TOKENS,
                       .dtype = DT_I32,
                       .ndim = 1,
                       .dims = { (uint64_t)o->tokens },
                       .sequence = (uint64_t)number + 1,
                       .data = ids,
                       .len = (size_t)o->tokens * sizeof(*ids) };

    snprintf(f.name, sizeof(f.name), "%lld", (long long)number);
    progress_step(o->progress, NULL, f.len);
    return stream_write(out, &f, e);
}

/* Begin n sequences; on a device fewer, where its memory is too small. */
static int64_t begin_some(const struct own *o, int64_t n, struct err *e)
{
    int rc = generator_begin_several(o->g, n, o->tokens, e);

    while (rc == E_TEMP && n > 1 && generator_on_device(o->g)) {
        n /= 2;
        rc = generator_begin_several(o->g, n, o->tokens, e);
    }
    return rc < 0 ? rc : n;
}

int own_write(const struct own *o, struct stream_writer *out, struct err *e)
{
    int64_t together = generator_on_device(o->g) ?
                           generator_together(o->g, o->tokens) :
                           (int64_t)TOGETHER;
    int32_t *ids = mem_alloc(
        (size_t)(together * (o->tokens + 1)) * sizeof(*ids), "tokens", e);
    int rc = ids ? 0 : e->code;

    for (int64_t at = 0, n; at < o->count && rc >= 0; at += n) {
        int32_t *all = ids + together;

        n = o->count - at < together ? o->count - at : together;
        n = begin_some(o, n, e);
        together = n > 0 ? n : together; /* more do not fit */
        rc = n < 0 ? (int)n : write_some(o, at, n, ids, all, e);
        for (int64_t i = 0; i < n && rc >= 0; i++)
            rc = put(o, at + i, all + i * o->tokens, out, e);
    }
    free(ids);
    return rc;
}
