/* mamba.c - see mamba.h. */
#include "model/mamba.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "model/delta.h"
#include "model/short_conv.h"

struct mamba_weights {
    float *filter, *bias;        /* [channels, kernel]; [channels], or NULL */
    float *decay, *shift, *skip; /* [v_heads]: A_log, dt_bias, D */
    float *norm;                 /* [v_heads * v_dim] */
};

/* ---- loading ---- */

int mamba_load(struct layer *l, struct err *e)
{
    const struct delta *d = &l->m->config.delta;
    int64_t inner = d->v_heads * d->v_dim;
    int64_t channels = inner + 2 * d->k_heads * d->k_dim;
    struct mamba_weights *w = mem_zero(1, sizeof(*w), "Mamba", e);

    l->mamba = w;
    if (!w ||
        layer_vector(l, "mamba.conv1d.weight", channels * d->kernel, &w->filter,
                     e) < 0 ||
        (d->conv_bias &&
         layer_vector(l, "mamba.conv1d.bias", channels, &w->bias, e) < 0) ||
        layer_vector(l, "mamba.A_log", d->v_heads, &w->decay, e) < 0 ||
        layer_vector(l, "mamba.dt_bias", d->v_heads, &w->shift, e) < 0 ||
        layer_vector(l, "mamba.D", d->v_heads, &w->skip, e) < 0)
        return e->code;
    return layer_vector(l, "mamba.norm.weight", inner, &w->norm, e);
}

void mamba_release(struct mamba_weights *w)
{
    if (!w)
        return;
    free(w->filter);
    free(w->bias);
    free(w->decay);
    free(w->shift);
    free(w->skip);
    free(w->norm);
    free(w);
}

/* ---- the heads ---- */

struct job {
    const struct layer *l;
    const struct state *s;
    struct delta d;
    struct conv conv;
    struct place z, x, b, c, t; /* heads: those of x, or groups */
    float *states;              /* [v_heads, k_dim, v_dim] in a KV cache, or
                                 * NULL */
    float *y;                   /* [rows, v_heads * v_dim] y silu(z) */
    void *out;
    struct threads_error error;
};

/* Where the step, the decay and the state of a head go. */
struct head {
    int64_t number;
    float *decay, *S; /* [k_dim], [k_dim, v_dim] */
};

/* Token `row` of a head; s: x, B, C. */
static void step(const struct job *j, const struct head *h, int64_t row,
                 const struct conv_stream *s)
{
    const struct mamba_weights *w = j->l->mamba;
    const struct model *m = j->l->m;
    const struct delta *d = &j->d;
    int64_t n = d->v_dim;
    float t = place_number(m, &j->t, row, h->number, 0), z[HEAD_DIM_MAX];
    float *y = j->y + (row * d->v_heads + h->number) * n;
    struct recurrence r = { .S = h->S,
                            .q = s[2].x,
                            .k = s[1].x,
                            .v = s[0].x,
                            .decay = h->decay,
                            .kd = d->k_dim,
                            .vd = n,
                            .o = y };

    t = model_rounded(m, t + w->shift[h->number]);
    t = model_rounded(m, t > 20 ? t : log1pf(expf(t)));
    r.beta = fminf(fmaxf(t, (float)d->step_min), (float)d->step_max);
    t = expf(-expf(w->decay[h->number]) * r.beta);
    for (int64_t i = 0; i < d->k_dim; i++)
        h->decay[i] = t;
    m->k->recur(&r);
    (void)!to_f32(z, place_at(m, &j->z, row, h->number), m->dtype, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        y[i] = (y[i] + w->skip[h->number] * s[0].x[i]) *
               (z[i] / (1 + expf(-z[i])));
}

static void streams_of(const struct job *j, int64_t head, float *room,
                       struct conv_stream s[3])
{
    const struct delta *d = &j->d;
    int64_t group = head / (d->v_heads / d->k_heads), inner;

    inner = d->v_heads * d->v_dim;
    s[0] = (struct conv_stream){
        .from = &j->x, .head = head, .channel = head * d->v_dim, .n = d->v_dim
    };
    for (int i = 1; i < 3; i++)
        s[i] = (struct conv_stream){
            .from = i == 1 ? &j->b : &j->c,
            .head = group,
            .channel = inner + ((i - 1) * d->k_heads + group) * d->k_dim,
            .n = d->k_dim
        };
    for (int i = 0; i < 3; i++) {
        s[i].window = room;
        s[i].x = room + d->kernel * s[i].n;
        room = s[i].x + s[i].n;
    }
}

/* A sequence's part of one head. */
static int run_head(const struct job *j, int64_t sequence, int64_t head,
                    struct err *e)
{
    const struct delta *d = &j->d;
    int64_t first = j->s->first[sequence], state = d->k_dim * d->v_dim;
    int64_t rows = j->s->first[sequence + 1] - first;
    int64_t windows = (d->kernel + 1) * (2 * d->k_dim + d->v_dim);
    float *room =
        scratch_thread((size_t)(windows + d->k_dim + state) * sizeof(*room), e);
    struct head h = { .number = head };
    struct conv_stream s[3];

    if (!room)
        return e->code;
    streams_of(j, head, room, s);
    h.decay = room + windows;
    h.S = j->states ?
              j->states + head * state :
              memset(h.decay + d->k_dim, 0, (size_t)state * sizeof(*h.S));
    for (int64_t r = 1 - d->kernel; r < rows; r++) {
        for (int i = 0; i < 3; i++)
            conv_next(&j->conv, &s[i], first, r);
        if (r >= 0)
            step(j, &h, first + r, s);
    }
    return 0;
}

static void run_heads(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;

    for (size_t t = begin; t < end; t++) {
        struct err e;

        if (run_head(j, (int64_t)t / j->d.v_heads, (int64_t)t % j->d.v_heads,
                     &e) < 0)
            threads_error_add(&j->error, t, &e);
    }
}

/* Keep the last inputs of all channels: after all heads, which share B and C. */
static void keep(const struct job *j)
{
    const struct delta *d = &j->d;
    float none[1];

    for (int64_t head = 0; head < d->v_heads; head++) {
        bool first = head % (d->v_heads / d->k_heads) == 0;
        struct conv_stream s[3];

        streams_of(j, head, none, s);
        for (int i = 0; i < (first ? 3 : 1); i++)
            conv_keep(&j->conv, &s[i], 0, j->s->rows);
    }
}

/* ---- the norm ---- */

static void norm_rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct model *m = j->l->m;
    int64_t all = j->d.v_heads * j->d.v_dim, n = all / j->d.k_heads;

    for (int64_t i = (int64_t)begin * j->d.k_heads;
         i < (int64_t)end * j->d.k_heads; i++) {
        const float *w = j->l->mamba->norm + i % j->d.k_heads * n;
        float *y = j->y + i * n, scale;
        double sum = 0;

        for (int64_t k = 0; k < n; k++)
            sum += (double)y[k] * (double)y[k];
        scale = (float)(1 / sqrt(sum / (double)n + m->config.rms_eps));
        for (int64_t k = 0; k < n; k++)
            y[k] *= scale * w[k];
        if (m->bf16)
            m->k->store_bf16(y, NULL, n, (uint16_t *)j->out + i * n);
        else
            m->k->store_f32(y, NULL, n, (float *)j->out + i * n);
    }
}

/* ---- the whole ---- */

/* in_proj's outputs: z, x, B, C, t. */
static int project(struct job *j, const void *in, struct err *e)
{
    struct model *m = j->l->m;
    const struct loaded *w = &j->l->part[PART_MIX];
    const struct delta *d = &j->d;
    int64_t row = w->of.rows, inner = d->v_heads * d->v_dim;
    int64_t keys = d->k_heads * d->k_dim;
    struct product p = { .m = m, .first = w, .x = in, .rows = j->s->rows };

    if (buffer_reserve(&m->q, j->s->rows, row, m->size, "Mamba", e) < 0 ||
        buffer_reserve(&m->key, j->s->rows, inner, sizeof(float), "Mamba", e) <
            0)
        return e->code;
    p.out = m->q.p;
    j->y = m->key.p;
    j->z = (struct place){ m->q.p, row, d->v_dim, 0 };
    j->x = (struct place){ m->q.p, row, d->v_dim, inner };
    j->b = (struct place){ m->q.p, row, d->k_dim, 2 * inner };
    j->c = (struct place){ m->q.p, row, d->k_dim, 2 * inner + keys };
    j->t = (struct place){ m->q.p, row, 1, 2 * (inner + keys) };
    return product_run(&p, e);
}

int mamba_run(struct layer *l, const struct state *s, const void *in, void *out,
              struct err *e)
{
    struct job j = { .l = l, .s = s, .d = l->m->config.delta, .out = out };
    const struct delta *d = &j.d;

    j.conv = (struct conv){ .m = l->m,
                            .filter = l->mamba->filter,
                            .bias = l->mamba->bias,
                            .kernel = d->kernel,
                            .channels = d->v_heads * d->v_dim +
                                        2 * d->k_heads * d->k_dim };
    if (s->cache) {
        j.states = (float *)s->cache->delta.p + l->index * delta_cached(d);
        j.conv.old = j.states + d->v_heads * d->k_dim * d->v_dim;
    }
    if (project(&j, in, e) < 0)
        return e->code;
    threads_error_init(&j.error);
    threads_for((size_t)(s->n_sequences * d->v_heads), 1, run_heads, &j);
    if (threads_error_take(&j.error, e) < 0)
        return e->code;
    if (s->cache)
        keep(&j);
    threads_for((size_t)s->rows, 8, norm_rows, &j);
    return 0;
}
