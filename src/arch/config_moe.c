/* config_moe.c - multi-head latent attention and mixtures of experts in
 * config.json. */
#include <math.h>
#include <string.h>

#include "arch/config.h"
#include "arch/config_parts.h"
#include "arch/fields.h"

/* ---- latent attention ---- */

static int check_mla(const struct model_config *c, struct err *e)
{
    if (c->mla.rope % 2 || c->head_dim % 2 || c->head_dim > HEAD_DIM_MAX ||
        c->v_dim > HEAD_DIM_MAX)
        return err_set(e, E_CONFIG,
                       "heads of %lld + %lld and %lld dims are not supported "
                       "(even ones up to %d are)",
                       (long long)c->mla.nope, (long long)c->mla.rope,
                       (long long)c->v_dim, HEAD_DIM_MAX);
    if (c->n_heads * (c->head_dim + c->v_dim) > MAX_WIDTH)
        return err_set(e, E_DATA, "%lld heads of %lld are out of range",
                       (long long)c->n_heads, (long long)c->head_dim);
    return 0;
}

/* Whether a layer takes the keys that the layer before it has chosen (GLM-5's
 * indexer_types, index_topk_pattern or index_topk_freq). */
static bool shares_indexer(const struct json *o)
{
    const struct json *list = field_get(o, "indexer_types");
    const struct json *every = field_get(o, "index_topk_freq");
    const char *pattern = NULL, *type;
    int64_t n;

    if (list && json_type(list) == JSON_ARRAY) {
        for (const struct json *v = json_first(list); v; v = json_after(v))
            if (!json_string(v, &type) || strcmp(type, "full"))
                return true;
        return false;
    }
    list = field_get(o, "index_topk_pattern");
    if (list)
        return !json_string(list, &pattern) || strchr(pattern, 'S');
    return every && (!json_int(every, &n) || n > 1);
}

/* c->indexer; defaults are those of DeepseekV32Config. */
static int read_indexer(struct model_config *c, const struct json *o,
                        struct err *e)
{
    struct indexer *x = &c->indexer;

    *x = (struct indexer){ .n_heads = c->family->index_heads ?
                                          c->family->index_heads :
                                          64,
                           .dim = 128,
                           .top_k = 2048 };
    if (field_int(o, "index_n_heads", 1, MAX_WIDTH / HEAD_DIM_MAX, &x->n_heads,
                  e) < 0 ||
        field_int(o, "index_head_dim", 1, HEAD_DIM_MAX, &x->dim, e) < 0 ||
        field_int(o, "index_topk", 1, MAX_POSITION, &x->top_k, e) < 0)
        return e->code;
    if (x->dim < c->mla.rope)
        return err_set(e, E_DATA,
                       "index_head_dim %lld is less than qk_rope_head_dim %lld",
                       (long long)x->dim, (long long)c->mla.rope);
    if (!c->mla.q_lora)
        return err_set(e, E_DATA,
                       "q_lora_rank is missing, and the indexer "
                       "reads its output");
    if (shares_indexer(o)) {
        c->longest = x->top_k;
        c->longest_by = "index_topk";
        x->top_k = 0;
    }
    return 0;
}

int config_read_mla(struct model_config *c, const struct json *o, struct err *e)
{
    struct mla *a = &c->mla;

    if (field_need(o, "kv_lora_rank", MAX_WIDTH, &a->kv_lora, e) < 0 ||
        field_need(o, "qk_nope_head_dim", HEAD_DIM_MAX, &a->nope, e) < 0 ||
        field_need(o, "qk_rope_head_dim", HEAD_DIM_MAX, &a->rope, e) < 0 ||
        field_need(o, "v_head_dim", HEAD_DIM_MAX, &c->v_dim, e) < 0 ||
        field_int(o, "q_lora_rank", 1, MAX_WIDTH, &a->q_lora, e) < 0)
        return e->code;
    c->head_dim = a->nope + a->rope;
    c->n_kv_heads = c->n_heads;
    c->rotary = a->rope;
    c->rotary_at = a->nope;
    c->rope_pairs = c->family->rope_pairs;
    c->attention_scale = 1 / sqrt((double)c->head_dim);
    if (field_bool(o, "rope_interleave", &c->rope_pairs, e) < 0)
        return e->code;
    if (check_mla(c, e) < 0)
        return e->code;
    return c->family->indexer ? read_indexer(c, o, e) : 0;
}

/* ---- which layers have experts ---- */

static int dense_layers(struct model_config *c, const struct json *list,
                        struct err *e)
{
    int64_t i;

    if (json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "mlp_only_layers is not an array");
    for (const struct json *v = json_first(list); v; v = json_after(v)) {
        if (!json_int(v, &i) || i < 0)
            return err_set(e, E_DATA,
                           "mlp_only_layers: not the number of a layer");
        if (i < c->n_layers)
            c->moe.sparse[i] = false;
    }
    return 0;
}

/* Every decoder_sparse_step-th layer has experts, except mlp_only_layers. */
static int sparse_by_step(struct model_config *c, const struct json *o,
                          struct err *e)
{
    const struct json *list = field_get(o, "mlp_only_layers");
    int64_t step = 1;

    if (field_int(o, "decoder_sparse_step", 1, MAX_LAYERS, &step, e) < 0)
        return e->code;
    for (int64_t i = 0; i < c->n_layers; i++)
        c->moe.sparse[i] = (i + 1) % step == 0;
    return list ? dense_layers(c, list, e) : 0;
}

/* Every moe_layer_freq-th layer from first_k_dense_replace on has experts. */
static int sparse_by_first(struct model_config *c, const struct json *o,
                           struct err *e)
{
    int64_t first = c->family->first_dense, freq = 1;

    if (field_int(o, "first_k_dense_replace", 0, MAX_LAYERS, &first, e) < 0 ||
        field_int(o, "moe_layer_freq", 1, MAX_LAYERS, &freq, e) < 0)
        return e->code;
    for (int64_t i = 0; i < c->n_layers; i++)
        c->moe.sparse[i] = i >= first && i % freq == 0;
    return 0;
}

/* ERNIE 4.5: every moe_layer_interval-th layer of those from
 * moe_layer_start_index to moe_layer_end_index, -1: to the last, has experts. */
static int sparse_by_range(struct model_config *c, const struct json *o,
                           struct err *e)
{
    int64_t first = 1, last = -1, every = 1;
    bool bias = false;

    if (field_bool(o, "use_bias", &bias, e) < 0)
        return e->code;
    if (bias)
        return err_set(e, E_CONFIG,
                       "use_bias true is not supported in a "
                       "mixture");
    if (field_int(o, "moe_layer_start_index", 0, MAX_LAYERS, &first, e) < 0 ||
        field_int(o, "moe_layer_end_index", -1, MAX_LAYERS, &last, e) < 0 ||
        field_int(o, "moe_layer_interval", 1, MAX_LAYERS, &every, e) < 0)
        return e->code;
    for (int64_t i = 0; i < c->n_layers; i++)
        c->moe.sparse[i] =
            i >= first && (last < 0 || i <= last) && (i + 1) % every == 0;
    return 0;
}

/* Llama 4: moe_layers, or every interleave_moe_layer_step-th layer. */
static int sparse_by_list(struct model_config *c, const struct json *o,
                          struct err *e)
{
    const struct json *list = field_get(o, "moe_layers");
    int64_t step = 1, i;

    if (field_int(o, "interleave_moe_layer_step", 1, MAX_LAYERS, &step, e) < 0)
        return e->code;
    for (i = 0; i < c->n_layers; i++)
        c->moe.sparse[i] = !list && (i + 1) % step == 0;
    if (!list)
        return 0;
    if (json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "moe_layers is not an array");
    for (const struct json *v = json_first(list); v; v = json_after(v)) {
        if (!json_int(v, &i) || i < 0)
            return err_set(e, E_DATA, "moe_layers: not the number of a layer");
        if (i < c->n_layers)
            c->moe.sparse[i] = true;
    }
    return 0;
}

/* mlp_layer_types: "dense" or "sparse" for each layer. */
static int sparse_by_types(struct model_config *c, const struct json *list,
                           struct err *e)
{
    const char *type;
    int64_t i = 0;

    if (json_type(list) != JSON_ARRAY ||
        json_count(list) != (size_t)c->n_layers)
        return err_set(e, E_DATA,
                       "mlp_layer_types is not an array of num_hidden_layers "
                       "%lld strings",
                       (long long)c->n_layers);
    for (const struct json *v = json_first(list); v; v = json_after(v), i++) {
        if (!json_string(v, &type) ||
            (strcmp(type, "sparse") && strcmp(type, "dense")))
            return err_set(e, E_DATA,
                           "mlp_layer_types[%lld] is neither \"dense\" nor "
                           "\"sparse\"",
                           (long long)i);
        c->moe.sparse[i] = !strcmp(type, "sparse");
    }
    return 0;
}

static int read_sparse(struct model_config *c, const struct json *o,
                       struct err *e)
{
    c->moe.sparse = mem_zero((size_t)c->n_layers, sizeof(bool), "layers", e);
    if (!c->moe.sparse)
        return e->code;
    if (c->family->sparse_step)
        return sparse_by_step(c, o, e);
    if (c->family->ernie_keys)
        return sparse_by_range(c, o, e);
    if (c->family->interleaved_keys)
        return sparse_by_list(c, o, e);
    if ((c->family->indexer || c->family->kimi_keys) &&
        field_get(o, "mlp_layer_types"))
        return sparse_by_types(c, field_get(o, "mlp_layer_types"), e);
    return sparse_by_first(c, o, e);
}

/* ---- the router ---- */

/* E_CONFIG if the member is present and is not `want`, what the family's
 * router does. */
static int check_word(const struct json *o, const char *key, const char *want,
                      struct err *e)
{
    const char *word = want;

    if (field_string(o, key, &word, e) < 0)
        return e->code;
    if (strcmp(word, want) != 0)
        return err_set(e, E_CONFIG, "%s '%.64s' is not supported (%s is)", key,
                       word, want);
    return 0;
}

static int read_method(struct model_config *c, const struct json *o,
                       struct err *e)
{
    const char *method = "greedy";

    if (c->family->router == ROUTER_SIGMOID) {
        c->moe.grouped = c->moe.n_group > 1;
        return check_word(o, "scoring_func", "sigmoid", e) < 0 ||
                       check_word(o, "moe_router_activation_func", "sigmoid",
                                  e) < 0 ||
                       check_word(o, "topk_method", "noaux_tc", e) < 0 ?
                   e->code :
                   0;
    }
    if (check_word(o, "scoring_func", "softmax", e) < 0 ||
        field_string(o, "topk_method", &method, e) < 0)
        return e->code;
    c->moe.grouped = !strcmp(method, "group_limited_greedy");
    if (!c->moe.grouped && strcmp(method, "greedy") != 0)
        return err_set(e, E_CONFIG,
                       "topk_method '%.64s' is not supported (greedy and "
                       "group_limited_greedy are)",
                       method);
    return 0;
}

static int check_groups(const struct moe *m, struct err *e)
{
    int64_t group = m->n_experts / m->n_group, among = m->n_experts;

    if (m->grouped && (m->n_experts % m->n_group || m->topk_group > m->n_group))
        return err_set(e, E_DATA,
                       "%lld experts do not make n_group %lld groups, of which "
                       "topk_group %lld are kept",
                       (long long)m->n_experts, (long long)m->n_group,
                       (long long)m->topk_group);
    if (m->grouped)
        among = group * m->topk_group;
    if (m->top_k > among)
        return err_set(e, E_DATA,
                       "num_experts_per_tok %lld of %lld experts to choose "
                       "from",
                       (long long)m->top_k, (long long)among);
    return 0;
}

static int read_router(struct model_config *c, const struct json *o,
                       struct err *e)
{
    const struct family *f = c->family;
    struct moe *m = &c->moe;

    m->renormalize = f->renormalize;
    m->scale = f->scale > 0 ? f->scale : 1;
    m->n_group = f->n_group ? f->n_group : 1;
    m->topk_group = f->topk_group ? f->topk_group : 1;
    if (field_need(o,
                   f->ernie_keys ? "moe_k" :
                   f->kimi_keys  ? "num_experts_per_token" :
                                   "num_experts_per_tok",
                   MAX_WIDTH, &m->top_k, e) < 0 ||
        field_bool(o, f->kimi_keys ? "moe_renormalize" : "norm_topk_prob",
                   &m->renormalize, e) < 0 ||
        field_number(o, "routed_scaling_factor", &m->scale, e) < 0 ||
        field_int(o, f->kimi_keys ? "num_expert_group" : "n_group", 1,
                  MAX_WIDTH, &m->n_group, e) < 0 ||
        field_int(o, "topk_group", 1, MAX_WIDTH, &m->topk_group, e) < 0 ||
        read_method(c, o, e) < 0)
        return e->code;
    if (f->renormalize_always || f->renormalize_never)
        m->renormalize = f->renormalize_always;
    m->scale *= c->residual_scale; /* the sum goes into the residual stream */
    return check_groups(m, e);
}

/* ---- the experts ---- */

/* The number of experts, under any of its names. */
static int read_count(struct moe *m, const struct json *o, struct err *e)
{
    static const char *const keys[] = { "n_routed_experts", "num_experts",
                                        "num_local_experts",
                                        "moe_num_experts" };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (field_get(o, keys[i]))
            return field_int(o, keys[i], 0, 1 << 16, &m->n_experts, e);
    return err_set(e, E_DATA, "%s is missing", keys[0]);
}

static int read_shared(struct model_config *c, const struct json *o,
                       struct err *e)
{
    struct moe *m = &c->moe;
    int64_t n = c->family->n_shared;

    if (!c->family->shared)
        return 0;
    if (c->family->shared_key) {
        m->shared_width = 1024;
        return field_int(o, "shared_intermediate_size", 0, MAX_WIDTH,
                         &m->shared_width, e);
    }
    if (c->family->shared_gate)
        return field_need(o, "shared_expert_intermediate_size", MAX_WIDTH,
                          &m->shared_width, e);
    if (field_int(o,
                  c->family->ernie_keys ? "moe_num_shared_experts" :
                  c->family->kimi_keys  ? "num_shared_experts" :
                                          "n_shared_experts",
                  0, 1 << 16, &n, e) < 0)
        return e->code;
    m->shared_width = n * m->width;
    if (m->shared_width > MAX_WIDTH)
        return err_set(e, E_DATA, "n_shared_experts %lld is out of range",
                       (long long)n);
    return 0;
}

int config_read_moe(struct model_config *c, const struct json *o, struct err *e)
{
    struct moe *m = &c->moe;

    if (c->family->router == ROUTER_NONE)
        return 0;
    if (read_count(m, o, e) < 0)
        return e->code;
    if (!m->n_experts)
        return 0;
    m->n_router = m->n_experts;
    if (field_int(o, "num_router_experts", m->n_experts, 1 << 16, &m->n_router,
                  e) < 0)
        return e->code;
    m->weigh_inputs = c->family->weigh_inputs;
    if (field_need(o,
                   c->family->plain_width ? "intermediate_size" :
                                            "moe_intermediate_size",
                   MAX_WIDTH, &m->width, e) < 0 ||
        read_shared(c, o, e) < 0 || read_router(c, o, e) < 0 ||
        read_sparse(c, o, e) < 0)
        return e->code;
    return 0;
}
