/* device.c - see internal.h: operations on a device, by the functions of
 * forward_table.h. */
#include "model/internal.h"

int device_norm(const struct model *m, const struct norm *j, struct err *e)
{
    return m->on->norm(m->context,
                       &(struct forward_norm){ .dtype = m->dtype,
                                               .x = j->x,
                                               .rows = j->rows,
                                               .n = j->n,
                                               .ld = j->ld,
                                               .w = j->w,
                                               .eps = j->eps,
                                               .out = j->out },
                       e);
}

int device_product(const struct product *p, struct err *e)
{
    const struct model *m = p->m;
    struct forward_product a = { .dtype = m->dtype,
                                 .rows = p->rows,
                                 .n = p->first->of.rows,
                                 .depth = p->first->of.cols,
                                 .x = p->x,
                                 .w = p->first->w,
                                 .codes = p->first->on_device,
                                 .bias = p->first->bias,
                                 .out = p->out,
                                 .add = p->add };

    if (p->second) {
        a.second = p->second->w;
        a.second_codes = p->second->on_device;
        a.second_bias = p->second->bias;
    }
    return m->on->product(m->context, &a, e);
}

int device_sums(const struct model *m, const struct forward_sums *s,
                struct err *e)
{
    return m->on->sums(m->context, s, e);
}

int device_gate(struct layer *l, const struct state *s, const void *in,
                const void *y, struct err *e)
{
    const struct model *m = l->m;

    return m->on->gate(m->context,
                       &(struct forward_gate){ .dtype = m->dtype,
                                               .rows = s->rows,
                                               .n = m->config.hidden_size,
                                               .in = in,
                                               .y = y,
                                               .w = l->shared_gate,
                                               .x = s->x },
                       e);
}

int model_angles(struct model *m, const int64_t *first, int64_t n, int64_t past,
                 const float **cs, struct err *e)
{
    const struct model_config *c = &m->config;
    int64_t longest = 0;

    for (int64_t i = 0; i < n; i++)
        if (first[i + 1] - first[i] > longest)
            longest = first[i + 1] - first[i];
    longest += past;
    if (rope_table_reserve(&m->rope, &c->rope, c->rotary, longest, e) < 0)
        return e->code;
    *cs = m->on ? m->angles.p : m->rope.cs;
    if (!m->on || m->angle_rows >= longest)
        return 0;
    m->angle_rows = 0;
    if (model_reserve(m, &m->angles, m->rope.n, c->rotary, sizeof(float),
                      "positions", e) < 0 ||
        model_put(m, m->angles.p, m->rope.cs,
                  (size_t)(m->rope.n * c->rotary) * sizeof(float), e) < 0)
        return e->code;
    m->angle_rows = m->rope.n;
    *cs = m->angles.p;
    return 0;
}

/* *key, *value: where the rows of m->key and m->value are; with a KV cache the
 * layer's in there, to which they are appended. */
static int keep_rows(struct layer *l, const struct state *s, const char **key,
                     const char **value, struct err *e)
{
    const struct kv_cache *p = s->cache;
    struct model *m = l->m;
    size_t k, v;
    char *to;

    *key = m->key.p;
    *value = m->value.p;
    if (!p)
        return 0;
    k = p->keys / (size_t)p->tokens;
    v = p->values / (size_t)p->tokens;
    to = (char *)p->memory.p + (size_t)l->index * (p->keys + p->values);
    if (model_copy(m, to + (size_t)p->length * k, *key, (size_t)s->rows * k,
                   e) < 0 ||
        model_copy(m, to + p->keys + (size_t)p->length * v, *value,
                   (size_t)s->rows * v, e) < 0)
        return e->code;
    *key = to;
    *value = to + p->keys;
    return 0;
}

int device_attend(struct layer *l, const struct state *s, void *out,
                  struct err *e)
{
    struct model *m = l->m;
    const struct model_config *c = &m->config;
    const struct mla *mla = &c->mla;
    int64_t d = c->head_dim, kv = mla->nope + c->v_dim;
    const char *key, *value;
    struct forward_attend a = {
        .dtype = m->dtype,
        .rows = s->rows,
        .n_sequences = s->n_sequences,
        .first = s->first,
        .past = s->cache ? s->cache->length : 0,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = d,
        .v_dim = c->v_dim,
        .window = model_layer_slides(c, l->index) ? c->sliding_window : 0,
        .scale = m->scale,
        .eps = (float)c->rms_eps,
        .rotary_at = c->rotary_at,
        .rotary = c->rotary,
        .pairs = c->rope_pairs,
        .q = { m->q.p, c->n_heads * d, d },
        .out = out,
    };

    if (model_angles(m, s->first, s->n_sequences, a.past, &a.cs, e) < 0 ||
        keep_rows(l, s, &key, &value, e) < 0)
        return e->code;
    if (c->qk_norm == QK_NORM_HEAD) {
        a.q_norm = l->q_norm;
        a.k_norm = l->k_norm;
    }
    if (mla->kv_lora) {
        a.k = (struct forward_heads){ value, c->n_heads * kv, kv };
        a.v = (struct forward_heads){ value + (size_t)mla->nope * m->size,
                                      c->n_heads * kv, kv };
        a.tail = (struct forward_heads){ key + (size_t)mla->kv_lora * m->size,
                                         mla->kv_lora + mla->rope, 0 };
        a.tail_dim = mla->rope;
    } else {
        a.k = (struct forward_heads){ key, c->n_kv_heads * d, d };
        a.v = (struct forward_heads){ value, c->n_kv_heads * d, d };
    }
    return m->on->attend(m->context, &a, e);
}
