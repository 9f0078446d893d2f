/* layer.c - see model.h: a decoder layer, from one point to another. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/threads.h"
#include "model/internal.h"

/* ---- loading ---- */

int model_weight(struct model *m, const char *module, int64_t rows,
                 int64_t cols, void **w, struct err *e)
{
    uint64_t r, c;
    float *f = NULL;
    uint16_t *h = NULL;
    int rc = m->bf16 ? checkpoint_linear_bf16(m->ck, module, &h, &r, &c, e) :
                       checkpoint_linear(m->ck, module, &f, &r, &c, e);

    if (rc < 0)
        return rc;
    *w = m->bf16 ? (void *)h : (void *)f;
    if (r == (uint64_t)rows && c == (uint64_t)cols)
        return 0;
    free(*w);
    *w = NULL;
    return err_set(e, E_DATA,
                   "'%s': the weight is %llux%llu, the config says %lldx%lld",
                   module, (unsigned long long)r, (unsigned long long)c,
                   (long long)rows, (long long)cols);
}

int model_load_linear(struct model *m, const struct codes *codes,
                      struct loaded *l, struct err *e)
{
    const struct linear *k = &l->of;
    char name[MODULE_PATH_MAX + 8];
    int rc = 0;

    if (codes)
        rc = codes_linear(codes, k->module, k->rows, k->cols, m->dtype, &l->w,
                          e);
    if (rc < 0 ||
        (!rc && model_weight(m, k->module, k->rows, k->cols, &l->w, e) < 0) ||
        product_pack(m, k->rows, k->cols, &l->w, e) < 0)
        return e->code;
    if (!k->bias)
        return 0;
    snprintf(name, sizeof(name), "%s.bias", k->module);
    return model_vector(m, name, k->rows, &l->bias, e);
}

/* The point that a linear leads to. */
static enum point leads_to(enum linear_part p)
{
    switch (p) {
    case PART_Q_A: return POINT_Q_LAT;
    case PART_O: return POINT_MLP_IN;
    case PART_GATE:
    case PART_UP: return POINT_MLP_MID;
    case PART_DOWN: return POINT_OUT;
    default: return POINT_ATTN_OUT;
    }
}

void loaded_release(struct loaded *l)
{
    free(l->w);
    free(l->bias);
    l->w = NULL;
    l->bias = NULL;
}

static bool wanted(const struct layer *l, enum point leads)
{
    return leads > l->from && leads <= l->to;
}

/* Needed on the way to `leads`; *v may be there already. */
static int load_norm(struct layer *l, enum point leads, const char *name,
                     int64_t n, float **v, struct err *e)
{
    char path[MODULE_PATH_MAX];

    if (!wanted(l, leads) || *v)
        return 0;
    snprintf(path, sizeof(path), "model.layers.%lld.%s.weight",
             (long long)l->index, name);
    return model_vector(l->m, path, n, v, e);
}

static int load_head_norms(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;
    bool flat = c->qk_norm == QK_NORM_FLAT;

    if (c->qk_norm == QK_NORM_NONE)
        return 0;
    if (load_norm(l, POINT_ATTN_OUT, "self_attn.q_norm",
                  c->head_dim * (flat ? c->n_heads : 1), &l->q_norm, e) < 0)
        return e->code;
    return load_norm(l, POINT_ATTN_OUT, "self_attn.k_norm",
                     c->head_dim * (flat ? c->n_kv_heads : 1), &l->k_norm, e);
}

/* kv_a's input is made again from x where a run starts at POINT_Q_LAT. */
static int load_latent(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;

    if (load_norm(l, POINT_ATTN_OUT, "input_layernorm", c->hidden_size,
                  &l->norm1, e) < 0 ||
        load_norm(l, POINT_ATTN_OUT, "self_attn.kv_a_layernorm", c->mla.kv_lora,
                  &l->kv_a_norm, e) < 0 ||
        (c->mla.q_lora && load_norm(l, POINT_Q_LAT, "self_attn.q_a_layernorm",
                                    c->mla.q_lora, &l->q_a_norm, e) < 0))
        return e->code;
    if (!wanted(l, POINT_ATTN_OUT))
        return 0;
    model_kv_b(c, l->index, &l->part[PART_KV_B].of);
    return model_load_linear(l->m, NULL, &l->part[PART_KV_B], e);
}

/* The gate of a shared expert; its input is made again from x. */
static int load_shared_gate(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;

    if (!c->family->shared_gate || !model_layer_experts(c, l->index) ||
        !wanted(l, POINT_OUT))
        return 0;
    if (load_norm(l, POINT_OUT, "post_attention_layernorm", c->hidden_size,
                  &l->norm2, e) < 0)
        return e->code;
    return load_norm(l, POINT_OUT, c->family->shared_gate, c->hidden_size,
                     &l->shared_gate, e);
}

static int load_norms(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;

    if (load_norm(l, POINT_ATTN_IN, "input_layernorm", c->hidden_size,
                  &l->norm1, e) < 0 ||
        load_norm(l, POINT_MLP_IN, "post_attention_layernorm", c->hidden_size,
                  &l->norm2, e) < 0 ||
        load_head_norms(l, e) < 0 || load_shared_gate(l, e) < 0)
        return e->code;
    return c->mla.kv_lora ? load_latent(l, e) : 0;
}

static int load_all(struct layer *l, const struct codes *codes, struct err *e)
{
    const struct model_config *c = &l->m->config;
    int64_t n = model_linear_common(c, l->index);

    if (load_norms(l, e) < 0)
        return e->code;
    for (int64_t i = 0; i < n; i++) {
        struct linear one;

        model_linear(c, l->index, i, &one);
        l->part[one.part].of = one;
        if (wanted(l, leads_to(one.part)) &&
            model_load_linear(l->m, codes, &l->part[one.part], e) < 0)
            return e->code;
    }
    return 0;
}

int model_load_layer(struct model *m, int64_t index, enum point from,
                     enum point to, const struct codes *codes,
                     struct layer **out, struct err *e)
{
    struct layer *l = mem_zero(1, sizeof(*l), "layer", e);

    if (!l)
        return e->code;
    *l = (struct layer){ .m = m, .index = index, .from = from, .to = to };
    if (load_all(l, codes, e) < 0) {
        layer_release(l);
        return e->code;
    }
    *out = l;
    return 0;
}

void layer_release(struct layer *l)
{
    if (!l)
        return;
    for (int i = 0; i < PARTS; i++)
        loaded_release(&l->part[i]);
    free(l->norm1);
    free(l->norm2);
    free(l->q_norm);
    free(l->k_norm);
    free(l->q_a_norm);
    free(l->kv_a_norm);
    free(l->shared_gate);
    free(l);
}

/* ---- norms ---- */

struct norm_job {
    const struct model *m;
    const struct norm *norm;
};

static void norm_rows(void *ctx, size_t begin, size_t end)
{
    const struct norm_job *j = ctx;
    const struct norm *n = j->norm;
    const struct kernels *k = j->m->k;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        if (j->m->bf16)
            k->norm_bf16((const uint16_t *)n->x + r * n->ld, n->w, n->n, n->eps,
                         (uint16_t *)n->out + r * n->n);
        else
            k->norm_f32((const float *)n->x + r * n->ld, n->w, n->n, n->eps,
                        (float *)n->out + r * n->n);
}

void model_norm_rows(const struct model *m, const struct norm *n)
{
    struct norm_job j = { .m = m, .norm = n };

    threads_for((size_t)n->rows, 32, norm_rows, &j);
}

void model_norm(const struct model *m, const void *x, const float *w, int64_t n,
                void *out)
{
    int64_t h = m->config.hidden_size;
    struct norm j = { .x = x,
                      .rows = n,
                      .n = h,
                      .ld = h,
                      .w = w,
                      .eps = (float)m->config.rms_eps,
                      .out = out };

    model_norm_rows(m, &j);
}

/* ---- running ---- */

/* The activation buffer that is not in use becomes the current one. */
static void *other_act(struct state *s)
{
    s->current ^= 1;
    return s->acts[s->current].p;
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

/* In place, over all heads of a row. */
static void norm_flat(const struct layer *l, const struct buffer *b,
                      int64_t rows, int64_t n, const float *w)
{
    struct norm j = { .x = b->p,
                      .rows = rows,
                      .n = n,
                      .ld = n,
                      .w = w,
                      .eps = (float)l->m->config.rms_eps,
                      .out = b->p };

    model_norm_rows(l->m, &j);
}

static int project(struct layer *l, struct state *s, struct err *e)
{
    struct model *m = l->m;
    struct buffer *to[] = { &m->q, &m->key, &m->value };

    for (enum linear_part i = PART_Q; i <= PART_V; i++)
        if (buffer_reserve(to[i], s->rows, l->part[i].of.rows, m->size,
                           "attention", e) < 0 ||
            multiply(l, i, s, s->act, to[i]->p, false, e) < 0)
            return e->code;
    if (m->config.qk_norm == QK_NORM_FLAT) {
        norm_flat(l, &m->q, s->rows, l->part[PART_Q].of.rows, l->q_norm);
        norm_flat(l, &m->key, s->rows, l->part[PART_K].of.rows, l->k_norm);
    }
    return 0;
}

static int to_q_lat(struct layer *l, struct state *s, struct err *e)
{
    const void *in = s->act;
    int64_t n = l->part[PART_Q_A].of.rows;
    struct norm j;

    s->act = other_act(s);
    if (multiply(l, PART_Q_A, s, in, s->act, false, e) < 0)
        return e->code;
    j = (struct norm){ .x = s->act,
                       .rows = s->rows,
                       .n = n,
                       .ld = n,
                       .w = l->q_a_norm,
                       .eps = LATENT_EPS,
                       .out = s->act };
    model_norm_rows(l->m, &j);
    return 0;
}

/* q from the latent or from attn_in, and keys and values from attn_in. */
static int project_latent(struct layer *l, struct state *s, struct err *e)
{
    struct model *m = l->m;
    const struct mla *a = &m->config.mla;
    enum linear_part q = a->q_lora ? PART_Q_B : PART_Q;
    int64_t h = m->config.hidden_size, kv = a->kv_lora + a->rope;
    const void *in = s->act;
    struct norm j;

    if (buffer_reserve(&m->q, s->rows, l->part[q].of.rows, m->size, "queries",
                       e) < 0 ||
        buffer_reserve(&m->key, s->rows, kv, m->size, "keys", e) < 0 ||
        buffer_reserve(&m->value, s->rows, l->part[PART_KV_B].of.rows, m->size,
                       "values", e) < 0 ||
        buffer_reserve(&m->latent, model_rows(s->rows),
                       h > a->kv_lora ? h : a->kv_lora, m->size, "latents",
                       e) < 0 ||
        multiply(l, q, s, s->act, m->q.p, false, e) < 0)
        return e->code;
    if (s->at == POINT_Q_LAT) {
        model_norm(m, s->x, l->norm1, s->rows, m->latent.p);
        in = m->latent.p;
    }
    if (multiply(l, PART_KV_A, s, in, m->key.p, false, e) < 0)
        return e->code;
    j = (struct norm){ .x = m->key.p,
                       .rows = s->rows,
                       .n = a->kv_lora,
                       .ld = kv,
                       .w = l->kv_a_norm,
                       .eps = LATENT_EPS,
                       .out = m->latent.p };
    model_norm_rows(m, &j);
    return multiply(l, PART_KV_B, s, m->latent.p, m->value.p, false, e);
}

static int to_attn_out(struct layer *l, struct state *s, struct err *e)
{
    int rc =
        l->m->config.mla.kv_lora ? project_latent(l, s, e) : project(l, s, e);

    if (rc < 0)
        return rc;
    s->act = other_act(s);
    return attention_run(l, s, s->act, e);
}

/* ---- a shared expert that is gated ---- */

struct gate_job {
    const struct layer *l;
    const struct state *s;
    const void *in, *y; /* elements [rows, H]: what the gate reads, and gates */
};

enum { GATE_PART = 256 };

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
        const char *y = (const char *)j->y + (size_t)(r * h) * m->size;
        float t[GATE_PART], g;

        g = gate_of(j->l, (const char *)j->in + (size_t)(r * h) * m->size, h);
        for (int64_t i = 0; i < h; i += GATE_PART) {
            int64_t n = h - i < GATE_PART ? h - i : GATE_PART;
            void *x = state_x(j->s, r);

            if (!to_f32(t, y + (size_t)i * m->size, m->dtype, (size_t)n))
                return; /* not with a float's dtype */
            for (int64_t k = 0; k < n; k++)
                t[k] *= g;
            if (m->bf16)
                m->k->add_bf16(t, NULL, n, (uint16_t *)x + i);
            else
                m->k->add_f32(t, NULL, n, (float *)x + i);
        }
    }
}

/* x += sigmoid(mlp_in g) * down(mlp_mid) */
static int add_gated(struct layer *l, struct state *s, struct err *e)
{
    struct model *m = l->m;
    struct gate_job j = { .l = l, .s = s };
    const void *mid = s->act;

    if (buffer_reserve(&m->latent, model_rows(s->rows), m->config.hidden_size,
                       m->size, "gates", e) < 0)
        return e->code;
    model_norm(m, s->x, l->norm2, s->rows, m->latent.p);
    s->act = other_act(s);
    if (multiply(l, PART_DOWN, s, mid, s->act, false, e) < 0)
        return e->code;
    j.in = m->latent.p;
    j.y = s->act;
    threads_for((size_t)s->rows, 8, gate_rows, &j);
    return 0;
}

/* ---- steps ---- */

static int to_mlp_mid(struct layer *l, struct state *s, struct err *e)
{
    const void *in = s->act;

    s->act = other_act(s);
    return multiply(l, PART_GATE, s, in, s->act, false, e);
}

/* From s->at to the point `to` that follows it. */
static int step(struct layer *l, struct state *s, enum point to, struct err *e)
{
    switch (to) {
    case POINT_ATTN_IN:
        model_norm(l->m, s->x, l->norm1, s->rows, s->act);
        return 0;
    case POINT_Q_LAT: return to_q_lat(l, s, e);
    case POINT_ATTN_OUT: return to_attn_out(l, s, e);
    case POINT_MLP_IN:
        if (multiply(l, PART_O, s, s->act, s->x, true, e) < 0)
            return e->code;
        model_norm(l->m, s->x, l->norm2, s->rows, s->act);
        return 0;
    case POINT_MLP_MID: return to_mlp_mid(l, s, e);
    case POINT_OUT:
        if (s->at == POINT_MLP_IN) /* no shared expert */
            return 0;
        return l->shared_gate ?
                   add_gated(l, s, e) :
                   multiply(l, PART_DOWN, s, s->act, s->x, true, e);
    case POINT_IN: break;
    }
    return err_set(e, E_BUG, "no step leads out of a layer");
}

/* The next point that there is. */
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
