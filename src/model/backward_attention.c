/* backward_attention.c - see backward.h: linears and norms of attention.
 *
 * y[PART] holds the output of a linear and is replaced by the gradient with
 * respect to it; with latent attention y[PART_K] and y[PART_V] are composed
 * from the outputs of kv_a and kv_b.  y[PART_O] is the gradient with respect
 * to the attention's output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/rounded.h"
#include "model/backward.h"
#include "model/backward_parts.h"

struct attention_back {
    struct model *m;
    int64_t layer, n; /* n: rows of the batch */
    struct loaded part[PARTS];
    struct loaded fused; /* q, k and v in one, of which part[] has parts */
    float *norm, *q_norm, *k_norm, *q_a_norm, *kv_a_norm, *sinks;
    struct buffer rows;         /* [n, H] x on a device */
    struct buffer elements, in; /* [n, H] the linears' input; then the
                                 * gradient */
    struct buffer y[PARTS];
    struct buffer q_raw, k_raw; /* before norms over all heads (QK_NORM_FLAT) */
    struct buffer q_lat, kv_lat; /* latents behind their norms */
    struct buffer attended;      /* o's input in f32 */
};

/* ---- open, close ---- */

static int load_norm(struct attention_back *a, const char *name, int64_t n,
                     float **w, struct err *e)
{
    return backward_norm_vector(a->m, a->layer, name, n, w, e);
}

/* *w [head_dim]: a norm without weights. */
static int load_one(struct attention_back *a, float **w, struct err *e)
{
    int64_t d = a->m->config.head_dim;

    return norm_ones(d, w, e) < 0 ?
               e->code :
               model_place(a->m, (void **)w, (size_t)d * sizeof(**w), e);
}

/* Norms without weights, in layers with RoPE: in front of it, as it keeps a head's
 * norm. */
static int load_ones(struct attention_back *a, struct err *e)
{
    if (!model_layer_rope(&a->m->config, a->layer))
        return 0;
    return load_one(a, &a->q_norm, e) < 0 ? e->code :
                                            load_one(a, &a->k_norm, e);
}

static int load_norms(struct attention_back *a, struct err *e)
{
    const struct model_config *c = &a->m->config;
    int64_t q = c->head_dim, k = c->head_dim;
    const char *in = model_norms(c)->attn_in;
    char name[MODULE_PATH_MAX];

    if (in && load_norm(a, in, c->hidden_size, &a->norm, e) < 0)
        return e->code;
    if (c->family->sinks) {
        layer_tensor_name(a->layer, "self_attn.sinks", name);
        if (backward_vector(a->m, name, c->n_heads, &a->sinks, e) < 0)
            return e->code;
    }
    if (c->qk_norm == QK_NORM_UNIT)
        return load_ones(a, e);
    if (c->qk_norm == QK_NORM_FLAT) {
        q *= c->n_heads;
        k *= c->n_kv_heads;
    }
    if (c->qk_norm != QK_NORM_NONE &&
        (load_norm(a, "self_attn.q_norm", q, &a->q_norm, e) < 0 ||
         load_norm(a, "self_attn.k_norm", k, &a->k_norm, e) < 0))
        return e->code;
    if (c->mla.q_lora && load_norm(a, "self_attn.q_a_layernorm", c->mla.q_lora,
                                   &a->q_a_norm, e) < 0)
        return e->code;
    return c->mla.kv_lora ? load_norm(a, "self_attn.kv_a_layernorm",
                                      c->mla.kv_lora, &a->kv_a_norm, e) :
                            0;
}

/* The parts of the fused linear l: rows of q, then of k and v. */
static int load_fused(struct attention_back *a, const struct linear *l,
                      struct err *e)
{
    const struct model_config *c = &a->m->config;
    int64_t at = 0,
            rows[] = { c->n_heads * c->head_dim, c->n_kv_heads * c->head_dim,
                       c->n_kv_heads * c->head_dim };

    a->fused.of = *l;
    if (backward_load(a->m, &a->fused, e) < 0)
        return e->code;
    for (int i = 0; i < 3; at += rows[i++]) {
        struct loaded *p = &a->part[PART_Q + i];

        p->of.rows = rows[i];
        p->of.cols = l->cols;
        p->w = backward_weight_at(a->m, &a->fused, at);
        p->bias = a->fused.bias ? a->fused.bias + at : NULL;
    }
    return 0;
}

static int load_linears(struct attention_back *a, struct err *e)
{
    const struct model_config *c = &a->m->config;
    int64_t n = model_linear_common(c, a->layer);
    struct linear l;

    for (int64_t i = 0; i < n; i++) {
        model_linear(c, a->layer, i, &l);
        if (l.input != IN_ATTN && l.input != IN_Q_LAT && l.input != IN_ATTN_OUT)
            continue;
        if (l.part == PART_QKV) {
            if (load_fused(a, &l, e) < 0)
                return e->code;
            continue;
        }
        a->part[l.part].of = l;
        if (backward_load(a->m, &a->part[l.part], e) < 0)
            return e->code;
    }
    if (!c->mla.kv_lora)
        return 0;
    model_kv_b(c, a->layer, &a->part[PART_KV_B].of);
    return backward_load(a->m, &a->part[PART_KV_B], e);
}

int backward_attention_open(struct model *m, int64_t layer,
                            struct attention_back **out, struct err *e)
{
    struct attention_back *a = mem_zero(1, sizeof(*a), "attention", e);

    if (!a)
        return e->code;
    a->m = m;
    a->layer = layer;
    if (load_norms(a, e) < 0 || load_linears(a, e) < 0) {
        backward_attention_close(a);
        return e->code;
    }
    *out = a;
    return 0;
}

static void release(struct attention_back *a)
{
    struct buffer *const buffers[] = { &a->rows,   &a->elements, &a->in,
                                       &a->q_raw,  &a->k_raw,    &a->q_lat,
                                       &a->kv_lat, &a->attended };
    float *const norms[] = { a->norm,     a->q_norm,    a->k_norm,
                             a->q_a_norm, a->kv_a_norm, a->sinks };

    for (int i = PART_Q; i <= PART_V && a->fused.w; i++)
        a->part[i] = (struct loaded){ 0 };
    loaded_release(&a->fused);
    for (int i = 0; i < PARTS; i++) {
        loaded_release(&a->part[i]);
        model_buffer_release(a->m, &a->y[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(buffers); i++)
        model_buffer_release(a->m, buffers[i]);
    for (size_t i = 0; i < ARRAY_LEN(norms); i++)
        model_free(a->m, norms[i]);
}

void backward_attention_close(struct attention_back *a)
{
    if (a)
        release(a);
    free(a);
}

/* ---- linears and norms ---- */

static float *y_of(const struct attention_back *a, enum linear_part p)
{
    return a->y[p].p;
}

static int run_linear(const struct attention_back *a, enum linear_part p,
                      struct backward_linear j, struct err *e)
{
    const struct loaded *l = &a->part[p];

    j.rows = a->n;
    j.out = l->of.rows;
    j.in = l->of.cols;
    j.w = l->w;
    j.bf16 = backward_bf16(a->m);
    j.rounded = rounded(a->n);
    j.bias = j.back ? NULL : l->bias;
    return backward_of(a->m)->linear(a->m->context, &j, e);
}

static int forward(const struct attention_back *a, enum linear_part p,
                   const float *x, struct err *e)
{
    return run_linear(a, p, (struct backward_linear){ .x = x, .y = y_of(a, p) },
                      e);
}

static int backward(const struct attention_back *a, enum linear_part p,
                    float *x, bool add, struct err *e)
{
    return run_linear(a, p,
                      (struct backward_linear){
                          .x = y_of(a, p), .y = x, .back = true, .add = add },
                      e);
}

/* to[n, width] = norm of rows x, leading dimension ld, in f32. */
static int norm(const struct attention_back *a, const float *x, int64_t ld,
                const float *w, int64_t width, float eps, float *to,
                struct err *e)
{
    const struct model *m = a->m;
    const struct forward_norm j = { .dtype = DT_F32,
                                    .x = x,
                                    .rows = a->n,
                                    .n = width,
                                    .ld = ld,
                                    .w = w,
                                    .eps = eps,
                                    .out = to };

    if (m->on)
        return m->on->norm(m->context, &j, e);
    for (int64_t i = 0; i < a->n; i++)
        m->k->norm_f32(x + i * ld, w, width, eps, to + i * width);
    return 0;
}

/* to = gradient with respect to x, the input of norm(); g: that with respect to
 * its output.  to: leading dimension ld; it may be x, or with ld = width g. */
static int norm_back(const struct attention_back *a, const float *x, int64_t ld,
                     const float *w, int64_t width, double eps, const float *g,
                     float *to, struct err *e)
{
    const struct backward_norm j = { .dtype = DT_F32,
                                     .rows = a->n,
                                     .n = width,
                                     .x = x,
                                     .ld = ld,
                                     .w = w,
                                     .eps = eps,
                                     .gy = g,
                                     .g = to,
                                     .ldg = ld };

    return backward_of(a->m)->norm(a->m->context, &j, e);
}

/* If the weights of part p are tuned, add their gradient, of inputs x [n, cols] and
 * gradients g [n, rows] with respect to the outputs. */
static int tune(const struct attention_back *a, enum linear_part p,
                const float *x, const float *g, struct err *e)
{
    const struct linear *of = &a->part[p].of;
    bool fused = a->fused.w && p <= PART_V;
    const struct loaded *whole = fused ? &a->fused : &a->part[p];
    float *to;
    int rc = backward_tuned(a->m, &whole->of, &to, e);

    if (rc < 0 || !to)
        return rc;
    for (int i = PART_Q; fused && i < (int)p; i++)
        to += a->part[i].of.rows * of->cols;
    return backward_of(a->m)->weights(
        a->m->context,
        &(struct backward_weights){ .rows = a->n,
                                    .out = of->rows,
                                    .in = of->cols,
                                    .g = g,
                                    .x = x,
                                    .to = to,
                                    .rounded = rounded(a->n) },
        e);
}

/* The same of o, whose inputs are elements. */
static int tune_output(struct attention_back *a, const void *x, const float *g,
                       struct err *e)
{
    const struct model *m = a->m;
    int64_t n = a->n * a->part[PART_O].of.cols;

    if (!m->tuning)
        return 0;
    if (!m->bf16)
        return tune(a, PART_O, x, g, e);
    if (model_reserve(m, &a->attended, n, 1, sizeof(float), "attention", e) <
            0 ||
        backward_of(m)->widen(m->context, m->dtype, x, n, a->attended.p, e) < 0)
        return e->code;
    return tune(a, PART_O, a->attended.p, g, e);
}

/* ---- queries, keys and values ---- */

static enum linear_part queries(const struct attention_back *a)
{
    return a->m->config.mla.q_lora ? PART_Q_B : PART_Q;
}

/* Keys and values from the outputs of kv_a and kv_b; back: the reverse for
 * gradients. */
static int part_latent(const struct attention_back *a, bool back, struct err *e)
{
    const struct model_config *c = &a->m->config;
    const struct backward_latent j = { .rows = a->n,
                                       .heads = c->n_heads,
                                       .nope = c->mla.nope,
                                       .rope = c->mla.rope,
                                       .v_dim = c->v_dim,
                                       .kv_lora = c->mla.kv_lora,
                                       .key = y_of(a, PART_K),
                                       .value = y_of(a, PART_V),
                                       .a = y_of(a, PART_KV_A),
                                       .b = y_of(a, PART_KV_B),
                                       .back = back };

    return backward_of(a->m)->latent(a->m->context, &j, e);
}

static int project_latent(const struct attention_back *a, struct err *e)
{
    const struct mla *l = &a->m->config.mla;

    if (l->q_lora && (forward(a, PART_Q_A, a->in.p, e) < 0 ||
                      norm(a, y_of(a, PART_Q_A), l->q_lora, a->q_a_norm,
                           l->q_lora, LATENT_EPS, a->q_lat.p, e) < 0))
        return e->code;
    if (forward(a, queries(a), l->q_lora ? a->q_lat.p : a->in.p, e) < 0 ||
        forward(a, PART_KV_A, a->in.p, e) < 0 ||
        norm(a, y_of(a, PART_KV_A), l->kv_lora + l->rope, a->kv_a_norm,
             l->kv_lora, LATENT_EPS, a->kv_lat.p, e) < 0 ||
        forward(a, PART_KV_B, a->kv_lat.p, e) < 0)
        return e->code;
    return part_latent(a, false, e);
}

static int project(const struct attention_back *a, struct err *e)
{
    const struct model *m = a->m;
    const struct model_config *c = &m->config;
    int64_t q = c->n_heads * c->head_dim, k = c->n_kv_heads * c->head_dim;
    size_t row = (size_t)a->n * sizeof(float);

    for (enum linear_part p = PART_Q; p <= PART_V; p++)
        if (forward(a, p, a->in.p, e) < 0)
            return e->code;
    if (c->qk_norm != QK_NORM_FLAT)
        return 0;
    if (model_copy(m, a->q_raw.p, y_of(a, PART_Q), (size_t)q * row, e) < 0 ||
        model_copy(m, a->k_raw.p, y_of(a, PART_K), (size_t)k * row, e) < 0 ||
        norm(a, a->q_raw.p, q, a->q_norm, q, (float)c->rms_eps, y_of(a, PART_Q),
             e) < 0)
        return e->code;
    return norm(a, a->k_raw.p, k, a->k_norm, k, (float)c->rms_eps,
                y_of(a, PART_K), e);
}

static int project_latent_back(const struct attention_back *a, struct err *e)
{
    const struct mla *l = &a->m->config.mla;
    int64_t kv = l->kv_lora + l->rope;
    float *kv_a = y_of(a, PART_KV_A), *q_a = y_of(a, PART_Q_A);
    enum linear_part q = l->q_lora ? PART_Q_A : PART_Q;

    if (part_latent(a, true, e) < 0 ||
        tune(a, PART_KV_B, a->kv_lat.p, y_of(a, PART_KV_B), e) < 0 ||
        backward(a, PART_KV_B, a->kv_lat.p, false, e) < 0 ||
        norm_back(a, kv_a, kv, a->kv_a_norm, l->kv_lora, (double)LATENT_EPS,
                  a->kv_lat.p, kv_a, e) < 0 ||
        tune(a, PART_KV_A, a->in.p, kv_a, e) < 0)
        return e->code;
    if (l->q_lora && (tune(a, PART_Q_B, a->q_lat.p, y_of(a, PART_Q_B), e) < 0 ||
                      backward(a, PART_Q_B, a->q_lat.p, false, e) < 0 ||
                      norm_back(a, q_a, l->q_lora, a->q_a_norm, l->q_lora,
                                (double)LATENT_EPS, a->q_lat.p, q_a, e) < 0))
        return e->code;
    if (tune(a, q, a->in.p, y_of(a, q), e) < 0 ||
        backward(a, PART_KV_A, a->in.p, false, e) < 0)
        return e->code;
    return backward(a, q, a->in.p, true, e);
}

static int project_back(const struct attention_back *a, struct err *e)
{
    const struct model_config *c = &a->m->config;
    int64_t q = c->n_heads * c->head_dim, k = c->n_kv_heads * c->head_dim;

    if (c->qk_norm == QK_NORM_FLAT &&
        (norm_back(a, a->q_raw.p, q, a->q_norm, q, c->rms_eps, y_of(a, PART_Q),
                   y_of(a, PART_Q), e) < 0 ||
         norm_back(a, a->k_raw.p, k, a->k_norm, k, c->rms_eps, y_of(a, PART_K),
                   y_of(a, PART_K), e) < 0))
        return e->code;
    for (enum linear_part p = PART_Q; p <= PART_V; p++)
        if (tune(a, p, a->in.p, y_of(a, p), e) < 0)
            return e->code;
    for (enum linear_part p = PART_Q; p <= PART_V; p++)
        if (backward(a, p, a->in.p, p != PART_Q, e) < 0)
            return e->code;
    return 0;
}

/* ---- all of it ---- */

static int reserve(struct attention_back *a, struct err *e)
{
    const struct model_config *c = &a->m->config;
    bool flat = c->qk_norm == QK_NORM_FLAT;
    int64_t h = c->hidden_size, q = c->n_heads * c->head_dim,
            k = c->n_kv_heads * c->head_dim, v = c->n_kv_heads * c->v_dim;
    const struct {
        struct buffer *b;
        int64_t width;
    } rooms[] = {
        { &a->in, h },
        { &a->y[queries(a)], q },
        { &a->y[PART_K], k },
        { &a->y[PART_V], v },
        { &a->y[PART_O], c->n_heads * c->v_dim },
        { &a->y[PART_Q_A], c->mla.q_lora },
        { &a->y[PART_KV_A], a->part[PART_KV_A].of.rows },
        { &a->y[PART_KV_B], a->part[PART_KV_B].of.rows },
        { &a->q_lat, c->mla.q_lora },
        { &a->kv_lat, c->mla.kv_lora },
        { &a->q_raw, flat ? q : 0 },
        { &a->k_raw, flat ? k : 0 },
    };

    for (size_t i = 0; i < ARRAY_LEN(rooms); i++)
        if (rooms[i].width &&
            model_reserve(a->m, rooms[i].b, a->n, rooms[i].width, sizeof(float),
                          "attention", e) < 0)
            return e->code;
    return model_reserve(a->m, &a->elements, a->n, h, a->m->size, "attention",
                         e);
}

static int attend(const struct attention_back *a, const int64_t *first,
                  int64_t n_sequences, struct err *e)
{
    struct model *m = a->m;
    const struct model_config *c = &m->config;
    bool head = c->qk_norm == QK_NORM_HEAD || c->qk_norm == QK_NORM_UNIT;
    bool chunks = c->family->sliding == SLIDING_CHUNKS;
    int64_t longest = model_longest(first, n_sequences);
    int64_t keys = model_layer_slides(c, a->layer) ? c->sliding_window : 0;
    struct backward_attend j = {
        .rows = a->n,
        .n_sequences = n_sequences,
        .first = first,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .v_dim = c->v_dim,
        .window = chunks ? 0 : keys,
        .chunk = chunks ? keys : 0,
        .scale = m->scale,
        .eps = (float)c->rms_eps,
        .cap = (float)c->attention_cap,
        .q_norm = head ? a->q_norm : NULL,
        .k_norm = head ? a->k_norm : NULL,
        .rotary_at = c->rotary_at,
        .pairs = c->rope_pairs,
        .sinks = a->sinks,
        .go = y_of(a, PART_O),
        .q = y_of(a, queries(a)),
        .k = y_of(a, PART_K),
        .v = y_of(a, PART_V),
        .rounded = rounded(a->n),
    };

    return model_angles(m, a->layer, longest, &j.cs, &j.rotary, e) < 0 ||
                   model_growth(m, a->layer, longest, &j.growth, e) < 0 ?
               e->code :
               backward_of(m)->attend(m->context, &j, e);
}

/* Add |.|^2 of the rows of the gradient with respect to what part p puts out. */
static int add_squares(const struct attention_back *a, enum linear_part p,
                       float *to, struct err *e)
{
    return backward_of(a->m)->squares(a->m->context, y_of(a, p), a->n,
                                      a->part[p].of.rows, to, e);
}

/* Of all linears but o. */
static int add_all_squares(const struct attention_back *a,
                           const struct token_squares *to, struct err *e)
{
    const struct model_config *c = &a->m->config;
    int64_t n = to->p ? model_linear_common(c, a->layer) : 0;
    struct linear l;
    int rc = 0;

    for (int64_t i = 0; i < n && rc >= 0; i++) {
        float *row = to->p + i * to->ld;

        model_linear(c, a->layer, i, &l);
        if (l.part == PART_QKV)
            for (int p = PART_Q; p <= PART_V && rc >= 0; p++)
                rc = add_squares(a, p, row, e);
        else if (l.input < IN_ATTN_OUT)
            rc = add_squares(a, l.part, row, e);
    }
    return rc;
}

/* The gradient with respect to o's input, from that with respect to its
 * output, whose squares are added here: `out` may be g, which changes. */
static int output_back(const struct attention_back *a, const float *out,
                       const struct token_squares *to, struct err *e)
{
    const struct model_config *c = &a->m->config;
    struct linear l;
    int64_t i = 0;

    do
        model_linear(c, a->layer, i++, &l);
    while (l.part != PART_O);
    if (to->p && backward_of(a->m)->squares(a->m->context, out, a->n, l.rows,
                                            to->p + (i - 1) * to->ld, e) < 0)
        return e->code;
    return run_linear(a, PART_O,
                      (struct backward_linear){
                          .x = out, .y = y_of(a, PART_O), .back = true },
                      e);
}

int backward_attention(struct attention_back *a,
                       const struct attention_batch *b, struct err *e)
{
    struct model *m = a->m;
    const struct backward_table *back = backward_of(m);
    const struct model_config *c = &m->config;
    bool latent = c->mla.kv_lora;
    const void *x;

    a->n = b->first[b->n_sequences];
    if (reserve(a, e) < 0 ||
        backward_rows(m, &a->rows, b->x, b->there, a->n, &x, e) < 0 ||
        (a->norm && model_norm(m, x, a->norm, a->n, a->elements.p, e) < 0) ||
        back->widen(m->context, m->dtype, a->norm ? a->elements.p : x,
                    a->n * c->hidden_size, a->in.p, e) < 0 ||
        (latent ? project_latent(a, e) : project(a, e)) < 0 ||
        tune_output(a, b->attended, b->out, e) < 0 ||
        output_back(a, b->out, &b->squares, e) < 0 ||
        attend(a, b->first, b->n_sequences, e) < 0 ||
        (latent ? project_latent_back(a, e) : project_back(a, e)) < 0 ||
        add_all_squares(a, &b->squares, e) < 0)
        return e->code;
    return backward_stream(m, x, a->norm, a->in.p, a->n, b->g, false, e);
}

const float *backward_attention_of(const struct attention_back *a,
                                   const struct linear *l)
{
    return l->part == PART_K || l->part == PART_V || l->part == PART_KV_A ?
               y_of(a, l->part) :
               NULL;
}
