/* linears.c - the linears of a decoder layer: names, shapes, inputs.  See
 * config.h. */
#include <stdio.h>
#include <string.h>

#include "arch/config.h"

enum { EXPERT_PARTS = 3 };

struct row {
    const char *name;
    enum linear_part part;
    enum input_class input;
};

static const struct row gqa[] = {
    { "self_attn.q_proj", PART_Q, IN_ATTN },
    { "self_attn.k_proj", PART_K, IN_ATTN },
    { "self_attn.v_proj", PART_V, IN_ATTN },
    { "self_attn.o_proj", PART_O, IN_ATTN_OUT },
};
/* keys and values are those of another layer */
static const struct row gqa_shared[] = {
    { "self_attn.q_proj", PART_Q, IN_ATTN },
    { "self_attn.o_proj", PART_O, IN_ATTN_OUT },
};
static const struct row gqa_fused[] = {
    { "self_attn.qkv_proj", PART_QKV, IN_ATTN },
    { "self_attn.o_proj", PART_O, IN_ATTN_OUT },
};
static const struct row mla[] = {
    { "self_attn.q_proj", PART_Q, IN_ATTN },
    { "self_attn.kv_a_proj_with_mqa", PART_KV_A, IN_ATTN },
    { "self_attn.o_proj", PART_O, IN_ATTN_OUT },
};
static const struct row mla_lora[] = {
    { "self_attn.q_a_proj", PART_Q_A, IN_ATTN },
    { "self_attn.kv_a_proj_with_mqa", PART_KV_A, IN_ATTN },
    { "self_attn.q_b_proj", PART_Q_B, IN_Q_LAT },
    { "self_attn.o_proj", PART_O, IN_ATTN_OUT },
};
/* with kv_b_proj: model_config.kv_b */
static const struct row mla_kv_b[] = {
    { "self_attn.q_proj", PART_Q, IN_ATTN },
    { "self_attn.kv_a_proj_with_mqa", PART_KV_A, IN_ATTN },
    { "self_attn.kv_b_proj", PART_KV_B, IN_KV_LAT },
    { "self_attn.o_proj", PART_O, IN_ATTN_OUT },
};
static const struct row mla_lora_kv_b[] = {
    { "self_attn.q_a_proj", PART_Q_A, IN_ATTN },
    { "self_attn.kv_a_proj_with_mqa", PART_KV_A, IN_ATTN },
    { "self_attn.q_b_proj", PART_Q_B, IN_Q_LAT },
    { "self_attn.kv_b_proj", PART_KV_B, IN_KV_LAT },
    { "self_attn.o_proj", PART_O, IN_ATTN_OUT },
};
static const struct row delta_fused[] = {
    { "linear_attn.in_proj_qkvz", PART_MIX, IN_ATTN },
    { "linear_attn.out_proj", PART_O, IN_ATTN_OUT },
};
static const struct row delta_split[] = {
    { "linear_attn.in_proj_qkv", PART_MIX, IN_ATTN },
    { "linear_attn.in_proj_z", PART_Z, IN_ATTN },
    { "linear_attn.out_proj", PART_O, IN_ATTN_OUT },
};
static const struct row delta_mamba[] = {
    { "mamba.in_proj", PART_MIX, IN_ATTN },
    { "mamba.out_proj", PART_O, IN_ATTN_OUT },
};
/* names behind "mlp" or the shared expert's prefix */
static const struct row mlp[] = {
    { "gate_proj", PART_GATE, IN_MLP },
    { "up_proj", PART_UP, IN_MLP },
    { "down_proj", PART_DOWN, IN_MLP_MID },
};
static const struct row mlp_fused[] = {
    { "gate_up_proj", PART_GATE_UP, IN_MLP },
    { "down_proj", PART_DOWN, IN_MLP_MID },
};
static const struct row mlp_granite[] = {
    { "input_linear", PART_GATE_UP, IN_MLP },
    { "output_linear", PART_DOWN, IN_MLP_MID },
};
/* names behind the prefix of an expert: [family->mixtral] */
static const struct row expert_rows[][EXPERT_PARTS] = {
    { { "gate_proj", PART_GATE, IN_EXPERT },
      { "up_proj", PART_UP, IN_EXPERT },
      { "down_proj", PART_DOWN, IN_EXPERT_MID } },
    { { "w1", PART_GATE, IN_EXPERT },
      { "w3", PART_UP, IN_EXPERT },
      { "w2", PART_DOWN, IN_EXPERT_MID } },
};

const char *input_class_name(enum input_class c)
{
    static const char *const name[IN_COUNT] = { "attn_in",  "q_lat",  "kv_lat",
                                                "attn_out", "mlp_in", "mlp_mid",
                                                "in",       "mid" };

    return name[c];
}

/* "model.layers.LAYER.PART", or with expert >= 0
 * "model.layers.LAYER.EXPERTS.EXPERT.PART". */
static void put_name(const struct model_config *c, int64_t layer,
                     int64_t expert, const char *part, char to[MODULE_PATH_MAX])
{
    struct tensor_name n = { .layer = layer,
                             .expert = expert,
                             .part = { part, strlen(part) } };

    if (expert >= 0)
        n.experts = (struct name_text){ c->family->experts,
                                        strlen(c->family->experts) };
    tensor_name_format(&n, to, MODULE_PATH_MAX);
}

void model_activation_name(const struct model_config *c, int64_t layer,
                           enum input_class in, int64_t expert,
                           char name[MODULE_PATH_MAX])
{
    put_name(c, layer, expert, input_class_name(in), name);
}

int64_t model_layer_experts(const struct model_config *c, int64_t layer)
{
    return layer < c->n_layers && c->moe.sparse && c->moe.sparse[layer] ?
               c->moe.n_experts :
               0;
}

int64_t model_layer_width(const struct model_config *c, int64_t layer)
{
    return model_layer_experts(c, layer) ? c->moe.shared_width :
           c->layer_width                ? c->layer_width[layer] :
                                           c->intermediate_size;
}

/* ---- shapes ---- */

/* Set rows, cols and bias.  width: outputs of the MLP's gate. */
static void shape(const struct model_config *c, int64_t width, struct linear *l)
{
    int64_t h = c->hidden_size, q = c->n_heads * c->head_dim;
    int64_t kv = c->n_kv_heads * c->head_dim, in_q = c->mla.q_lora;
    int64_t latent = c->mla.kv_lora;
    bool linear = model_layer_linear(c, l->layer);
    bool biased = c->mlp_bias && (l->expert < 0 || c->family->mlp_biased);
    int64_t keys = c->delta.k_heads * c->delta.k_dim;
    int64_t values = c->delta.v_heads * c->delta.v_dim;
    int64_t z = c->family->delta == DELTA_SPLIT ? 0 :
                c->family->delta == DELTA_FUSED ? values :
                                                  values + c->delta.v_heads;
    const struct {
        int64_t rows, cols;
        bool bias;
    } of[PARTS] = {
        [PART_Q] = { linear                    ? keys :
                     c->family->attention_gate ? 2 * q :
                                                 q,
                     h, c->qkv_bias },
        [PART_K] = { linear ? keys : kv, h, c->qkv_bias },
        [PART_V] = { linear ? values : kv, h, c->qkv_bias },
        [PART_Q_A] = { in_q, h, c->qkv_bias },
        [PART_KV_A] = { latent + c->mla.rope, h, c->qkv_bias },
        [PART_Q_B] = { q, in_q, false },
        [PART_KV_B] = { c->n_heads * (c->mla.nope + c->v_dim), latent, false },
        [PART_O] = { h, linear ? values : c->n_heads * c->v_dim,
                     linear ? c->delta.bias : c->o_bias },
        [PART_GATE] = { width, h, biased },
        [PART_UP] = { width, h, biased },
        [PART_DOWN] = { h, width, biased },
        [PART_QKV] = { q + 2 * kv, h, c->qkv_bias },
        [PART_GATE_UP] = { 2 * width, h, biased },
        [PART_MIX] = { 2 * keys + values + z, h, c->delta.bias },
        [PART_Z] = { values, h, false },
    };

    l->rows = of[l->part].rows;
    l->cols = of[l->part].cols;
    l->bias = of[l->part].bias;
    if (l->part == PART_Q && latent)
        l->bias = false;
}

struct rows {
    const struct row *row;
    int64_t n;
};
#define ROWS(table) ((struct rows){ table, ARRAY_LEN(table) })

static struct rows attention_rows(const struct model_config *c, int64_t layer)
{
    bool lora = c->mla.q_lora;

    if (model_layer_linear(c, layer))
        return c->family->delta == DELTA_MAMBA    ? ROWS(delta_mamba) :
               c->family->delta == DELTA_CHANNELS ? ROWS(gqa) :
               c->family->delta == DELTA_FUSED    ? ROWS(delta_fused) :
                                                    ROWS(delta_split);
    if (c->family->fused_qkv)
        return ROWS(gqa_fused);
    if (model_layer_shares(c, layer))
        return ROWS(gqa_shared);
    if (!c->mla.kv_lora)
        return ROWS(gqa);
    if (c->kv_b)
        return lora ? ROWS(mla_lora_kv_b) : ROWS(mla_kv_b);
    return lora ? ROWS(mla_lora) : ROWS(mla);
}

static struct rows mlp_rows(const struct model_config *c)
{
    return c->family->granite_mlp ? ROWS(mlp_granite) :
           c->family->fused_mlp   ? ROWS(mlp_fused) :
                                    ROWS(mlp);
}

void model_kv_b(const struct model_config *c, int64_t layer, struct linear *l)
{
    *l = (struct linear){
        .layer = layer, .expert = -1, .input = IN_KV_LAT, .part = PART_KV_B
    };
    shape(c, 0, l);
    layer_tensor_name(layer, "self_attn.kv_b_proj", l->module);
}

int64_t model_linear_common(const struct model_config *c, int64_t layer)
{
    return attention_rows(c, layer).n +
           (model_layer_width(c, layer) ? mlp_rows(c).n : 0);
}

int64_t model_linear_count(const struct model_config *c, int64_t layer)
{
    return model_linear_common(c, layer) +
           EXPERT_PARTS * model_layer_experts(c, layer);
}

void model_linear_range(const struct model_config *c, int64_t layer,
                        int64_t expert, int64_t *begin, int64_t *end)
{
    int64_t common = model_linear_common(c, layer);

    *begin = expert < 0 ? 0 : common + EXPERT_PARTS * expert;
    *end = expert < 0 ? common : *begin + EXPERT_PARTS;
}

/* ---- one of them ---- */

static void fill(struct linear *l, const struct row *r, int64_t layer,
                 int64_t expert)
{
    *l = (struct linear){
        .layer = layer, .expert = expert, .input = r->input, .part = r->part
    };
}

static void expert_linear(const struct model_config *c, int64_t layer,
                          int64_t expert, int part, struct linear *l)
{
    const struct row *r = &expert_rows[c->family->mixtral][part];

    fill(l, r, layer, expert);
    shape(c, c->moe.width, l);
    put_name(c, layer, expert, r->name, l->module);
}

/* Linear i < model_linear_common(). */
static void common_linear(const struct model_config *c, int64_t layer,
                          int64_t i, struct linear *l)
{
    bool experts = model_layer_experts(c, layer);
    const char *dense = c->family->mlp ? c->family->mlp : "mlp";
    const char *prefix = experts ? c->family->shared : dense;
    char part[MODULE_PATH_MAX];
    struct rows a = attention_rows(c, layer);
    bool is_mlp = i >= a.n;
    const struct row *r = is_mlp ? mlp_rows(c).row + (i - a.n) : a.row + i;

    fill(l, r, layer, -1);
    shape(c, model_layer_width(c, layer), l);
    snprintf(part, sizeof(part), "%s%s%s", is_mlp ? prefix : "",
             is_mlp ? "." : "", r->name);
    layer_tensor_name(layer, part, l->module);
}

void model_linear(const struct model_config *c, int64_t layer, int64_t i,
                  struct linear *l)
{
    int64_t common = model_linear_common(c, layer);

    if (i < common)
        common_linear(c, layer, i, l);
    else
        expert_linear(c, layer, (i - common) / EXPERT_PARTS,
                      (int)((i - common) % EXPERT_PARTS), l);
}

/* ---- by name ---- */

static bool is_text(struct name_text t, const char *s)
{
    return t.len == strlen(s) && !strncmp(t.at, s, t.len);
}

static bool find_expert(const struct model_config *c,
                        const struct tensor_name *n, struct linear *l)
{
    if (n->expert >= model_layer_experts(c, n->layer) ||
        !is_text(n->experts, c->family->experts))
        return false;
    for (int i = 0; i < EXPERT_PARTS; i++)
        if (is_text(n->part, expert_rows[c->family->mixtral][i].name)) {
            expert_linear(c, n->layer, n->expert, i, l);
            return true;
        }
    return false;
}

bool model_find_linear(const struct model_config *c, const char *module,
                       struct linear *l)
{
    struct tensor_name name;
    int64_t n;

    tensor_name_parse(&name, module);
    if (name.layer < 0 || name.layer >= c->n_layers || name.companion)
        return false;
    if (name.expert >= 0)
        return find_expert(c, &name, l);
    n = model_linear_common(c, name.layer);
    for (int64_t i = 0; i < n; i++) {
        common_linear(c, name.layer, i, l);
        if (!strcmp(module, l->module))
            return true;
    }
    return false;
}
