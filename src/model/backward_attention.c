/* backward_attention.c - see backward.h: linears and norms of attention.
 *
 * y[PART] holds the output of a linear and is replaced by the gradient with
 * respect to it; with latent attention y[PART_K] and y[PART_V] are composed
 * from the outputs of kv_a and kv_b.  y[PART_O] is the gradient with respect
 * to the attention's output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/threads.h"
#include "model/backward.h"
#include "model/internal.h"

enum { ROWS = 128 }; /* rows of a product of one thread */

struct attention_back {
    struct model *m;
    int64_t layer, n; /* n: rows of the batch */
    struct loaded part[PARTS];
    float *norm, *q_norm, *k_norm, *q_a_norm, *kv_a_norm;
    struct buffer elements, in; /* [n, H] the linears' input; then the
                                 * gradient */
    struct buffer y[PARTS];
    struct buffer q_raw, k_raw; /* before norms over all heads (QK_NORM_FLAT) */
    struct buffer q_lat, kv_lat; /* latents behind their norms */
};

/* ---- open, close ---- */

static int load_norm(struct attention_back *a, const char *name, int64_t n,
                     float **w, struct err *e)
{
    char part[MODULE_PATH_MAX], path[MODULE_PATH_MAX];

    snprintf(part, sizeof(part), "%s.weight", name);
    layer_tensor_name(a->layer, part, path);
    return model_vector(a->m, path, n, w, e);
}

static int load_norms(struct attention_back *a, struct err *e)
{
    const struct model_config *c = &a->m->config;
    int64_t q = c->head_dim, k = c->head_dim;

    if (load_norm(a, "input_layernorm", c->hidden_size, &a->norm, e) < 0)
        return e->code;
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

static int load_linears(struct attention_back *a, struct err *e)
{
    const struct model_config *c = &a->m->config;
    int64_t n = model_linear_common(c, a->layer);
    struct linear l;

    for (int64_t i = 0; i < n; i++) {
        model_linear(c, a->layer, i, &l);
        if (l.input != IN_ATTN && l.input != IN_Q_LAT && l.input != IN_ATTN_OUT)
            continue;
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

    if (!a || blas_open(e) < 0) {
        free(a);
        return e->code;
    }
    a->m = m;
    a->layer = layer;
    if (load_norms(a, e) < 0 || load_linears(a, e) < 0) {
        backward_attention_close(a);
        return e->code;
    }
    *out = a;
    return 0;
}

void backward_attention_close(struct attention_back *a)
{
    if (!a)
        return;
    for (int i = 0; i < PARTS; i++) {
        loaded_release(&a->part[i]);
        buffer_release(&a->y[i]);
    }
    buffer_release(&a->elements);
    buffer_release(&a->in);
    buffer_release(&a->q_raw);
    buffer_release(&a->k_raw);
    buffer_release(&a->q_lat);
    buffer_release(&a->kv_lat);
    free(a->norm);
    free(a->q_norm);
    free(a->k_norm);
    free(a->q_a_norm);
    free(a->kv_a_norm);
    free(a);
}

/* ---- linears and norms ---- */

/* y = x Wᵀ + bias; back: y = x W, or add: y += x W. */
struct linear_job {
    const struct loaded *l;
    const float *x;
    float *y;
    int64_t n;
    bool back, add;
};

static void linear_rows(void *ctx, size_t begin, size_t end)
{
    const struct linear_job *j = ctx;
    int out = (int)j->l->of.rows, in = (int)j->l->of.cols;
    const float *bias = j->l->bias;

    for (int64_t at = (int64_t)begin * ROWS; at < (int64_t)end * ROWS;
         at += ROWS) {
        int n = (int)(j->n - at < ROWS ? j->n - at : ROWS);
        const float *x = j->x + at * (j->back ? out : in);
        float *y = j->y + at * (j->back ? in : out);

        if (j->back) {
            blas_sgemm(&(struct sgemm){ .m = n,
                                        .n = in,
                                        .k = out,
                                        .a = x,
                                        .b = j->l->w,
                                        .beta = j->add ? 1 : 0,
                                        .c = y });
            continue;
        }
        blas_sgemm(&(struct sgemm){ .tb = true,
                                    .m = n,
                                    .n = out,
                                    .k = in,
                                    .a = x,
                                    .b = j->l->w,
                                    .c = y });
        for (int64_t i = 0; bias && i < n; i++)
            for (int64_t k = 0; k < out; k++)
                y[i * out + k] += bias[k];
    }
}

static void run_linear(struct linear_job j)
{
    threads_for((size_t)((j.n + ROWS - 1) / ROWS), 1, linear_rows, &j);
}

static float *y_of(const struct attention_back *a, enum linear_part p)
{
    return a->y[p].p;
}

static void forward(const struct attention_back *a, enum linear_part p,
                    const float *x)
{
    run_linear((struct linear_job){
        .l = &a->part[p], .x = x, .y = y_of(a, p), .n = a->n });
}

static void backward(const struct attention_back *a, enum linear_part p,
                     float *x, bool add)
{
    run_linear((struct linear_job){ .l = &a->part[p],
                                    .x = y_of(a, p),
                                    .y = x,
                                    .n = a->n,
                                    .back = true,
                                    .add = add });
}

static void norm(const struct attention_back *a, const float *x, int64_t ld,
                 const float *w, int64_t n, float eps, float *to)
{
    for (int64_t i = 0; i < a->n; i++)
        a->m->k->norm_f32(x + i * ld, w, n, eps, to + i * n);
}

/* g: gradient with respect to the output of a norm of x, replaced by that with
 * respect to x. */
static void norm_back(const struct attention_back *a, const float *x,
                      int64_t ld, const float *w, int64_t n, double eps,
                      float *g)
{
    struct norm_back j = { x, DT_F32, n, ld, w, eps, g, g };

    threads_for((size_t)a->n, 16, backward_norm_rows, &j);
}

/* ---- queries, keys and values ---- */

static enum linear_part queries(const struct attention_back *a)
{
    return a->m->config.mla.q_lora ? PART_Q_B : PART_Q;
}

/* gather: keys and values from the outputs of kv_a and kv_b; else the reverse
 * for gradients.  The rotary part of a key is shared by all heads, so its
 * gradient is their sum. */
static void part_latent(const struct attention_back *a, bool gather)
{
    const struct model_config *c = &a->m->config;
    int64_t nope = c->mla.nope, rope = c->mla.rope, v = c->v_dim;
    float *key = y_of(a, PART_K), *value = y_of(a, PART_V);
    float *tail = y_of(a, PART_KV_A) + c->mla.kv_lora;
    float *both = y_of(a, PART_KV_B);

    for (int64_t i = 0; i < a->n; i++, tail += c->mla.kv_lora + rope) {
        for (int64_t k = 0; !gather && k < rope; k++)
            tail[k] = 0;
        for (int64_t h = 0; h < c->n_heads; h++) {
            for (int64_t k = 0; k < nope + rope; k++, key++) {
                float *part = k < nope ? both + k : tail + k - nope;

                if (gather)
                    *key = *part;
                else
                    *part = k < nope ? *key : *part + *key;
            }
            both += nope;
            memcpy(gather ? value : both, gather ? both : value,
                   (size_t)v * sizeof(*value));
            value += v;
            both += v;
        }
    }
}

static void project_latent(const struct attention_back *a)
{
    const struct mla *l = &a->m->config.mla;

    if (l->q_lora) {
        forward(a, PART_Q_A, a->in.p);
        norm(a, y_of(a, PART_Q_A), l->q_lora, a->q_a_norm, l->q_lora,
             LATENT_EPS, a->q_lat.p);
    }
    forward(a, queries(a), l->q_lora ? a->q_lat.p : a->in.p);
    forward(a, PART_KV_A, a->in.p);
    norm(a, y_of(a, PART_KV_A), l->kv_lora + l->rope, a->kv_a_norm, l->kv_lora,
         LATENT_EPS, a->kv_lat.p);
    forward(a, PART_KV_B, a->kv_lat.p);
    part_latent(a, true);
}

static void project(const struct attention_back *a)
{
    const struct model_config *c = &a->m->config;
    int64_t q = c->n_heads * c->head_dim, k = c->n_kv_heads * c->head_dim;

    for (enum linear_part p = PART_Q; p <= PART_V; p++)
        forward(a, p, a->in.p);
    if (c->qk_norm != QK_NORM_FLAT)
        return;
    memcpy(a->q_raw.p, y_of(a, PART_Q), (size_t)(a->n * q) * sizeof(float));
    memcpy(a->k_raw.p, y_of(a, PART_K), (size_t)(a->n * k) * sizeof(float));
    norm(a, a->q_raw.p, q, a->q_norm, q, (float)c->rms_eps, y_of(a, PART_Q));
    norm(a, a->k_raw.p, k, a->k_norm, k, (float)c->rms_eps, y_of(a, PART_K));
}

static void project_latent_back(const struct attention_back *a)
{
    const struct mla *l = &a->m->config.mla;
    int64_t kv = l->kv_lora + l->rope;
    float *lat = a->kv_lat.p, *y = y_of(a, PART_KV_A);

    part_latent(a, false);
    backward(a, PART_KV_B, lat, false);
    norm_back(a, y, kv, a->kv_a_norm, l->kv_lora, (double)LATENT_EPS, lat);
    for (int64_t i = 0; i < a->n; i++)
        memcpy(y + i * kv, lat + i * l->kv_lora,
               (size_t)l->kv_lora * sizeof(*y));
    backward(a, PART_KV_A, a->in.p, false);
    if (l->q_lora) {
        backward(a, PART_Q_B, a->q_lat.p, false);
        norm_back(a, y_of(a, PART_Q_A), l->q_lora, a->q_a_norm, l->q_lora,
                  (double)LATENT_EPS, a->q_lat.p);
        memcpy(y_of(a, PART_Q_A), a->q_lat.p,
               (size_t)(a->n * l->q_lora) * sizeof(float));
    }
    backward(a, l->q_lora ? PART_Q_A : PART_Q, a->in.p, true);
}

static void project_back(const struct attention_back *a)
{
    const struct model_config *c = &a->m->config;
    int64_t q = c->n_heads * c->head_dim, k = c->n_kv_heads * c->head_dim;

    if (c->qk_norm == QK_NORM_FLAT) {
        norm_back(a, a->q_raw.p, q, a->q_norm, q, c->rms_eps, y_of(a, PART_Q));
        norm_back(a, a->k_raw.p, k, a->k_norm, k, c->rms_eps, y_of(a, PART_K));
    }
    for (enum linear_part p = PART_Q; p <= PART_V; p++)
        backward(a, p, a->in.p, p != PART_Q);
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
        if (rooms[i].width && buffer_reserve(rooms[i].b, a->n, rooms[i].width,
                                             sizeof(float), "attention", e) < 0)
            return e->code;
    return buffer_reserve(&a->elements, a->n, h, a->m->size, "attention", e);
}

int backward_attention(struct attention_back *a, const void *x,
                       const int64_t *first, int64_t n_sequences, float *g,
                       struct err *e)
{
    struct model *m = a->m;
    const struct model_config *c = &m->config;
    bool head = c->qk_norm == QK_NORM_HEAD;
    struct attend_back j = { .m = m,
                             .layer = a->layer,
                             .first = first,
                             .n_sequences = n_sequences,
                             .q_norm = head ? a->q_norm : NULL,
                             .k_norm = head ? a->k_norm : NULL };

    a->n = first[n_sequences];
    if (reserve(a, e) < 0 ||
        model_norm(m, x, a->norm, a->n, a->elements.p, e) < 0)
        return e->code;
    (void)!to_f32(a->in.p, a->elements.p, m->dtype,
                  (size_t)(a->n * c->hidden_size));
    if (c->mla.kv_lora)
        project_latent(a);
    else
        project(a);
    run_linear((struct linear_job){ .l = &a->part[PART_O],
                                    .x = g,
                                    .y = y_of(a, PART_O),
                                    .n = a->n,
                                    .back = true });
    j.go = y_of(a, PART_O);
    j.q = y_of(a, queries(a));
    j.k = y_of(a, PART_K);
    j.v = y_of(a, PART_V);
    if (backward_attend(&j, e) < 0)
        return e->code;
    if (c->mla.kv_lora)
        project_latent_back(a);
    else
        project_back(a);
    backward_norm(m, x, a->norm, a->in.p, a->n, g);
    return 0;
}

const float *backward_attention_of(const struct attention_back *a,
                                   const struct linear *l)
{
    return l->part == PART_K || l->part == PART_V || l->part == PART_KV_A ?
               y_of(a, l->part) :
               NULL;
}
