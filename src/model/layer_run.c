/* layer_run.c - see model.h: runs a decoder layer from one point to another. */
#include <math.h>
#include <string.h>

#include "common/math/threads.h"
#include "model/altup.h"
#include "model/delta.h"
#include "model/indexer.h"
#include "model/internal.h"
#include "model/mamba.h"

/* ---- running ---- */

/* Swap the two activation buffers; returns the new current one. */
static void *other_act(struct state *s)
{
    s->current ^= 1;
    return s->acts[s->current].p;
}

/* Memory for the activation of point `to`. */
static void *act_for(struct state *s, enum point to)
{
    return to == s->to && s->end ? s->end : other_act(s);
}

/* *act: the current activation, to be read while that of point `to` is
 * written; copied if both would be the same memory (s->end). */
static int act_to_read(const struct layer *l, struct state *s, enum point to,
                       const void **act, struct err *e)
{
    size_t row = (size_t)point_width(&l->m->config, l->index, s->at);
    void *own;

    *act = s->act;
    if (to != s->to || s->act != s->end)
        return 0;
    *act = own = other_act(s);
    return model_copy(l->m, own, s->act, (size_t)s->rows * row * l->m->size, e);
}

static int multiply(struct layer *l, enum linear_part i, const struct state *s,
                    const void *x, void *out, bool add, struct err *e)
{
    struct product p = { .m = l->m,
                         .first = &l->part[i],
                         .second = i == PART_GATE ? &l->part[PART_UP] : NULL,
                         .x = x,
                         .rows = s->rows,
                         .out = out,
                         .add = add };

    return product_run(&p, e);
}

/* Norm of rows of n elements, in place; QK_NORM_FLAT: of all heads together. */
static int norm_flat(const struct layer *l, const struct buffer *b,
                     int64_t rows, int64_t n, const float *w, struct err *e)
{
    struct norm j = { .x = b->p,
                      .rows = rows,
                      .n = n,
                      .ld = n,
                      .w = w,
                      .eps = (float)l->m->config.rms_eps,
                      .out = b->p };

    return model_norm_rows(l->m, &j, e);
}

/* Norm of each head of values, in place. */
static int norm_values(struct layer *l, const struct state *s, struct err *e)
{
    const struct model_config *c = &l->m->config;

    return norm_flat(l, &l->m->value, s->rows * c->n_kv_heads, c->v_dim,
                     l->v_norm, e);
}

static int project(struct layer *l, struct state *s, struct err *e)
{
    struct model *m = l->m;
    struct buffer *to[] = { &m->q, &m->key, &m->value };
    struct product p[3];
    bool shares = model_layer_shares(&m->config, l->index);
    int n = shares ? 1 : 3;

    if (m->config.family->fused_qkv)
        return model_reserve(m, &m->q, s->rows, l->part[PART_QKV].of.rows,
                             m->size, "attention", e) < 0 ?
                   e->code :
                   multiply(l, PART_QKV, s, s->act, m->q.p, false, e);
    for (int i = 0; i < n; i++) {
        p[i] = (struct product){
            .m = m, .first = &l->part[PART_Q + i], .x = s->act, .rows = s->rows
        };
        if (model_reserve(m, to[i], s->rows, p[i].first->of.rows, m->size,
                          "attention", e) < 0)
            return e->code;
        p[i].out = to[i]->p;
    }
    if (products_run(p, n, e) < 0)
        return e->code;
    if (l->v_norm && norm_values(l, s, e) < 0)
        return e->code;
    if (m->config.qk_norm != QK_NORM_FLAT)
        return 0;
    if (norm_flat(l, &m->q, s->rows, l->part[PART_Q].of.rows, l->q_norm, e) < 0)
        return e->code;
    return norm_flat(l, &m->key, s->rows, l->part[PART_K].of.rows, l->k_norm,
                     e);
}

/* out = q_lat, from attn_in. */
static int run_q_a(struct layer *l, const struct state *s, const void *in,
                   void *out, struct err *e)
{
    int64_t n = l->part[PART_Q_A].of.rows;
    struct norm j = { .x = out,
                      .rows = s->rows,
                      .n = n,
                      .ld = n,
                      .w = l->q_a_norm,
                      .eps = LATENT_EPS,
                      .out = out };

    return multiply(l, PART_Q_A, s, in, out, false, e) < 0 ?
               e->code :
               model_norm_rows(l->m, &j, e);
}

static int to_q_lat(struct layer *l, struct state *s, struct err *e)
{
    const void *in;

    if (act_to_read(l, s, POINT_Q_LAT, &in, e) < 0)
        return e->code;
    s->act = act_for(s, POINT_Q_LAT);
    return run_q_a(l, s, in, s->act, e);
}

/* *in: attn_in; behind it computed from x again, into m->latent. */
static int attn_in(struct layer *l, struct state *s, const void **in,
                   struct err *e)
{
    struct model *m = l->m;
    const struct mla *a = &m->config.mla;
    int64_t h = m->config.hidden_size;

    *in = s->act;
    if (model_reserve(m, &m->latent, s->rows, h > a->kv_lora ? h : a->kv_lora,
                      m->size, "latents", e) < 0)
        return e->code;
    if (s->at == POINT_ATTN_IN)
        return 0;
    *in = m->latent.p;
    return model_norm(m, s->x, l->norm1, s->rows, m->latent.p, e);
}

/* Outputs of kv_a, into m->key. */
static int run_kv_a(struct layer *l, struct state *s, const void *in,
                    struct err *e)
{
    struct model *m = l->m;

    return model_reserve(m, &m->key, s->rows, l->part[PART_KV_A].of.rows,
                         m->size, "keys", e) < 0 ?
               e->code :
               multiply(l, PART_KV_A, s, in, m->key.p, false, e);
}

/* out = kv_lat, from m->key. */
static int norm_kv_lat(struct layer *l, const struct state *s, void *out,
                       struct err *e)
{
    const struct mla *a = &l->m->config.mla;
    struct norm j = { .x = l->m->key.p,
                      .rows = s->rows,
                      .n = a->kv_lora,
                      .ld = a->kv_lora + a->rope,
                      .w = l->kv_a_norm,
                      .eps = LATENT_EPS,
                      .out = out };

    return model_norm_rows(l->m, &j, e);
}

static int to_kv_lat(struct layer *l, struct state *s, struct err *e)
{
    const void *in;

    if (attn_in(l, s, &in, e) < 0 || run_kv_a(l, s, in, e) < 0)
        return e->code;
    s->act = act_for(s, POINT_KV_LAT);
    return norm_kv_lat(l, s, s->act, e);
}

/* Queries from attn_in or q_lat; keys and values from attn_in.  At POINT_KV_LAT
 * values from kv_lat, and the rest from x. */
static int project_latent(struct layer *l, struct state *s, struct err *e)
{
    struct model *m = l->m;
    bool lora = m->config.mla.q_lora, behind = s->at == POINT_KV_LAT;
    enum linear_part q = lora ? PART_Q_B : PART_Q;
    const void *in, *of_q = s->act;

    if (model_reserve(m, &m->q, s->rows, l->part[q].of.rows, m->size, "queries",
                      e) < 0 ||
        model_reserve(m, &m->value, s->rows, l->part[PART_KV_B].of.rows,
                      m->size, "values", e) < 0 ||
        (behind &&
         multiply(l, PART_KV_B, s, s->act, m->value.p, false, e) < 0) ||
        attn_in(l, s, &in, e) < 0)
        return e->code;
    if (behind) {
        void *lat = other_act(s);

        of_q = lora ? lat : in;
        if (lora && run_q_a(l, s, in, lat, e) < 0)
            return e->code;
    }
    if (multiply(l, q, s, of_q, m->q.p, false, e) < 0 ||
        (l->indexer && indexer_run(l, s, in, of_q, e) < 0) ||
        run_kv_a(l, s, in, e) < 0)
        return e->code;
    if (behind)
        return 0;
    return norm_kv_lat(l, s, m->latent.p, e) < 0 ?
               e->code :
               multiply(l, PART_KV_B, s, m->latent.p, m->value.p, false, e);
}

static int to_attn_out(struct layer *l, struct state *s, struct err *e)
{
    const void *in = s->act;
    int rc;

    if (l->delta || l->mamba) {
        if (act_to_read(l, s, POINT_ATTN_OUT, &in, e) < 0)
            return e->code;
        s->act = act_for(s, POINT_ATTN_OUT);
        return (l->mamba ? mamba_run : delta_run)(l, s, in, s->act, e);
    }
    rc = l->m->config.mla.kv_lora ? project_latent(l, s, e) : project(l, s, e);
    if (rc < 0)
        return rc;
    s->act = act_for(s, POINT_ATTN_OUT);
    return attention_run(l, s, s->act, e);
}

/* ---- a shared expert that is gated ---- */

enum { GATE_PART = 256 };

/* The gated shared expert: x += sigmoid(in g) * y. */
struct gate_job {
    const struct layer *l;
    const struct state *s;
    const void *in, *y; /* [rows, H], elements */
};

static float gate_of(const struct layer *l, const void *in, int64_t h)
{
    float t[GATE_PART];
    double sum = 0;

    for (int64_t i = 0; i < h; i += GATE_PART) {
        int64_t n = h - i < GATE_PART ? h - i : GATE_PART;

        if (!to_f32(t, state_at((void *)(uintptr_t)in, l->m->dtype, i),
                    l->m->dtype, (size_t)n))
            return NAN;
        for (int64_t k = 0; k < n; k++)
            sum += (double)t[k] * l->shared_gate[i + k];
    }
    return (float)(1 / (1 + exp(-sum)));
}

static void gate_rows(void *ctx, size_t begin, size_t end)
{
    const struct gate_job *j = ctx;
    const struct model *m = j->l->m;
    int64_t h = m->config.hidden_size;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++) {
        size_t at = (size_t)(r * h) * m->size;

        model_add_row(m, gate_of(j->l, (const char *)j->in + at, h), h,
                      (const char *)j->y + at, state_x(j->s, r));
    }
}

void gate_run(struct layer *l, const struct state *s, const void *in,
              const void *y)
{
    struct gate_job j = { .l = l, .s = s, .in = in, .y = y };

    threads_for((size_t)s->rows, 8, gate_rows, &j);
}

/* x += sigmoid(mlp_in g) * down(mlp_mid) */
static int add_gated(struct layer *l, struct state *s, struct err *e)
{
    struct model *m = l->m;
    const void *mid = s->act;

    if (model_reserve(m, &m->latent, s->rows, m->config.hidden_size, m->size,
                      "gates", e) < 0 ||
        model_norm(m, s->x, l->norm2, s->rows, m->latent.p, e) < 0)
        return e->code;
    s->act = other_act(s);
    if (multiply(l, PART_DOWN, s, mid, s->act, false, e) < 0)
        return e->code;
    if (m->on)
        return device_gate(l, s, m->latent.p, s->act, e);
    gate_run(l, s, m->latent.p, s->act);
    return 0;
}

/* ---- from and to the residual stream ---- */

/* x += residual_scale * norm(W act + b), W: o or down; norm NULL: none. */
static int add_output(struct layer *l, const struct state *s,
                      enum linear_part i, const float *norm, struct err *e)
{
    struct model *m = l->m;

    if (!model_adds_scaled(&m->config))
        return multiply(l, i, s, s->act, s->x, true, e);
    if (model_reserve(m, &m->latent, s->rows, m->config.hidden_size, m->size,
                      "outputs", e) < 0 ||
        multiply(l, i, s, s->act, m->latent.p, false, e) < 0 ||
        (norm && s->output &&
         model_copy(m, s->output, m->latent.p,
                    (size_t)(s->rows * m->config.hidden_size) * m->size,
                    e) < 0) ||
        (norm && model_norm(m, m->latent.p, norm, s->rows, m->latent.p, e) < 0))
        return e->code;
    return model_add_times(
        m,
        &(struct forward_add_times){ .dtype = m->dtype,
                                     .factor = (float)m->config.residual_scale,
                                     .rows = s->rows,
                                     .n = m->config.hidden_size,
                                     .ld = s->row,
                                     .x = s->x,
                                     .y = m->latent.p },
        e);
}

/* The input of attention or MLP: norm(x); norm NULL: x. */
static int read_stream(struct layer *l, struct state *s, enum point to,
                       const float *norm, struct err *e)
{
    const struct model_config *c = &l->m->config;
    struct norm j = { .x = s->x,
                      .rows = s->rows,
                      .n = c->hidden_size,
                      .ld = s->row,
                      .w = norm,
                      .eps = (float)c->rms_eps };

    j.out = s->act = act_for(s, to);
    if (norm)
        return model_norm_rows(l->m, &j, e);
    return model_copy(l->m, s->act, s->x,
                      (size_t)(s->rows * s->row) * l->m->size, e);
}

int layer_mlp_in(struct layer *l, struct state *s, enum point to, struct err *e)
{
    s->to = to;
    return read_stream(l, s, POINT_MLP_IN, l->norm2, e);
}

/* ---- steps ---- */

/* attn_in of struct altup.  The streams stay as they are up to POINT_MLP_IN, so
 * that a run can begin again at POINT_IN. */
static int to_active(struct layer *l, struct state *s, struct err *e)
{
    s->act = act_for(s, POINT_ATTN_IN);
    if (altup_predict(l, s, s->act, e) < 0)
        return e->code;
    return model_norm(l->m, s->act, l->norm1, s->rows, s->act, e);
}

/* mlp_mid where few outputs of the gate stay (struct altup). */
static int to_sparse_mid(struct layer *l, struct state *s, const void *in,
                         struct err *e)
{
    struct model *m = l->m;
    int64_t n = l->part[PART_GATE].of.rows;
    size_t half = (size_t)(s->rows * n) * m->size;
    struct product p = {
        .m = m, .first = &l->part[PART_GATE], .x = in, .rows = s->rows
    };
    struct gate_pair j = { .ldg = n, .ldu = n, .rows = s->rows, .n = n };

    if (model_reserve(m, &m->both, s->rows, 2 * n, m->size, "gates", e) < 0)
        return e->code;
    j.g = p.out = m->both.p;
    if (product_run(&p, e) < 0 ||
        altup_sparsify(m, m->config.altup.cutoff[l->index], m->both.p, s->rows,
                       n, e) < 0)
        return e->code;
    j.u = p.out = (char *)m->both.p + half;
    p.first = &l->part[PART_UP];
    j.out = s->act;
    return product_run(&p, e) < 0 ? e->code : gate_pair(m, &j, e);
}

static int to_mlp_mid(struct layer *l, struct state *s, struct err *e)
{
    const struct linear *both = &l->part[PART_GATE_UP].of;
    struct model *m = l->m;
    const void *in;

    if (act_to_read(l, s, POINT_MLP_MID, &in, e) < 0)
        return e->code;
    s->act = act_for(s, POINT_MLP_MID);
    if (l->altup && isfinite(m->config.altup.cutoff[l->index]))
        return to_sparse_mid(l, s, in, e);
    if (!both->rows)
        return multiply(l, PART_GATE, s, in, s->act, false, e);
    if (model_reserve(m, &m->both, s->rows, both->rows, m->size, "gates", e) <
            0 ||
        multiply(l, PART_GATE_UP, s, in, m->both.p, false, e) < 0)
        return e->code;
    return gate_pair(m,
                     &(struct gate_pair){ .g = m->both.p,
                                          .u = (char *)m->both.p +
                                               (size_t)both->rows / 2 * m->size,
                                          .ldg = both->rows,
                                          .ldu = both->rows,
                                          .rows = s->rows,
                                          .n = both->rows / 2,
                                          .out = s->act },
                     e);
}

/* From s->at to the next point `to`. */
static int step(struct layer *l, struct state *s, enum point to, struct err *e)
{
    switch (to) {
    case POINT_ATTN_IN:
        return l->altup ? to_active(l, s, e) :
                          read_stream(l, s, to, l->norm1, e);
    case POINT_Q_LAT: return to_q_lat(l, s, e);
    case POINT_KV_LAT: return to_kv_lat(l, s, e);
    case POINT_ATTN_OUT: return to_attn_out(l, s, e);
    case POINT_MLP_IN:
        if (l->altup && altup_predict(l, s, NULL, e) < 0)
            return e->code;
        if (add_output(l, s, PART_O, l->attn_out, e) < 0 ||
            (l->altup && altup_laurel(l, s, e) < 0))
            return e->code;
        return read_stream(l, s, to, l->norm2, e);
    case POINT_MLP_MID: return to_mlp_mid(l, s, e);
    case POINT_OUT:
        if (s->at == POINT_MLP_IN) /* no shared expert */
            return 0;
        if (l->shared_gate)
            return add_gated(l, s, e);
        if (add_output(l, s, PART_DOWN, l->mlp_out, e) < 0)
            return e->code;
        return l->altup ? altup_correct(l, s, e) : 0;
    case POINT_IN: break;
    }
    return err_set(e, E_BUG, "no step leads out of a layer");
}

/* The next point that exists. */
static enum point point_after(const struct model_config *c, int64_t layer,
                              enum point p)
{
    do
        p++;
    while (!point_exists(c, layer, p));
    return p;
}

int layer_run(struct layer *l, struct state *s, enum point to,
              const struct tap *tap, struct err *e)
{
    s->to = to;
    while (s->at < to) {
        enum point next = point_after(&l->m->config, l->index, s->at);
        int rc = step(l, s, next, e);

        if (rc < 0)
            return rc;
        s->at = next;
        if (tap && s->at < POINT_OUT && (rc = tap->fn(tap->arg, s, e)) != 0)
            return rc;
    }
    return 0;
}
