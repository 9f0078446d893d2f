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
                                 .add = p->add,
                                 .gating = model_gating(m) };

    if (p->second) {
        a.second = p->second->w;
        a.second_codes = p->second->on_device;
        a.second_bias = p->second->bias;
    }
    return m->on->product(m->context, &a, e);
}

int device_pair(const struct model *m, const struct gate_pair *p, struct err *e)
{
    return m->on->pair(m->context,
                       &(struct forward_pair){ .dtype = m->dtype,
                                               .rows = p->rows,
                                               .n = p->n,
                                               .g = p->g,
                                               .u = p->u,
                                               .ldg = p->ldg,
                                               .ldu = p->ldu,
                                               .gating = model_gating(m),
                                               .out = p->out },
                       e);
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

/* Keys and values of a batch where the linears left them. */
struct kept {
    const char *key, *value;
    int64_t row; /* elements of a row of either where they are heads */
};

/* Where the outputs of k and v are, and how wide their rows. */
static struct kept find_rows(const struct model *m)
{
    const struct model_config *c = &m->config;
    int64_t d = c->head_dim, k = c->n_kv_heads * d;
    const char *q = m->q.p;

    if (!c->family->fused_qkv)
        return (struct kept){ m->key.p, m->value.p, k };
    q += (size_t)(c->n_heads * d) * m->size;
    return (struct kept){ q, q + (size_t)k * m->size, c->n_heads * d + 2 * k };
}

/* Where keys and values of a layer lie in the tokens' rows, since several layers use
 * them: put them there, normalized and rotated, if they are this layer's own. */
static int use_rows(struct layer *l, const struct state *s,
                    const struct forward_attend *a, struct kept *r,
                    struct err *e)
{
    const struct model *m = l->m;
    const struct model_config *c = &m->config;
    int64_t n = c->n_kv_heads * c->head_dim, at = model_row_keys(c, l->index);
    char *keys = state_at(s->x, m->dtype, at), *values;
    size_t bytes = (size_t)n * m->size, row = (size_t)s->row * m->size;
    struct forward_attend own = *a;

    values = keys + bytes;
    if (!model_layer_shares(c, l->index)) {
        own.k = (struct forward_heads){ r->key, r->row, c->head_dim };
        if (m->on->turn(m->context, &own, e) < 0 ||
            m->on->copy_rows(m->context, keys, row, r->key, bytes, bytes,
                             s->rows, e) < 0 ||
            m->on->copy_rows(m->context, values, row, r->value, bytes, bytes,
                             s->rows, e) < 0)
            return e->code;
    }
    *r = (struct kept){ keys, values, s->row };
    return 0;
}

/* Rows `from` of a batch, of n bytes, `row` apart, to the end of each sequence's in a
 * cache. */
static int append(const struct kv_cache *p, const struct state *s, char *to,
                  const char *from, size_t row, size_t n, struct err *e)
{
    const struct model *m = p->m;
    int64_t rows = s->rows / p->sequences;

    if (p->sequences == 1)
        return m->on->copy_rows(m->context, to + (size_t)p->length * n, n, from,
                                row, n, rows, e);
    for (int64_t i = 0; i < rows; i++)
        if (m->on->copy_rows(m->context, to + (size_t)(p->length + i) * n,
                             (size_t)p->tokens * n, from + (size_t)i * row,
                             (size_t)rows * row, n, p->sequences, e) < 0)
            return e->code;
    return 0;
}

/* With a KV cache: append them to the layer's in there, and take all of those. */
static int keep_rows(struct layer *l, const struct state *s, struct kept *r,
                     struct err *e)
{
    const struct kv_cache *p = s->cache;
    struct model *m = l->m;
    int64_t own = m->config.n_kv_heads * m->config.head_dim;
    size_t k, v, from;
    char *to;

    if (!p)
        return 0;
    k = p->keys / (size_t)(p->sequences * p->tokens);
    v = p->values / (size_t)(p->sequences * p->tokens);
    from = m->config.mla.kv_lora ? 0 : (size_t)r->row * m->size;
    to = (char *)p->memory.p + (size_t)l->index * (p->keys + p->values);
    if (append(p, s, to, r->key, from ? from : k, k, e) < 0 ||
        append(p, s, to + p->keys, r->value, from ? from : v, v, e) < 0)
        return e->code;
    *r = (struct kept){ to, to + p->keys, own };
    return 0;
}

/* Where the heads of q, k and v are. */
static void find_heads(const struct model *m, const struct kept *r,
                       struct forward_attend *a)
{
    const struct model_config *c = &m->config;
    const struct mla *mla = &c->mla;
    int64_t d = c->head_dim, kv = mla->nope + c->v_dim, q = c->n_heads * d;

    if (c->family->fused_qkv)
        q += 2 * c->n_kv_heads * d;
    if (c->family->attention_gate)
        q *= 2;
    a->q = (struct forward_heads){ m->q.p, q,
                                   c->family->attention_gate ? 2 * d : d };
    a->k = (struct forward_heads){ r->key, r->row, d };
    a->v = (struct forward_heads){ r->value, r->row, d };
    if (!mla->kv_lora)
        return;
    a->k = (struct forward_heads){ r->value, c->n_heads * kv, kv };
    a->v = (struct forward_heads){ r->value + (size_t)mla->nope * m->size,
                                   c->n_heads * kv, kv };
    a->tail = (struct forward_heads){ r->key + (size_t)mla->kv_lora * m->size,
                                      mla->kv_lora + mla->rope, 0 };
    a->tail_dim = mla->rope;
}

/* out *= sigmoid(gates), which are behind the heads' queries. */
static int gate_heads(const struct model *m, const struct forward_attend *a,
                      struct err *e)
{
    struct forward_gate_heads g = { .dtype = m->dtype,
                                    .rows = a->rows,
                                    .heads = a->n_heads,
                                    .dim = a->v_dim,
                                    .g = a->q,
                                    .out = a->out };

    if (!m->config.family->attention_gate)
        return 0;
    g.g.p = (const char *)a->q.p + (size_t)a->head_dim * m->size;
    return m->on->gate_heads(m->context, &g, e);
}

/* Before keys of several sequences go to a KV cache, where they lie apart: normalize and
 * rotate them. */
static int turn_rows(const struct model *m, const struct state *s,
                     struct forward_attend *a, const struct kept *rows,
                     struct err *e)
{
    struct forward_attend own;

    a->each = s->cache->tokens;
    own = *a;
    find_heads(m, rows, &own);
    a->turned = true;
    return m->on->turn(m->context, &own, e);
}

int device_attend(struct layer *l, const struct state *s, void *out,
                  struct err *e)
{
    struct model *m = l->m;
    const struct model_config *c = &m->config;
    int64_t last = model_layer_slides(c, l->index) ? c->sliding_window : 0;
    bool chunks = c->family->sliding == SLIDING_CHUNKS;
    bool flat = c->qk_norm == QK_NORM_FLAT;
    struct kept rows = find_rows(m);
    struct forward_attend a = {
        .dtype = m->dtype,
        .rows = s->rows,
        .n_sequences = s->n_sequences,
        .first = s->first,
        .past = s->cache ? s->cache->length : 0,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .v_dim = c->v_dim,
        .window = chunks ? 0 : last,
        .chunk = chunks ? last : 0,
        .scale = m->scale,
        .eps = (float)c->rms_eps,
        .cap = (float)c->attention_cap,
        .sinks = l->sinks,
        .q_norm = flat ? NULL : l->q_norm,
        .k_norm = flat ? NULL : l->k_norm,
        .rotary_at = c->rotary_at,
        .pairs = c->rope_pairs,
        .out = out,
    };
    int64_t longest = model_longest(s->first, s->n_sequences) + a.past;

    if (model_angles(m, l->index, longest, &a.cs, &a.rotary, e) < 0 ||
        model_growth(m, l->index, longest, &a.growth, e) < 0)
        return e->code;
    a.turned = model_row_keys(c, l->index);
    if ((a.turned && use_rows(l, s, &a, &rows, e) < 0) ||
        (s->cache && s->cache->sequences > 1 &&
         turn_rows(m, s, &a, &rows, e) < 0) ||
        keep_rows(l, s, &rows, e) < 0)
        return e->code;
    if (a.turned)
        a.k_norm = NULL;
    find_heads(m, &rows, &a);
    return m->on->attend(m->context, &a, e) < 0 ? e->code :
                                                  gate_heads(m, &a, e);
}
