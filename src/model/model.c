/* model.c - see model.h: opening, batches, embedding, head. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/expertmap.h"
#include "model/internal.h"

static const char EMBEDDING[] = "model.embed_tokens";

int model_open(struct model **out, const char *dir, enum dtype dtype,
               struct err *e)
{
    struct model *m = mem_zero(1, sizeof(*m), "model", e);

    if (!m)
        return e->code;
    m->dtype = dtype;
    m->bf16 = dtype == DT_BF16;
    m->size = m->bf16 ? 2 : 4;
    m->k = kernels_best();
    if (model_config_read(&m->config, dir, e) < 0 ||
        checkpoint_open(&m->ck, dir, e) < 0) {
        model_close(m);
        return e->code;
    }
    if (m->config.moe.n_router > m->config.moe.n_experts &&
        expert_map_stored(m->ck, m->config.n_layers, m->config.moe.n_router,
                          &m->expert_map, e) < 0) {
        model_close(m);
        return e->code;
    }
    m->scale = (float)m->config.attention_scale;
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    model_release_embedding(m);
    rope_table_release(&m->rope);
    buffer_release(&m->q);
    buffer_release(&m->key);
    buffer_release(&m->value);
    buffer_release(&m->latent);
    buffer_release(&m->keys);
    buffer_release(&m->values);
    buffer_release(&m->blocks);
    checkpoint_close(m->ck);
    model_config_release(&m->config);
    free(m->expert_map);
    free(m);
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const struct remap_counts *model_remapped(const struct model *m)
{
    return m->expert_map ? &m->remapped : NULL;
}

enum dtype model_dtype(const struct model *m)
{
    return m->dtype;
}

int model_vector(struct model *m, const char *name, int64_t n, float **v,
                 struct err *e)
{
    if (checkpoint_vector(m->ck, name, (uint64_t)n, v, e) < 0)
        return e->code;
    for (int64_t i = 0; m->bf16 && i < n; i++)
        (*v)[i] = f32_from_bf16(bf16_from_f32((*v)[i]));
    return 0;
}

/* ---- points ---- */

const char *point_name(enum point p)
{
    enum input_class c = point_input(p);

    return c == IN_COUNT ? "hidden" : input_class_name(c);
}

enum input_class point_input(enum point p)
{
    return p > POINT_IN && p < POINT_OUT ? (enum input_class)(p - 1) : IN_COUNT;
}

bool point_exists(const struct model_config *c, int64_t layer, enum point p)
{
    if (p == POINT_Q_LAT)
        return c->mla.q_lora;
    return p != POINT_MLP_MID || model_layer_width(c, layer);
}

bool point_adds(const struct model_config *c, int64_t layer, enum point p)
{
    bool gated = c->family->shared_gate && model_layer_experts(c, layer);

    return p == POINT_ATTN_OUT || (p == POINT_MLP_MID && !gated);
}

int64_t point_width(const struct model_config *c, int64_t layer, enum point p)
{
    switch (p) {
    case POINT_Q_LAT: return c->mla.q_lora;
    case POINT_ATTN_OUT: return c->n_heads * c->v_dim;
    case POINT_MLP_MID: return model_layer_width(c, layer);
    default: return c->hidden_size;
    }
}

/* ---- a batch ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of all activations of all layers. */
static int64_t widest(const struct model_config *c)
{
    int64_t w = larger(c->hidden_size, c->n_heads * c->v_dim);

    w = larger(w, larger(c->mla.q_lora, c->moe.shared_width));
    return larger(w, c->intermediate_size);
}

static int check_length(const struct model_config *c, int64_t length,
                        struct err *e)
{
    if (c->longest && length > c->longest)
        return err_set(e, E_CONFIG,
                       "a sequence of %lld tokens: %s is supported up to "
                       "index_topk %lld, where its attention is dense",
                       (long long)length, c->family->model_type,
                       (long long)c->longest);
    if (c->rope.kind == ROPE_DYNAMIC && length > c->max_position)
        return err_set(e, E_CONFIG,
                       "a sequence of %lld tokens: rope type 'dynamic' is "
                       "supported up to max_position_embeddings %lld",
                       (long long)length, (long long)c->max_position);
    return 0;
}

int state_reserve(struct state *s, const struct model *m, int64_t rows,
                  int64_t n_sequences, struct err *e)
{
    const struct model_config *c = &m->config;

    if (buffer_reserve(&s->firsts, n_sequences + 1, 1, sizeof(int64_t),
                       "sequences", e) < 0 ||
        buffer_reserve(&s->xs, rows, c->hidden_size, m->size, "hidden states",
                       e) < 0 ||
        buffer_reserve(&s->acts[0], rows, widest(c), m->size, "activations",
                       e) < 0 ||
        buffer_reserve(&s->acts[1], rows, widest(c), m->size, "activations",
                       e) < 0)
        return e->code;
    s->dtype = m->dtype;
    s->hidden_size = c->hidden_size;
    s->first = s->firsts.p;
    s->x = s->xs.p;
    s->act = s->acts[s->current].p;
    return 0;
}

int state_prepare(struct state *s, const struct model *m, enum point at,
                  const int64_t *length, int64_t n_sequences, struct err *e)
{
    int64_t rows = 0;

    for (int64_t i = 0; i < n_sequences; i++) {
        if (check_length(&m->config, length[i], e) < 0)
            return e->code;
        rows += length[i];
    }
    if (state_reserve(s, m, rows, n_sequences, e) < 0)
        return e->code;
    s->at = at;
    s->n_sequences = n_sequences;
    s->rows = rows;
    s->first[0] = 0;
    for (int64_t i = 0; i < n_sequences; i++)
        s->first[i + 1] = s->first[i] + length[i];
    return 0;
}

void state_release(struct state *s)
{
    buffer_release(&s->firsts);
    buffer_release(&s->xs);
    buffer_release(&s->acts[0]);
    buffer_release(&s->acts[1]);
    *s = (struct state){ 0 };
}

void *state_x(const struct state *s, int64_t r)
{
    return state_at(s->x, s->dtype, r * s->hidden_size);
}

bool model_finite(const struct model *m, const void *p, int64_t n)
{
    return m->bf16 ? m->k->finite_bf16(p, n) : m->k->finite_f32(p, n);
}

/* ---- embedding ---- */

int model_load_embedding(struct model *m, struct err *e)
{
    const struct model_config *c = &m->config;
    const struct ck_tensor *t;
    char name[MODULE_PATH_MAX];

    if (m->embedding)
        return 0;
    snprintf(name, sizeof(name), "%s.weight", EMBEDDING);
    t = checkpoint_find(m->ck, name);
    if (!t)
        return err_set(e, E_DATA, "'%s' is missing", name);
    if (t->ndim != 2 || t->dims[0] != (uint64_t)c->vocab_size ||
        t->dims[1] != (uint64_t)c->hidden_size)
        return err_set(
            e, E_DATA, "'%s' is not [%lld,%lld], vocab_size by hidden_size",
            name, (long long)c->vocab_size, (long long)c->hidden_size);
    if (!dtype_is_float(t->dtype))
        return err_set(e, E_DATA, "'%s' is %s, no float", name,
                       dtype_name(t->dtype));
    m->embedding = mem_alloc((size_t)t->bytes, name, e);
    if (!m->embedding)
        return e->code;
    m->embedding_dtype = t->dtype;
    if (checkpoint_read(m->ck, t, m->embedding, e) < 0) {
        model_release_embedding(m);
        return e->code;
    }
    return 0;
}

void model_release_embedding(struct model *m)
{
    free(m->embedding);
    m->embedding = NULL;
}

int model_embed(const struct model *m, const int32_t *tokens, int64_t n,
                void *out, struct err *e)
{
    int64_t h = m->config.hidden_size;
    size_t row = (size_t)h * dtype_bits(m->embedding_dtype) / 8;
    float *f = NULL;
    bool ok = true;

    if (m->embedding_dtype != m->dtype) {
        f = scratch_thread((size_t)h * sizeof(float), e);
        if (!f)
            return e->code;
    }
    for (int64_t i = 0; i < n; i++) {

        const char *src;
        void *to = (char *)out + (size_t)(i * h) * m->size;

        if (tokens[i] < 0 || tokens[i] >= m->config.vocab_size)
            return err_set(e, E_DATA,
                           "token %d at position %lld is not in the "
                           "vocabulary of %lld",
                           tokens[i], (long long)i,
                           (long long)m->config.vocab_size);
        src = (const char *)m->embedding + (size_t)tokens[i] * row;
        if (f)
            ok = to_f32(f, src, m->embedding_dtype, (size_t)h) &&
                 from_f32(to, m->dtype, f, (size_t)h);
        else
            memcpy(to, src, row);
    }
    return ok ? 0 : err_set(e, E_BUG, "the embedding is no float");
}

/* ---- logits ---- */

struct head {
    struct model *m;
    float *norm;
    void *w; /* elements [vocab_size, hidden_size] */
};

const char *model_head_module(const struct model *m, struct err *e)
{
    static const char *const stored[] = { "lm_head.weight", "lm_head.qweight",
                                          "lm_head.weight_packed" };

    for (size_t i = 0; i < ARRAY_LEN(stored); i++)
        if (checkpoint_find(m->ck, stored[i]))
            return "lm_head";
    if (m->config.tied)
        return EMBEDDING;
    err_set(e, E_DATA,
            "'lm_head.weight' is missing, and tie_word_embeddings "
            "is not set");
    return NULL;
}

static int load_head(struct head *h, struct err *e)
{
    struct model *m = h->m;
    const char *module = model_head_module(m, e);

    if (!module)
        return e->code;
    if (model_vector(m, "model.norm.weight", m->config.hidden_size, &h->norm,
                     e) < 0)
        return e->code;
    if (model_weight(m, module, m->config.vocab_size, m->config.hidden_size,
                     &h->w, e) < 0)
        return e->code;
    return product_pack(m, m->config.vocab_size, m->config.hidden_size, &h->w,
                        e);
}

int model_load_head(struct model *m, struct head **out, struct err *e)
{
    struct head *h = mem_zero(1, sizeof(*h), "head", e);

    if (!h)
        return e->code;
    h->m = m;
    if (load_head(h, e) < 0) {
        head_release(h);
        return e->code;
    }
    *out = h;
    return 0;
}

void head_release(struct head *h)
{
    if (!h)
        return;
    free(h->norm);
    free(h->w);
    free(h);
}

void head_norm(const struct head *h, const void *x, int64_t n, void *out)
{
    model_norm(h->m, x, h->norm, n, out);
}

int head_logits(const struct head *h, const void *normed, int64_t n, int64_t v0,
                int64_t nv, float *logits, int64_t ld, struct err *e)
{
    const struct model_config *c = &h->m->config;
    struct loaded l = { .of = { .rows = c->vocab_size, .cols = c->hidden_size },
                        .w = h->w };

    return product_sums(h->m, normed, n, &l, v0, nv, logits, ld, e);
}
