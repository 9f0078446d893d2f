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
        if (layer_vector(l, name, n, &v, e) < 0)
            return e->code;
        memcpy(w->filter + (int64_t)i * n, v, (size_t)n * sizeof(*v));
        free(v);
    }
    return w->filter ? 0 : e->code;
}

/* Kimi Delta Attention. */
static int load_channels(struct layer *l, struct delta_weights *w,
                         struct err *e)
{
    static const char *const names[] = { "f_a", "f_b", "g_a", "g_b" };
    const struct delta *d = &l->m->config.delta;
    int64_t h = l->m->config.hidden_size, all = d->k_heads * d->k_dim;

    if (load_filters(l, w, e) < 0 ||
        layer_vector(l, "self_attn.A_log", d->k_heads, &w->decay, e) < 0 ||
        layer_vector(l, "self_attn.dt_bias", all, &w->shift, e) < 0 ||
        layer_vector(l, "self_attn.o_norm.weight", d->v_dim, &w->norm, e) < 0)
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
        layer_vector(l, "linear_attn.conv1d.weight", channels_of(d) * d->kernel,
                     &w->filter, e) < 0 ||
        layer_vector(l, "linear_attn.A_log", d->v_heads, &w->decay, e) < 0 ||
        layer_vector(l, "linear_attn.dt_bias", d->v_heads, &w->shift, e) < 0 ||
        layer_vector(l, "linear_attn.norm.weight", d->v_dim, &w->norm, e) < 0)
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

void delta_release(struct delta_weights *w)
{
    if (!w)
        return;
    loaded_release(&w->gates[0]);
    loaded_release(&w->gates[1]);
    for (size_t i = 0; i < ARRAY_LEN(w->pairs); i++)
        loaded_release(&w->pairs[i]);
    free(w->filter);
    free(w->decay);
    free(w->shift);
    free(w->norm);
    free(w);
}

/* ---- running ---- */

struct job {
    const struct layer *l;
    const struct state *s;
    struct delta d;
    struct conv conv;
    struct place q, k, v, z, b, a; /* heads: key heads */
    const void *in;                /* [rows, H] */
    float *cache; /* this layer's part of the KV cache, or NULL */
    void *out;
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
    const struct model *m = j->l->m;
    int64_t n = j->d.v_dim, to = (row * j->d.v_heads + v) * n;
    float gate[HEAD_DIM_MAX], sum = 0, scale;

    (void)!to_f32(gate, z, m->dtype, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        o[i] = model_rounded(j->l->m, o[i]);
        sum += o[i] * o[i];
    }
    scale = 1 / sqrtf(sum / (float)n + (float)m->config.rms_eps);
    for (int64_t i = 0; i < n && m->config.family->delta == DELTA_CHANNELS; i++)
        o[i] *= scale * j->l->delta->norm[i] / (1 + expf(-gate[i]));
    for (int64_t i = 0; i < n && m->config.family->delta != DELTA_CHANNELS; i++)
        o[i] = model_rounded(j->l->m, model_rounded(j->l->m, o[i] * scale) *
                                          j->l->delta->norm[i]) *
               (gate[i] / (1 + expf(-gate[i])));
    if (m->bf16)
        m->k->store_bf16(o, NULL, n, (uint16_t *)j->out + to);
    else
        m->k->store_f32(o, NULL, n, (float *)j->out + to);
}

/* decay[k_dim] of value head i of a key head: exp(-exp(A_log) softplus(a)), one for
 * all dims, or one of each. */
static void find_decay(const struct job *j, int64_t row, int64_t head,
                       int64_t i, float *decay)
{
    const struct delta_weights *w = j->l->delta;
    const struct delta *d = &j->d;
    const struct model *m = j->l->m;
    bool each = m->config.family->delta == DELTA_CHANNELS;
    int64_t h = head * (d->v_heads / d->k_heads) + i, n = each ? d->k_dim : 1;
    const char *a = place_at(m, &j->a, row, head);
    float rate = -expf(w->decay[h]);

    (void)!to_f32(decay, a + (size_t)i * m->size, m->dtype, (size_t)n);
    for (int64_t k = 0; k < n; k++) {
        float x = decay[k] + w->shift[h * n + k];

        decay[k] = expf(rate * (x > 20 ? x : log1pf(expf(x))));
    }
    for (int64_t k = n; k < d->k_dim; k++)
        decay[k] = decay[0];
}

/* One token of all value heads of key head `head`, whose states are in S. */
static void step(const struct job *j, int64_t row, int64_t head, float *q,
                 float *k, const float *v, float *S)
{
    const struct model *m = j->l->m;
    const struct delta *d = &j->d;
    int64_t each = d->v_heads / d->k_heads;

    normalize(q, d->k_dim, 1 / sqrtf((float)d->k_dim));
    normalize(k, d->k_dim, 1);
    for (int64_t i = 0; i < each; i++) {
        int64_t h = head * each + i;
        float b = place_number(m, &j->b, row, head, i);
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
                (const char *)place_at(m, &j->z, row, head) +
                    (size_t)(i * d->v_dim) * m->size,
                o);
    }
}

/* A sequence's part of one key head. */
static int run_head(const void *ctx, int64_t sequence, int64_t head,
                    struct err *e)
{
    const struct job *j = ctx;
    const struct delta *d = &j->d;
    int64_t each = d->v_heads / d->k_heads, kd = d->k_dim, vd = each * d->v_dim;
    int64_t first = j->s->first[sequence], keys = d->k_heads * kd;
    int64_t rows = j->s->first[sequence + 1] - first, kernel = d->kernel;
    float *room = scratch_thread(
        (size_t)((kernel + 1) * (2 * kd + vd) + kd * vd) * sizeof(*room), e);
    struct conv_stream s[3] = {
        { &j->q, head, head * kd, kd, NULL, NULL },
        { &j->k, head, keys + head * kd, kd, NULL, NULL },
        { &j->v, head, 2 * keys + head * vd, vd, NULL, NULL },
    };
    float *S = j->cache ? j->cache + head * kd * vd : NULL;

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

/* ---- the linears ---- */

static int multiply(const struct job *j, const struct loaded *l, const void *x,
                    struct buffer *to, struct err *e)
{
    return product_into(to, j->l->m, l, x, j->s->rows, "linear attention", e);
}

/* One linear for q, k, v, z, and one for b, a, each by key heads. */
static void find_fused(struct job *j)
{
    struct model *m = j->l->m;
    const struct delta *d = &j->d;
    int64_t each = d->v_heads / d->k_heads, vd = each * d->v_dim;
    int64_t head = 2 * (d->k_dim + vd), row = head * d->k_heads;

    j->q = (struct place){ m->q.p, row, head, 0 };
    j->k = (struct place){ m->q.p, row, head, d->k_dim };
    j->v = (struct place){ m->q.p, row, head, 2 * d->k_dim };
    j->z = (struct place){ m->q.p, row, head, 2 * d->k_dim + vd };
    j->b = (struct place){ m->key.p, 2 * d->v_heads, 2 * each, 0 };
    j->a = (struct place){ m->key.p, 2 * d->v_heads, 2 * each, each };
}

static void find_split(struct job *j)
{
    struct model *m = j->l->m;
    const struct delta *d = &j->d;
    int64_t each = d->v_heads / d->k_heads, vd = each * d->v_dim;
    int64_t keys = d->k_heads * d->k_dim, row = channels_of(d);

    j->q = (struct place){ m->q.p, row, d->k_dim, 0 };
    j->k = (struct place){ m->q.p, row, d->k_dim, keys };
    j->v = (struct place){ m->q.p, row, vd, 2 * keys };
    j->z = (struct place){ m->value.p, d->v_heads * d->v_dim, vd, 0 };
    j->b = (struct place){ m->key.p, d->v_heads, each, 0 };
    j->a = (struct place){ m->latent.p, d->v_heads, each, 0 };
}

/* DELTA_CHANNELS: a and z by way of k_dim numbers. */
static int project_channels(struct job *j, struct err *e)
{
    struct model *m = j->l->m;
    const struct layer *l = j->l;
    struct buffer *to[] = { &m->q, &m->key, &m->value };
    struct buffer *wide[] = { &m->keys, &m->values };
    struct place *of[] = { &j->q, &j->k, &j->v }, *gate[] = { &j->a, &j->z };
    int64_t n = j->d.k_dim, row = j->d.k_heads * n;

    for (int i = 0; i < 3; i++) {
        if (multiply(j, &l->part[PART_Q + i], j->in, to[i], e) < 0)
            return e->code;
        *of[i] = (struct place){ to[i]->p, row, n, 0 };
    }
    for (int i = 0; i < 2; i++) {
        const struct loaded *pair = l->delta->pairs + 2 * i;

        if (multiply(j, pair, j->in, &m->latent, e) < 0 ||
            multiply(j, pair + 1, m->latent.p, wide[i], e) < 0)
            return e->code;
        *gate[i] = (struct place){ wide[i]->p, row, n, 0 };
    }
    if (multiply(j, &l->delta->gates[0], j->in, &m->latent, e) < 0)
        return e->code;
    j->b = (struct place){ m->latent.p, j->d.k_heads, 1, 0 };
    return 0;
}

static int project(struct job *j, struct err *e)
{
    struct model *m = j->l->m;
    const struct layer *l = j->l;
    bool fused = m->config.family->delta == DELTA_FUSED;

    if (m->config.family->delta == DELTA_CHANNELS)
        return project_channels(j, e);
    if (multiply(j, &l->part[PART_MIX], j->in, &m->q, e) < 0 ||
        multiply(j, &l->delta->gates[0], j->in, &m->key, e) < 0)
        return e->code;
    if (fused) {
        find_fused(j);
        return 0;
    }
    if (multiply(j, &l->part[PART_Z], j->in, &m->value, e) < 0 ||
        multiply(j, &l->delta->gates[1], j->in, &m->latent, e) < 0)
        return e->code;
    find_split(j);
    return 0;
}

int delta_run(struct layer *l, const struct state *s, const void *in, void *out,
              struct err *e)
{
    struct job j = {
        .l = l, .s = s, .in = in, .d = l->m->config.delta, .out = out
    };

    j.conv = (struct conv){ .m = l->m,
                            .filter = l->delta->filter,
                            .kernel = j.d.kernel,
                            .channels = channels_of(&j.d) };
    if (s->cache) {
        j.cache = (float *)s->cache->delta.p + l->index * delta_cached(&j.d);
        j.conv.old = j.cache + state_size(&j.d);
    }
    return project(&j, e) < 0 ? e->code :
                                each_part(s, j.d.k_heads, run_head, &j, e);
}
