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

/* ---- the convolution ---- */

struct job {
    const struct layer *l;
    const struct state *s;
    struct delta d;
    struct conv conv;
    struct place z, xbc, t; /* heads: v_heads, pieces, v_heads */
    float *states;          /* [v_heads, k_dim, v_dim] in a KV cache, or NULL */
    float *y; /* [rows, channels] x, B, C; then y silu(z) in place of x */
    void *out;
};

enum { PIECE = 64 }; /* channels at a time */

static int convolve(const void *ctx, int64_t sequence, int64_t piece,
                    struct err *e)
{
    const struct job *j = ctx;
    const struct conv *c = &j->conv;
    int64_t first = j->s->first[sequence], at = piece * PIECE;
    int64_t rows = j->s->first[sequence + 1] - first;
    struct conv_stream s = { .from = &j->xbc,
                             .head = piece,
                             .channel = at,
                             .n = c->channels - at < PIECE ? c->channels - at :
                                                             PIECE };

    s.window = scratch_thread((size_t)(c->kernel * s.n) * sizeof(float), e);
    if (!s.window)
        return e->code;
    for (int64_t r = 1 - c->kernel; r < rows; r++) {
        s.x = j->y + (first + (r < 0 ? 0 : r)) * c->channels + at;
        conv_next(c, &s, first, r);
    }
    conv_keep(c, &s, first, rows);
    return 0;
}

/* ---- the heads ---- */

/* Token `row` of a head, whose state is S. */
static void step(const struct job *j, int64_t row, int64_t head, float *S)
{
    const struct mamba_weights *w = j->l->mamba;
    const struct model *m = j->l->m;
    const struct delta *d = &j->d;
    int64_t n = d->v_dim, group = head / (d->v_heads / d->k_heads);
    float x[HEAD_DIM_MAX], z[HEAD_DIM_MAX], decay[HEAD_DIM_MAX];
    float *all = j->y + row * j->conv.channels, *y = all + head * n;
    float *b = all + d->v_heads * n + group * d->k_dim;
    float t = place_number(m, &j->t, row, head, 0);
    struct recurrence r = { .S = S,
                            .q = b + d->k_heads * d->k_dim,
                            .k = b,
                            .v = x,
                            .decay = decay,
                            .kd = d->k_dim,
                            .vd = n,
                            .o = y };

    t = model_rounded(m, t + w->shift[head]);
    t = model_rounded(m, t > 20 ? t : log1pf(expf(t)));
    r.beta = fminf(fmaxf(t, (float)d->step_min), (float)d->step_max);
    t = expf(-expf(w->decay[head]) * r.beta);
    for (int64_t i = 0; i < d->k_dim; i++)
        decay[i] = t;
    memcpy(x, y, (size_t)n * sizeof(*x));
    m->k->recur(&r);
    (void)!to_f32(z, place_at(m, &j->z, row, head), m->dtype, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        y[i] = (y[i] + w->skip[head] * x[i]) * (z[i] / (1 + expf(-z[i])));
}

static int run_head(const void *ctx, int64_t sequence, int64_t head,
                    struct err *e)
{
    const struct job *j = ctx;
    size_t state = (size_t)(j->d.k_dim * j->d.v_dim);
    float *S = j->states ? j->states + (size_t)head * state :
                           scratch_thread(state * sizeof(*S), e);

    if (!S)
        return e->code;
    if (!j->states)
        memset(S, 0, state * sizeof(*S));
    for (int64_t r = j->s->first[sequence]; r < j->s->first[sequence + 1]; r++)
        step(j, r, head, S);
    return 0;
}

/* ---- the norm ---- */

static void norm_rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct model *m = j->l->m;
    int64_t all = j->d.v_heads * j->d.v_dim, n = all / j->d.k_heads;

    for (int64_t i = (int64_t)begin * j->d.k_heads;
         i < (int64_t)end * j->d.k_heads; i++) {
        int64_t row = i / j->d.k_heads, at = i % j->d.k_heads * n;
        const float *w = j->l->mamba->norm + at;
        float *y = j->y + row * j->conv.channels + at, scale;
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

    if (product_into(&m->q, m, w, in, j->s->rows, "Mamba", e) < 0 ||
        buffer_reserve(&m->key, j->s->rows, j->conv.channels, sizeof(float),
                       "Mamba", e) < 0)
        return e->code;
    j->y = m->key.p;
    j->z = (struct place){ m->q.p, row, d->v_dim, 0 };
    j->xbc = (struct place){ m->q.p, row, PIECE, inner };
    j->t = (struct place){ m->q.p, row, 1, inner + j->conv.channels };
    return 0;
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
    if (project(&j, in, e) < 0 ||
        each_part(s, (j.conv.channels + PIECE - 1) / PIECE, convolve, &j, e) <
            0 ||
        each_part(s, d->v_heads, run_head, &j, e) < 0)
        return e->code;
    threads_for((size_t)s->rows, 8, norm_rows, &j);
    return 0;
}
