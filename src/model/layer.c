/* layer.c - see model.h: a decoder layer, from one point to another. */
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

static int load_linear(struct model *m, const struct codes *codes,
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

static int load_norm(struct layer *l, enum point leads, const char *name,
                     int64_t n, float **v, struct err *e)
{
    char path[MODULE_PATH_MAX];

    if (leads <= l->from || leads > l->to)
        return 0;
    snprintf(path, sizeof(path), "model.layers.%lld.%s.weight",
             (long long)l->index, name);
    return model_vector(l->m, path, n, v, e);
}

static int load_norms(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;

    if (load_norm(l, POINT_ATTN_IN, "input_layernorm", c->hidden_size,
                  &l->norm1, e) < 0 ||
        load_norm(l, POINT_MLP_IN, "post_attention_layernorm", c->hidden_size,
                  &l->norm2, e) < 0)
        return e->code;
    if (c->family->qk_norm && (load_norm(l, POINT_ATTN_OUT, "self_attn.q_norm",
                                         c->head_dim, &l->q_norm, e) < 0 ||
                               load_norm(l, POINT_ATTN_OUT, "self_attn.k_norm",
                                         c->head_dim, &l->k_norm, e) < 0))
        return e->code;
    return 0;
}

static int load_all(struct layer *l, const struct codes *codes, struct err *e)
{
    const struct model_config *c = &l->m->config;
    int64_t n = model_linear_common(c, l->index);

    if (load_norms(l, e) < 0)
        return e->code;
    for (int64_t i = 0; i < n; i++) {
        struct linear one;
        enum point to;

        model_linear(c, l->index, i, &one);
        to = leads_to(one.part);
        l->part[one.part].of = one;
        if (to > l->from && to <= l->to &&
            load_linear(l->m, codes, &l->part[one.part], e) < 0)
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
    for (int i = 0; i < PARTS; i++) {
        free(l->part[i].w);
        free(l->part[i].bias);
    }
    free(l->norm1);
    free(l->norm2);
    free(l->q_norm);
    free(l->k_norm);
    free(l);
}

/* ---- norms ---- */

struct norm_job {
    const struct model *m;
    const void *x;
    const float *w;
    void *out;
};

static void norm_rows(void *ctx, size_t begin, size_t end)
{
    const struct norm_job *j = ctx;
    const struct model *m = j->m;
    int64_t h = m->config.hidden_size;
    float eps = (float)m->config.rms_eps;

    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++)
        if (m->bf16)
            m->k->norm_bf16((const uint16_t *)j->x + r * h, j->w, h, eps,
                            (uint16_t *)j->out + r * h);
        else
            m->k->norm_f32((const float *)j->x + r * h, j->w, h, eps,
                           (float *)j->out + r * h);
}

void model_norm(const struct model *m, const void *x, const float *w, int64_t n,
                void *out)
{
    struct norm_job j = { .m = m, .x = x, .w = w, .out = out };

    threads_for((size_t)n, 32, norm_rows, &j);
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

static int to_attn_out(struct layer *l, struct state *s, struct err *e)
{
    struct model *m = l->m;
    struct buffer *to[] = { &m->q, &m->key, &m->value };

    for (enum linear_part i = PART_Q; i <= PART_V; i++)
        if (buffer_reserve(to[i], s->rows, l->part[i].of.rows, m->size,
                           "attention", e) < 0 ||
            multiply(l, i, s, s->act, to[i]->p, false, e) < 0)
            return e->code;
    s->act = other_act(s);
    return attention_run(l, s, s->act, e);
}

static int to_mlp_mid(struct layer *l, struct state *s, struct err *e)
{
    const void *in = s->act;

    s->act = other_act(s);
    return multiply(l, PART_GATE, s, in, s->act, false, e);
}

static int step(struct layer *l, struct state *s, struct err *e)
{
    switch (s->at) {
    case POINT_IN: model_norm(l->m, s->x, l->norm1, s->rows, s->act); return 0;
    case POINT_ATTN_IN:
    case POINT_Q_LAT: return to_attn_out(l, s, e);
    case POINT_ATTN_OUT:
        if (multiply(l, PART_O, s, s->act, s->x, true, e) < 0)
            return e->code;
        model_norm(l->m, s->x, l->norm2, s->rows, s->act);
        return 0;
    case POINT_MLP_IN: return to_mlp_mid(l, s, e);
    case POINT_MLP_MID: return multiply(l, PART_DOWN, s, s->act, s->x, true, e);
    case POINT_OUT: break;
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
        int rc = step(l, s, e);

        if (rc < 0)
            return rc;
        s->at = point_after(&l->m->config, l->index, s->at);
        if (tap && s->at < POINT_OUT && (rc = tap->fn(tap->arg, s, e)) != 0)
            return rc;
    }
    return 0;
}
