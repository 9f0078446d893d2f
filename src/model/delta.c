/* delta.c - see delta.h. */
#include "model/delta.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/short_conv.h"

struct delta_weights {
    struct loaded gates[2]; /* B and A, or both in one: B's of a key head, then
                             * A's */
    /* DELTA_CHANNELS: A = pairs[1] pairs[0], z = pairs[3] pairs[2] x */
    struct loaded pairs[4];
    float *filter;        /* [channels, kernel] */
    float *decay, *shift; /* [v_heads]: A_log, dt_bias */
    float *norm;          /* [v_dim] */
};

static int64_t channels_of(const struct delta *d)
{
    return 2 * d->k_heads * d->k_dim + d->v_heads * d->v_dim;
}

static int64_t state_size(const struct delta *d)
{
    return d->v_heads * d->k_dim * d->v_dim;
}

int64_t delta_cached(const struct delta *d)
{
    return state_size(d) + (d->kernel - 1) * channels_of(d);
}

/* ---- loading ---- */

/* The filters of q, k and v are tensors of their own. */
static int load_filters(struct layer *l, struct delta_weights *w, struct err *e)
{
    static const char *const names[] = { "q", "k", "v" };
    const struct delta *d = &l->m->config.delta;
    int64_t n = d->k_heads * d->k_dim * d->kernel;

    w->filter = mem_alloc(3 * (size_t)n * sizeof(*w->filter), "filters", e);
    for (size_t i = 0; w->filter && i < ARRAY_LEN(names); i++) {
        char name[64];
        float *v = NULL;

        snprintf(name, sizeof(name), "self_attn.%s_conv1d.weight", names[i]);
        if (layer_vector(l, name, n, &v, e) < 0) {
            free(w->filter);
            w->filter = NULL;
            return e->code;
        }
        memcpy(w->filter + (int64_t)i * n, v, (size_t)n * sizeof(*v));
        free(v);
    }
    return !w->filter ? e->code :
                        model_place(l->m, (void **)&w->filter,
                                    3 * (size_t)n * sizeof(float), e);
}

/* Kimi Delta Attention. */
static int load_channels(struct layer *l, struct delta_weights *w,
                         struct err *e)
{
    static const char *const names[] = { "f_a", "f_b", "g_a", "g_b" };
    const struct delta *d = &l->m->config.delta;
    int64_t h = l->m->config.hidden_size, all = d->k_heads * d->k_dim;

    if (load_filters(l, w, e) < 0 ||
        layer_vector_there(l, "self_attn.A_log", d->k_heads, &w->decay, e) <
            0 ||
        layer_vector_there(l, "self_attn.dt_bias", all, &w->shift, e) < 0 ||
        layer_vector_there(l, "self_attn.o_norm.weight", d->v_dim, &w->norm,
                           e) < 0)
        return e->code;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        bool second = i % 2;
        char name[64];

        snprintf(name, sizeof(name), "self_attn.%s_proj", names[i]);
        if (layer_linear(l, name, second ? all : d->k_dim,
                         second ? d->k_dim : h, &w->pairs[i], e) < 0)
            return e->code;
    }
    return layer_linear(l, "self_attn.b_proj", d->k_heads, h, &w->gates[0], e);
}

int delta_load(struct layer *l, struct err *e)
{
    const struct delta *d = &l->m->config.delta;
    int64_t h = l->m->config.hidden_size;
    struct delta_weights *w = mem_zero(1, sizeof(*w), "linear attention", e);

    l->delta = w;
    if (w && l->m->config.family->delta == DELTA_CHANNELS)
        return load_channels(l, w, e);
    if (!w ||
        layer_vector_there(l, "linear_attn.conv1d.weight",
                           channels_of(d) * d->kernel, &w->filter, e) < 0 ||
        layer_vector_there(l, "linear_attn.A_log", d->v_heads, &w->decay, e) <
            0 ||
        layer_vector_there(l, "linear_attn.dt_bias", d->v_heads, &w->shift, e) <
            0 ||
        layer_vector_there(l, "linear_attn.norm.weight", d->v_dim, &w->norm,
                           e) < 0)
        return e->code;
    if (l->m->config.family->delta == DELTA_FUSED)
        return layer_linear(l, "linear_attn.in_proj_ba", 2 * d->v_heads, h,
                            &w->gates[0], e);
    return layer_linear(l, "linear_attn.in_proj_b", d->v_heads, h, &w->gates[0],
                        e) < 0 ?
               e->code :
               layer_linear(l, "linear_attn.in_proj_a", d->v_heads, h,
                            &w->gates[1], e);
}

void delta_release(const struct model *m, struct delta_weights *w)
{
    if (!w)
        return;
    loaded_release(&w->gates[0]);
    loaded_release(&w->gates[1]);
    for (size_t i = 0; i < ARRAY_LEN(w->pairs); i++)
        loaded_release(&w->pairs[i]);
    model_free(m, w->filter);
    model_free(m, w->decay);
    model_free(m, w->shift);
    model_free(m, w->norm);
    free(w);
}

/* ---- the heads, on the host ---- */

struct job {
    const struct model *m;
    const struct forward_recur *a;
    struct conv conv;
};

/* x[n] *= scale / sqrt(x x + 1e-6) */
static void normalize(float *x, int64_t n, float scale)
{
    float sum = 1e-6f;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    scale /= sqrtf(sum);
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale;
}

/* Output of value head v of a token: RMSNorm(o) silu(z). */
static void put_out(const struct job *j, int64_t row, int64_t v, const void *z,
                    float *o)
{
    const struct model *m = j->m;
    const float *w = j->a->norm;
    int64_t n = j->a->of.v_dim, to = (row * j->a->of.v_heads + v) * n;
    bool channels = j->a->form == DELTA_CHANNELS;
    float gate[HEAD_DIM_MAX], sum = 0, scale;

    (void)!to_f32(gate, z, m->dtype, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        o[i] = model_rounded(m, o[i]);
        sum += o[i] * o[i];
    }
    scale = 1 / sqrtf(sum / (float)n + (float)j->a->eps);
    for (int64_t i = 0; i < n && channels; i++)
        o[i] *= scale * w[i] / (1 + expf(-gate[i]));
    for (int64_t i = 0; i < n && !channels; i++)
        o[i] = model_rounded(m, model_rounded(m, o[i] * scale) * w[i]) *
               (gate[i] / (1 + expf(-gate[i])));
    if (m->bf16)
        m->k->store_bf16(o, NULL, n, (uint16_t *)j->a->out + to);
    else
        m->k->store_f32(o, NULL, n, (float *)j->a->out + to);
}

/* decay[k_dim] of value head i of a key head: exp(-exp(A_log) softplus(a)), one for
 * all dims, or one of each. */
static void find_decay(const struct job *j, int64_t row, int64_t head,
                       int64_t i, float *decay)
{
    const struct delta *d = &j->a->of;
    const struct model *m = j->m;
    bool each = j->a->form == DELTA_CHANNELS;
    int64_t h = head * (d->v_heads / d->k_heads) + i, n = each ? d->k_dim : 1;
    const char *a = place_at(m, &j->a->a, row, head);
    float rate = -expf(j->a->decay[h]);

    (void)!to_f32(decay, a + (size_t)i * m->size, m->dtype, (size_t)n);
    for (int64_t k = 0; k < n; k++) {
        float x = decay[k] + j->a->shift[h * n + k];

        decay[k] = expf(rate * (x > 20 ? x : log1pf(expf(x))));
    }
    for (int64_t k = n; k < d->k_dim; k++)
        decay[k] = decay[0];
}

/* One token of all value heads of key head `head`, whose states are in S. */
static void step(const struct job *j, int64_t row, int64_t head, float *q,
                 float *k, const float *v, float *S)
{
    const struct model *m = j->m;
    const struct delta *d = &j->a->of;
    int64_t each = d->v_heads / d->k_heads;

    normalize(q, d->k_dim, 1 / sqrtf((float)d->k_dim));
    normalize(k, d->k_dim, 1);
    for (int64_t i = 0; i < each; i++) {
        int64_t h = head * each + i;
        float b = place_number(m, &j->a->b, row, head, i);
        float o[HEAD_DIM_MAX], decay[HEAD_DIM_MAX];
        struct recurrence r = { .S = S + i * d->k_dim * d->v_dim,
                                .q = q,
                                .k = k,
                                .v = v + i * d->v_dim,
                                .decay = decay,
                                .beta = model_rounded(m, 1 / (1 + expf(-b))),
                                .delta = true,
                                .kd = d->k_dim,
                                .vd = d->v_dim,
                                .o = o };

        find_decay(j, row, head, i, decay);
        m->k->recur(&r);
        put_out(j, row, h,
                (const char *)place_at(m, &j->a->z, row, head) +
                    (size_t)(i * d->v_dim) * m->size,
                o);
    }
}

/* A sequence's part of one key head. */
static int run_head(const void *ctx, int64_t sequence, int64_t head,
                    struct err *e)
{
    const struct job *j = ctx;
    const struct forward_recur *a = j->a;
    const struct delta *d = &a->of;
    int64_t each = d->v_heads / d->k_heads, kd = d->k_dim, vd = each * d->v_dim;
    int64_t first = a->first[sequence], keys = d->k_heads * kd;
    int64_t rows = a->first[sequence + 1] - first, kernel = d->kernel;
    float *room = scratch_thread(
        (size_t)((kernel + 1) * (2 * kd + vd) + kd * vd) * sizeof(*room), e);
    struct conv_stream s[3] = {
        { &a->q, head, head * kd, kd, NULL, NULL },
        { &a->k, head, keys + head * kd, kd, NULL, NULL },
        { &a->v, head, 2 * keys + head * vd, vd, NULL, NULL },
    };
    float *S = a->states ? a->states + head * kd * vd : NULL;

    if (!room)
        return e->code;
    for (int i = 0; i < 3; i++) {
        s[i].window = room;
        s[i].x = room + kernel * s[i].n;
        room = s[i].x + s[i].n;
    }
    if (!S)
        S = memset(room, 0, (size_t)(kd * vd) * sizeof(*S));
    for (int64_t r = 1 - kernel; r < rows; r++) {
        for (int i = 0; i < 3; i++)
            conv_next(&j->conv, &s[i], first, r);
        if (r >= 0)
            step(j, first + r, head, s[0].x, s[1].x, s[2].x, S);
    }
    for (int i = 0; i < 3; i++)
        conv_keep(&j->conv, &s[i], first, rows);
    return 0;
}

int delta_heads(const struct model *m, const struct forward_recur *a,
                struct err *e)
{
    struct job j = { .m = m,
                     .a = a,
                     .conv = { .m = m,
                               .filter = a->filter,
                               .bias = a->bias,
                               .kernel = a->of.kernel,
                               .channels = channels_of(&a->of),
                               .old = a->old } };

    return each_part(a->n_sequences, a->of.k_heads, run_head, &j, e);
}

/* ---- the linears ---- */

/* What is done to a batch. */
struct mixing {
    struct layer *l;
    const struct state *s;
    const void *in; /* [rows, H] */
    struct forward_recur a;
};

static int multiply(const struct mixing *x, const struct loaded *w,
                    const void *in, struct buffer *to, struct err *e)
{
    return product_into(to, x->l->m, w, in, x->s->rows, "linear attention", e);
}

/* Heads from element `at` of rows of p on. */
static struct forward_heads heads_at(const struct model *m,
                                     const struct buffer *b, int64_t row,
                                     int64_t head, int64_t at)
{
    return (struct forward_heads){ (char *)b->p + (size_t)at * m->size, row,
                                   head };
}

/* One linear for q, k, v, z, and one for b, a, each by key heads. */
static void find_fused(struct mixing *x)
{
    const struct model *m = x->l->m;
    const struct delta *d = &x->a.of;
    int64_t each = d->v_heads / d->k_heads, vd = each * d->v_dim;
    int64_t head = 2 * (d->k_dim + vd), row = head * d->k_heads;

    x->a.q = heads_at(m, &m->q, row, head, 0);
    x->a.k = heads_at(m, &m->q, row, head, d->k_dim);
    x->a.v = heads_at(m, &m->q, row, head, 2 * d->k_dim);
    x->a.z = heads_at(m, &m->q, row, head, 2 * d->k_dim + vd);
    x->a.b = heads_at(m, &m->key, 2 * d->v_heads, 2 * each, 0);
    x->a.a = heads_at(m, &m->key, 2 * d->v_heads, 2 * each, each);
}

static void find_split(struct mixing *x)
{
    const struct model *m = x->l->m;
    const struct delta *d = &x->a.of;
    int64_t each = d->v_heads / d->k_heads, vd = each * d->v_dim;
    int64_t keys = d->k_heads * d->k_dim, row = channels_of(d);

    x->a.q = heads_at(m, &m->q, row, d->k_dim, 0);
    x->a.k = heads_at(m, &m->q, row, d->k_dim, keys);
    x->a.v = heads_at(m, &m->q, row, vd, 2 * keys);
    x->a.z = heads_at(m, &m->value, d->v_heads * d->v_dim, vd, 0);
    x->a.b = heads_at(m, &m->key, d->v_heads, each, 0);
    x->a.a = heads_at(m, &m->latent, d->v_heads, each, 0);
}

/* DELTA_CHANNELS: a and z by way of k_dim numbers. */
static int project_channels(struct mixing *x, struct err *e)
{
    struct model *m = x->l->m;
    const struct delta_weights *w = x->l->delta;
    struct buffer *to[] = { &m->q, &m->key, &m->value };
    struct buffer *wide[] = { &m->keys, &m->values };
    struct forward_heads *of[] = { &x->a.q, &x->a.k, &x->a.v };
    struct forward_heads *gate[] = { &x->a.a, &x->a.z };
    int64_t n = x->a.of.k_dim, row = x->a.of.k_heads * n;

    for (int i = 0; i < 3; i++) {
        if (multiply(x, &x->l->part[PART_Q + i], x->in, to[i], e) < 0)
            return e->code;
        *of[i] = heads_at(m, to[i], row, n, 0);
    }
    for (int i = 0; i < 2; i++) {
        if (multiply(x, &w->pairs[2 * i], x->in, &m->latent, e) < 0 ||
            multiply(x, &w->pairs[2 * i + 1], m->latent.p, wide[i], e) < 0)
            return e->code;
        *gate[i] = heads_at(m, wide[i], row, n, 0);
    }
    if (multiply(x, &w->gates[0], x->in, &m->latent, e) < 0)
        return e->code;
    x->a.b = heads_at(m, &m->latent, x->a.of.k_heads, 1, 0);
    return 0;
}

static int project(struct mixing *x, struct err *e)
{
    struct model *m = x->l->m;
    const struct layer *l = x->l;

    if (x->a.form == DELTA_CHANNELS)
        return project_channels(x, e);
    if (multiply(x, &l->part[PART_MIX], x->in, &m->q, e) < 0 ||
        multiply(x, &l->delta->gates[0], x->in, &m->key, e) < 0)
        return e->code;
    if (x->a.form == DELTA_FUSED) {
        find_fused(x);
        return 0;
    }
    if (multiply(x, &l->part[PART_Z], x->in, &m->value, e) < 0 ||
        multiply(x, &l->delta->gates[1], x->in, &m->latent, e) < 0)
        return e->code;
    find_split(x);
    return 0;
}

/* ---- the whole ---- */

struct forward_recur delta_call(const struct layer *l, const struct state *s,
                                void *out)
{
    const struct model_config *c = &l->m->config;
    struct forward_recur a = { .dtype = l->m->dtype,
                               .form = c->family->delta,
                               .of = c->delta,
                               .eps = c->rms_eps,
                               .rows = s->rows,
                               .n_sequences = s->n_sequences,
                               .first = s->first,
                               .out = out };

    if (s->cache) {
        a.states =
            (float *)s->cache->delta.p + l->index * delta_cached(&c->delta);
        a.old = a.states + state_size(&c->delta);
    }
    return a;
}

int delta_run(struct layer *l, const struct state *s, const void *in, void *out,
              struct err *e)
{
    const struct delta_weights *w = l->delta;
    struct mixing x = { .l = l, .s = s, .in = in, .a = delta_call(l, s, out) };

    x.a.filter = w->filter;
    x.a.decay = w->decay;
    x.a.shift = w->shift;
    x.a.norm = w->norm;
    if (project(&x, e) < 0)
        return e->code;
    return l->m->on ? l->m->on->recur(l->m->context, &x.a, e) :
                      delta_heads(l->m, &x.a, e);
}
