/* short_conv.c - see short_conv.h. */
#include "model/short_conv.h"

#include <math.h>
#include <string.h>

#include "common/math/threads.h"

const void *place_at(const struct model *m, const struct forward_heads *p,
                     int64_t row, int64_t head)
{
    return (const char *)p->p +
           (size_t)(row * p->row + head * p->head) * m->size;
}

float place_number(const struct model *m, const struct forward_heads *p,
                   int64_t row, int64_t head, int64_t i)
{
    float x = 0;

    (void)!to_f32(&x,
                  (const char *)place_at(m, p, row, head) + (size_t)i * m->size,
                  m->dtype, 1);
    return x;
}

float model_rounded(const struct model *m, float x)
{
    return m->bf16 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

/* to[s->n] = inputs of token `row`; row < 0: of the cache, or zero. */
static void read_inputs(const struct conv *c, const struct conv_stream *s,
                        int64_t first, int64_t row, float *to)
{
    int64_t at = c->kernel - 1 + row;

    if (row >= 0)
        (void)!to_f32(to, place_at(c->m, s->from, first + row, s->head),
                      c->m->dtype, (size_t)s->n);
    else if (c->old)
        memcpy(to, c->old + at * c->channels + s->channel,
               (size_t)s->n * sizeof(*to));
    else
        memset(to, 0, (size_t)s->n * sizeof(*to));
}

static void convolve(const struct conv *c, const struct conv_stream *s,
                     int64_t row)
{
    int64_t kernel = c->kernel;
    float *to = s->x;

    memset(to, 0, (size_t)s->n * sizeof(*to));
    for (int64_t i = 0; i < kernel; i++) {
        const float *w = c->filter + s->channel * kernel + i;
        const float *x = s->window + (row + 1 + i) % kernel * s->n;

        for (int64_t k = 0; k < s->n; k++)
            to[k] += w[k * kernel] * x[k];
    }
    for (int64_t k = 0; k < s->n; k++) {
        float sum = to[k] + (c->bias ? c->bias[s->channel + k] : 0);

        sum = model_rounded(c->m, sum);
        to[k] = model_rounded(c->m, sum / (1 + expf(-sum)));
    }
}

void conv_next(const struct conv *c, struct conv_stream *s, int64_t first,
               int64_t row)
{
    read_inputs(c, s, first, row,
                s->window + (row + c->kernel) % c->kernel * s->n);
    if (row >= 0)
        convolve(c, s, row);
}

/* In ascending order: what a token's inputs overwrite is older than all that is
 * still to be read. */
void conv_keep(const struct conv *c, const struct conv_stream *s, int64_t first,
               int64_t rows)
{
    for (int64_t i = 0; c->old && i < c->kernel - 1; i++)
        read_inputs(c, s, first, rows - c->kernel + 1 + i,
                    c->old + i * c->channels + s->channel);
}

struct parts {
    int64_t n; /* of a sequence */
    int (*run)(const void *ctx, int64_t sequence, int64_t i, struct err *e);
    const void *ctx;
    struct threads_error error;
};

static void run_parts(void *ctx, size_t begin, size_t end)
{
    struct parts *p = ctx;

    for (size_t t = begin; t < end; t++) {
        struct err e;

        if (p->run(p->ctx, (int64_t)t / p->n, (int64_t)t % p->n, &e) < 0)
            threads_error_add(&p->error, t, &e);
    }
}

int each_part(int64_t sequences, int64_t n,
              int (*part)(const void *ctx, int64_t sequence, int64_t i,
                          struct err *e),
              const void *ctx, struct err *e)
{
    struct parts p = { .n = n, .run = part, .ctx = ctx };

    threads_error_init(&p.error);
    threads_for((size_t)(sequences * n), 1, run_parts, &p);
    return threads_error_take(&p.error, e);
}
