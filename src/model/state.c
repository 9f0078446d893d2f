/* state.c - see model.h: points of a layer, and the state of a batch. */
#include "arch/lacks.h"
#include "model/internal.h"

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
    bool linear = model_layer_linear(c, layer);

    if (p == POINT_Q_LAT)
        return c->mla.q_lora && !linear;
    if (p == POINT_KV_LAT)
        return c->kv_b && !linear;
    return p != POINT_MLP_MID || model_layer_width(c, layer);
}

bool point_adds(const struct model_config *c, int64_t layer, enum point p)
{
    bool gated = c->family->shared_gate && model_layer_experts(c, layer);

    return !model_adds_scaled(c) &&
           (p == POINT_ATTN_OUT || (p == POINT_MLP_MID && !gated));
}

int64_t point_width(const struct model_config *c, int64_t layer, enum point p)
{
    switch (p) {
    case POINT_Q_LAT: return c->mla.q_lora;
    case POINT_KV_LAT: return c->mla.kv_lora;
    case POINT_ATTN_OUT:
        return model_layer_linear(c, layer) ?
                   c->delta.v_heads * c->delta.v_dim :
                   c->n_heads * c->v_dim;
    case POINT_MLP_MID: return model_layer_width(c, layer);
    case POINT_IN:
    case POINT_OUT: return model_row(c);
    default: return c->hidden_size;
    }
}

/* ---- a batch ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The widest activation of all layers. */
static int64_t widest(const struct model_config *c)
{
    int64_t w = larger(c->hidden_size, c->n_heads * c->v_dim);

    w = larger(w, larger(c->mla.q_lora, c->moe.shared_width));
    w = larger(w, c->mla.kv_lora);
    w = larger(w, c->delta.v_heads * c->delta.v_dim);
    return larger(w, c->intermediate_size);
}

void model_warn_of_length(const struct model_config *c, int64_t length)
{
    static bool said;

    if (!said && c->max_position && length > c->max_position) {
        warning("a sequence of %lld tokens, the model was made for up to "
                "max_position_embeddings %lld",
                (long long)length, (long long)c->max_position);
        said = true;
    }
}

int model_supports(const struct model_config *c, int64_t length, struct err *e)
{
    if (c->longest && length > c->longest)
        return err_set(e, E_CONFIG,
                       "a sequence of %lld tokens: %s is supported up to "
                       "%s %lld%s",
                       (long long)length, c->family->model_type, c->longest_by,
                       (long long)c->longest,
                       c->family->indexer ? ", where its attention is dense" :
                                            "");
    if (c->rope.kind == ROPE_DYNAMIC && length > c->max_position)
        return err_set(e, E_CONFIG,
                       "a sequence of %lld tokens: rope type 'dynamic' is "
                       "supported up to max_position_embeddings %lld",
                       (long long)length, (long long)c->max_position);
    return 0;
}

int model_check_length(const struct model *m, int64_t length, struct err *e)
{
    const struct model_config *c = &m->config;
    const char *lacks = m->on ? model_device_lacks(c, length) : NULL;

    if (lacks)
        return err_set(e, E_CONFIG,
                       "cuda: a sequence of %lld tokens has %s, which is not "
                       "supported there",
                       (long long)length, lacks);
    if (model_supports(c, length, e) < 0)
        return e->code;
    model_warn_of_length(c, length);
    return 0;
}

static int reserve_rows(const struct state *s, struct buffer *b, int64_t rows,
                        int64_t width, struct err *e)
{
    static const char what[] = "states";

    return s->host ? buffer_reserve(b, rows, width, s->m->size, what, e) :
                     model_reserve(s->m, b, rows, width, s->m->size, what, e);
}

static void release_rows(const struct state *s, struct buffer *b)
{
    if (s->m && !s->host)
        model_buffer_release(s->m, b);
    else
        buffer_release(b);
}

int state_reserve(struct state *s, const struct model *m, int64_t rows,
                  int64_t n_sequences, struct err *e)
{
    const struct model_config *c = &m->config;

    s->m = m;
    if (buffer_reserve(&s->firsts, n_sequences + 1, 1, sizeof(int64_t),
                       "sequences", e) < 0 ||
        reserve_rows(s, &s->xs, rows, model_row(c), e) < 0 ||
        (!s->host && (reserve_rows(s, &s->acts[0], rows, widest(c), e) < 0 ||
                      reserve_rows(s, &s->acts[1], rows, widest(c), e) < 0)))
        return e->code;
    s->dtype = m->dtype;
    s->row = model_row(c);
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
        if (model_check_length(m, length[i], e) < 0)
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
    release_rows(s, &s->xs);
    release_rows(s, &s->acts[0]);
    release_rows(s, &s->acts[1]);
    *s = (struct state){ 0 };
}

void *state_x(const struct state *s, int64_t r)
{
    return state_at(s->x, s->dtype, r * s->row);
}
