/* layer.c - see model.h: loading a decoder layer. */
#include <stdio.h>
#include <stdlib.h>

#include "model/altup.h"
#include "model/delta.h"
#include "model/indexer.h"
#include "model/internal.h"
#include "model/mamba.h"

/* ---- loading ---- */

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

static bool wanted(const struct layer *l, enum point leads)
{
    return leads > l->from && leads <= l->to;
}

/* Whether the linear is run.  Behind POINT_KV_LAT queries and the rotary key are
 * computed from x again; so is kv_a's input behind POINT_Q_LAT. */
static bool linear_wanted(const struct layer *l, enum linear_part p)
{
    bool kv_b = l->m->config.kv_b;

    return wanted(l, leads_to(p)) ||
           (kv_b && p == PART_Q_A && wanted(l, POINT_ATTN_OUT)) ||
           (kv_b && p == PART_KV_A && wanted(l, POINT_KV_LAT));
}

/* Load a norm if a run to point `leads`, or one that begins there and computes what it
 * reads again, needs it and it is not loaded yet. */
static int load_norm(struct layer *l, enum point leads, const char *name,
                     int64_t n, float **v, struct err *e)
{
    char part[MODULE_PATH_MAX], path[MODULE_PATH_MAX];

    if (!name || (!wanted(l, leads) && leads != l->from) || *v)
        return 0;
    snprintf(part, sizeof(part), "%s.weight", name);
    layer_tensor_name(l->index, part, path);
    if (model_norm_vector(l->m, path, n, v, e) < 0)
        return e->code;
    return model_place(l->m, (void **)v, (size_t)n * sizeof(**v), e);
}

static int load_sinks(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;

    if (!c->family->sinks || !wanted(l, POINT_ATTN_OUT))
        return 0;
    if (layer_vector(l, "self_attn.sinks", c->n_heads, &l->sinks, e) < 0)
        return e->code;
    return model_place(l->m, (void **)&l->sinks,
                       (size_t)c->n_heads * sizeof(*l->sinks), e);
}

/* *norm [head_dim]: one without weights, if attention is run. */
static int unit_norm(struct layer *l, float **norm, struct err *e)
{
    int64_t d = l->m->config.head_dim;

    if (!wanted(l, POINT_ATTN_OUT))
        return 0;
    return norm_ones(d, norm, e) < 0 ?
               e->code :
               model_place(l->m, (void **)norm, (size_t)d * sizeof(**norm), e);
}

/* Norms of q and k that have no weights.  In front of RoPE they are the same as
 * behind it: it keeps a head's norm. */
static int unit_norms(struct layer *l, struct err *e)
{
    if (!model_layer_rope(&l->m->config, l->index))
        return 0;
    return unit_norm(l, &l->q_norm, e) < 0 ? e->code :
                                             unit_norm(l, &l->k_norm, e);
}

static int load_head_norms(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;
    bool flat = c->qk_norm == QK_NORM_FLAT;

    if (c->qk_norm == QK_NORM_NONE || model_layer_linear(c, l->index))
        return 0;
    if (c->qk_norm == QK_NORM_UNIT)
        return unit_norms(l, e);
    if (load_norm(l, POINT_ATTN_OUT, "self_attn.q_norm",
                  c->head_dim * (flat ? c->n_heads : 1), &l->q_norm, e) < 0)
        return e->code;
    if (model_layer_shares(c, l->index))
        return 0;
    if (c->family->altup && unit_norm(l, &l->v_norm, e) < 0)
        return e->code;
    return load_norm(l, POINT_ATTN_OUT, "self_attn.k_norm",
                     c->head_dim * (flat ? c->n_kv_heads : 1), &l->k_norm, e);
}

/* Norms of latents, and kv_b where it is not listed.  The input norm goes with
 * them: behind POINT_ATTN_IN what reads it is computed again. */
static int load_latent(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;
    enum point to = wanted(l, POINT_ATTN_OUT) ? POINT_ATTN_OUT :
                    wanted(l, POINT_KV_LAT)   ? POINT_KV_LAT :
                                                POINT_Q_LAT;

    if (load_norm(l, to, "input_layernorm", c->hidden_size, &l->norm1, e) < 0 ||
        load_norm(l, to, "self_attn.kv_a_layernorm", c->mla.kv_lora,
                  &l->kv_a_norm, e) < 0 ||
        (c->mla.q_lora && load_norm(l, to, "self_attn.q_a_layernorm",
                                    c->mla.q_lora, &l->q_a_norm, e) < 0))
        return e->code;
    if (!wanted(l, POINT_ATTN_OUT))
        return 0;
    if (c->indexer.top_k && !l->m->on && indexer_load(l, e) < 0)
        return e->code;
    if (c->kv_b) /* load_all() */
        return 0;
    model_kv_b(c, l->index, &l->part[PART_KV_B].of);
    return model_load_linear(l->m, NULL, &l->part[PART_KV_B], e);
}

/* The gate of the shared expert, and the norm by which its input is recomputed
 * from x. */
static int load_shared_gate(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;
    char part[MODULE_PATH_MAX];

    if (!c->family->shared_gate || !model_layer_experts(c, l->index) ||
        !wanted(l, POINT_OUT))
        return 0;
    if (load_norm(l, POINT_OUT, "post_attention_layernorm", c->hidden_size,
                  &l->norm2, e) < 0)
        return e->code;
    snprintf(part, sizeof(part), "%s.weight", c->family->shared_gate);
    if (layer_vector(l, part, c->hidden_size, &l->shared_gate, e) < 0)
        return e->code;
    return model_place(l->m, (void **)&l->shared_gate,
                       (size_t)c->hidden_size * sizeof(float), e);
}

/* What predicts and corrects streams, and the norm whose output LAuReL reads. */
static int load_streams(struct layer *l, struct err *e)
{
    const struct model_config *c = &l->m->config;

    if (!c->family->altup)
        return 0;
    return load_norm(l, POINT_MLP_IN, model_norms(c)->attn_in, c->hidden_size,
                     &l->norm1, e) < 0 ?
               e->code :
               altup_load(l, e);
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
        load_head_norms(l, e) < 0 || load_sinks(l, e) < 0 ||
        load_shared_gate(l, e) < 0 || load_streams(l, e) < 0 ||
        (model_layer_linear(c, l->index) && wanted(l, POINT_ATTN_OUT) &&
         (c->family->delta == DELTA_MAMBA ? mamba_load : delta_load)(l, e) < 0))
        return e->code;
    return c->mla.kv_lora && !model_layer_linear(c, l->index) ?
               load_latent(l, e) :
               0;
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
        if (linear_wanted(l, one.part) &&
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
    model_free(l->m, l->sinks);
    delta_release(l->m, l->delta);
    mamba_release(l->m, l->mamba);
    indexer_release(l->indexer);
    altup_release(l->m, l->altup);
    model_free(l->m, l->v_norm);
    free(l);
}
