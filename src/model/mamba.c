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
        layer_vector_there(l, "mamba.conv1d.weight", channels * d->kernel,
                           &w->filter, e) < 0 ||
        (d->conv_bias && layer_vector_there(l, "mamba.conv1d.bias", channels,
                                            &w->bias, e) < 0) ||
        layer_vector_there(l, "mamba.A_log", d->v_heads, &w->decay, e) < 0 ||
        layer_vector_there(l, "mamba.dt_bias", d->v_heads, &w->shift, e) < 0 ||
        layer_vector_there(l, "mamba.D", d->v_heads, &w->skip, e) < 0)
        return e->code;
    return layer_vector_there(l, "mamba.norm.weight", inner, &w->norm, e);
}

void mamba_release(const struct model *m, struct mamba_weights *w)
{
    if (!w)
        return;
    model_free(m, w->filter);
    model_free(m, w->bias);
    model_free(m, w->decay);
    model_free(m, w->shift);
    model_free(m, w->skip);
    model_free(m, w->norm);
    free(w);
}

/* ---- the convolution, on the host ---- */

struct job {
    const struct model *m;
    const struct forward_recur *a;
    struct conv conv;
    struct forward_heads xbc, t; /* heads: pieces, v_heads */
    float *y; /* [rows, channels] x, B, C; then y silu(z) in place of x */
};

enum { PIECE = 64 }; /* channels at a time */

static int convolve(const void *ctx, int64_t sequence, int64_t piece,
                    struct err *e)
{
    const struct job *j = ctx;
    const struct conv *c = &j->conv;
    int64_t first = j->a->first[sequence], at = piece * PIECE;
    int64_t rows = j->a->first[sequence + 1] - first;
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

/* ---- the heads, on the host ---- */

/* Token `row` of a head, whose state is S. */
static void step(const struct job *j, int64_t row, int64_t head, float *S)
{
    const struct forward_recur *a = j->a;
    const struct model *m = j->m;
    const struct delta *d = &a->of;
    int64_t n = d->v_dim, each = d->v_heads / d->k_heads, group = head / each;
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

    t = model_rounded(m, t + a->shift[head]);
    t = model_rounded(m, t > 20 ? t : log1pf(expf(t)));
    r.beta = fminf(fmaxf(t, (float)d->step_min), (float)d->step_max);
    t = expf(-expf(a->decay[head]) * r.beta);
    for (int64_t i = 0; i < d->k_dim; i++)
        decay[i] = t;
    memcpy(x, y, (size_t)n * sizeof(*x));
    m->k->recur(&r);
    (void)!to_f32(z,
                  (const char *)place_at(m, &a->z, row, group) +
                      (size_t)(head % each * n) * m->size,
                  m->dtype, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        y[i] = (y[i] + a->skip[head] * x[i]) * (z[i] / (1 + expf(-z[i])));
}

static int run_head(const void *ctx, int64_t sequence, int64_t head,
                    struct err *e)
{
    const struct job *j = ctx;
    const struct forward_recur *a = j->a;
    size_t state = (size_t)(a->of.k_dim * a->of.v_dim);
    float *S = a->states ? a->states + (size_t)head * state :
                           scratch_thread(state * sizeof(*S), e);

    if (!S)
        return e->code;
    if (!a->states)
        memset(S, 0, state * sizeof(*S));
    for (int64_t r = a->first[sequence]; r < a->first[sequence + 1]; r++)
        step(j, r, head, S);
    return 0;
}

/* ---- the norm, on the host ---- */

static void norm_rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;
    const struct model *m = j->m;
    const struct delta *d = &j->a->of;
    int64_t all = d->v_heads * d->v_dim, n = all / d->k_heads;

    for (int64_t i = (int64_t)begin * d->k_heads; i < (int64_t)end * d->k_heads;
         i++) {
        int64_t row = i / d->k_heads, at = i % d->k_heads * n;
        const float *w = j->a->norm + at;
        float *y = j->y + row * j->conv.channels + at, scale;
        double sum = 0;

        for (int64_t k = 0; k < n; k++)
            sum += (double)y[k] * (double)y[k];
        scale = (float)(1 / sqrt(sum / (double)n + j->a->eps));
        for (int64_t k = 0; k < n; k++)
            y[k] *= scale * w[k];
        if (m->bf16)
            m->k->store_bf16(y, NULL, n, (uint16_t *)j->a->out + i * n);
        else
            m->k->store_f32(y, NULL, n, (float *)j->a->out + i * n);
    }
}

int mamba_heads(const struct model *m, const struct forward_recur *a,
                struct buffer *work, struct err *e)
{
    const struct delta *d = &a->of;
    struct job j = { .m = m,
                     .a = a,
                     .conv = { .m = m,
                               .filter = a->filter,
                               .bias = a->bias,
                               .kernel = d->kernel,
                               .channels = d->v_heads * d->v_dim +
                                           2 * d->k_heads * d->k_dim,
                               .old = a->old },
                     .xbc = { a->v.p, a->v.row, PIECE },
                     .t = { a->a.p, a->a.row, 1 } };

    if (buffer_reserve(work, a->rows, j.conv.channels, sizeof(float), "Mamba",
                       e) < 0)
        return e->code;
    j.y = work->p;
    if (each_part(a->n_sequences, (j.conv.channels + PIECE - 1) / PIECE,
                  convolve, &j, e) < 0 ||
        each_part(a->n_sequences, d->v_heads, run_head, &j, e) < 0)
        return e->code;
    threads_for((size_t)a->rows, 8, norm_rows, &j);
    return 0;
}

/* ---- the whole ---- */

/* Where in_proj's outputs are: z, x, B, C, t. */
static void find_heads(const struct model *m, int64_t row,
                       struct forward_recur *a)
{
    const struct delta *d = &a->of;
    int64_t each = d->v_heads / d->k_heads, inner = d->v_heads * d->v_dim;
    int64_t at[] = { 0, inner, 2 * inner, 2 * inner + d->k_heads * d->k_dim,
                     2 * (inner + d->k_heads * d->k_dim) };
    int64_t head[] = { each * d->v_dim, each * d->v_dim, d->k_dim, d->k_dim,
                       each };
    struct forward_heads *to[] = { &a->z, &a->v, &a->k, &a->q, &a->a };

    for (size_t i = 0; i < ARRAY_LEN(to); i++)
        *to[i] =
            (struct forward_heads){ (char *)m->q.p + (size_t)at[i] * m->size,
                                    row, head[i] };
}

int mamba_run(struct layer *l, const struct state *s, const void *in, void *out,
              struct err *e)
{
    const struct mamba_weights *w = l->mamba;
    const struct loaded *mix = &l->part[PART_MIX];
    struct model *m = l->m;
    struct forward_recur a = delta_call(l, s, out);

    a.filter = w->filter;
    a.bias = w->bias;
    a.decay = w->decay;
    a.shift = w->shift;
    a.skip = w->skip;
    a.norm = w->norm;
    if (product_into(&m->q, m, mix, in, s->rows, "Mamba", e) < 0)
        return e->code;
    find_heads(m, mix->of.rows, &a);
    return m->on ? m->on->recur(m->context, &a, e) :
                   mamba_heads(m, &a, &m->key, e);
}
