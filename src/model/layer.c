/* layer.c - see model.h: loading a decoder layer. */
#include <stdio.h>
#include <stdlib.h>

#include "forge_w4a16.h"
#include "model/indexer.h"
#include "model/internal.h"

/* ---- loading ---- */

int model_vector(struct model *m, const char *name, int64_t n, float **v,
                 struct err *e)
{
    if (checkpoint_vector(m->ck, name, (uint64_t)n, v, e) < 0)
        return e->code;
    for (int64_t i = 0; m->bf16 && i < n; i++)
        (*v)[i] = f32_from_bf16(bf16_from_f32((*v)[i]));
    return 0;
}

int model_norm_vector(struct model *m, const char *name, int64_t n, float **v,
                      struct err *e)
{
    if (model_vector(m, name, n, v, e) < 0)
        return e->code;
    for (int64_t i = 0; m->config.family->norm_plus_one && i < n; i++)
        (*v)[i] += 1;
    return 0;
}

int model_check_shape(const char *module, uint64_t r, uint64_t c, int64_t rows,
                      int64_t cols, struct err *e)
{
    if (r == (uint64_t)rows && c == (uint64_t)cols)
        return 0;
    return err_set(e, E_DATA,
                   "'%s': the weight is %llux%llu, the config says %lldx%lld",
                   module, (unsigned long long)r, (unsigned long long)c,
                   (long long)rows, (long long)cols);
}

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
    rc = model_check_shape(module, r, c, rows, cols, e);
    if (rc < 0) {
        free(*w);
        *w = NULL;
    }
    return rc;
}

/* Load linear l->of from the checkpoint, as 4-bit codes if it is stored so; a
 * device needs elements. */
static int load_stored(struct model *m, struct loaded *l, struct err *e)
{
    const struct linear *k = &l->of;
    uint64_t rows, cols;
    int rc =
        m->on ? 0 : checkpoint_w4a16(m->ck, k->module, &l->q, &rows, &cols, e);

    if (rc < 0)
        return rc;
    if (rc)
        return model_check_shape(k->module, rows, cols, k->rows, k->cols, e);
    return model_weight(m, k->module, k->rows, k->cols, &l->w, e);
}

int model_read_linear(struct model *m, const struct quantized *codes,
                      struct loaded *l, struct err *e)
{
    const struct linear *k = &l->of;
    char name[MODULE_PATH_MAX + 8];
    int rc = 0;

    if (codes)
        rc = quantized_linear(codes, k->module, k->rows, k->cols, m->dtype,
                              &l->w, e);
    if (rc < 0 || (!rc && load_stored(m, l, e) < 0))
        return e->code;
    if (!k->bias)
        return 0;
    snprintf(name, sizeof(name), "%s.bias", k->module);
    return model_vector(m, name, k->rows, &l->bias, e);
}

int model_load_linear(struct model *m, const struct quantized *codes,
                      struct loaded *l, struct err *e)
{
    return model_read_linear(m, codes, l, e) < 0 ? e->code :
                                                   loaded_place(m, l, e);
}

/* The point whose activation (or residual stream) the linear computes. */
static enum point leads_to(enum linear_part p)
{
    switch (p) {
    case PART_Q_A: return POINT_Q_LAT;
    case PART_O: return POINT_MLP_IN;
    case PART_GATE:
    case PART_UP:
    case PART_GATE_UP: return POINT_MLP_MID;
    case PART_DOWN: return POINT_OUT;
    default: return POINT_ATTN_OUT;
    }
}

void loaded_release(struct loaded *l)
{
    if (l->placed) {
        model_free(l->placed, l->w);
        model_free(l->placed, l->bias);
    } else {
        free(l->w);
        free(l->bias);
    }
    forge_w4a16_release(l->q);
    l->w = NULL;
    l->q = NULL;
    l->bias = NULL;
    l->placed = NULL;
}

static bool wanted(const struct layer *l, enum point leads)
{
    return leads > l->from && leads <= l->to;
}

/* Load a norm if a run to point `leads` needs it and it is not loaded yet. */
static int load_norm(struct layer *l, enum point leads, const char *name,
                     int64_t n, float **v, struct err *e)
{
    char part[MODULE_PATH_MAX], path[MODULE_PATH_MAX];

    if (!name || !wanted(l, leads) || *v)
        return 0;
    snprintf(part, sizeof(part), "%s.weight", name);
    layer_tensor_name(l->index, part, path);
    if (model_norm_vector(l->m, path, n, v, e) < 0)
        return e->code;
    return model_place(l->m, (void **)v, (size_t)n * sizeof(**v), e);
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

/* Norms of latents and kv_b.  The input norm is also needed if a run starts at
 * POINT_Q_LAT: kv_a's input is then recomputed from x. */
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
    if (c->indexer.top_k && !l->m->on && indexer_load(l, e) < 0)
        return e->code;
    model_kv_b(c, l->index, &l->part[PART_KV_B].of);
    return model_load_linear(l->m, NULL, &l->part[PART_KV_B], e);
}

/* The gate of the shared expert, and the norm by which its input is recomputed
 * from x. */
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

    const struct layer_norms *n = model_norms(c);
    int64_t h = c->hidden_size;

    if (load_norm(l, POINT_ATTN_IN, n->attn_in, h, &l->norm1, e) < 0 ||
        load_norm(l, POINT_MLP_IN, n->attn_out, h, &l->attn_out, e) < 0 ||
        load_norm(l, POINT_MLP_IN, n->mlp_in, h, &l->norm2, e) < 0 ||
        load_norm(l, POINT_OUT, n->mlp_out, h, &l->mlp_out, e) < 0 ||
        load_head_norms(l, e) < 0 || load_shared_gate(l, e) < 0)
        return e->code;
    return c->mla.kv_lora ? load_latent(l, e) : 0;
}

static int load_all(struct layer *l, const struct quantized *codes,
                    struct err *e)
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
                     enum point to, const struct quantized *codes,
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

float *layer_take_bias(struct layer *l, enum point p)
{
    struct loaded *o = &l->part[p == POINT_ATTN_OUT ? PART_O : PART_DOWN];
    float *bias = o->bias;

    o->bias = NULL;
    return bias;
}

void layer_release(struct layer *l)
{
    if (!l)
        return;
    for (int i = 0; i < PARTS; i++)
        loaded_release(&l->part[i]);
    model_free(l->m, l->norm1);
    model_free(l->m, l->norm2);
    model_free(l->m, l->attn_out);
    model_free(l->m, l->mlp_out);
    model_free(l->m, l->q_norm);
    model_free(l->m, l->k_norm);
    model_free(l->m, l->q_a_norm);
    model_free(l->m, l->kv_a_norm);
    model_free(l->m, l->shared_gate);
    indexer_release(l->indexer);
    free(l);
}
