/* names.c - see names.h. */
#include "gguf/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What llama.cpp computes for an architecture, whatever the metadata say. */
enum renormalize { BY_KEY, ALWAYS, NEVER };

static const struct known {
    const char *model_type, *architecture;
    bool halves;                  /* q and k are turned from halves to pairs */
    bool biases;                  /* of q, k, v and others there may be some */
    bool dense_first;             /* layers without experts may come first */
    enum renormalize renormalize; /* a token's weights of experts */
} families[] = {
    { "llama", "llama", true, true, false, ALWAYS },
    { "mistral", "llama", true, true, false, ALWAYS },
    { "qwen2", "qwen2", false, true, false, ALWAYS },
    { "qwen3", "qwen3", false, false, false, ALWAYS },
    { "mixtral", "llama", true, true, false, ALWAYS },
    { "qwen2_moe", "qwen2moe", false, true, false, NEVER },
    { "qwen3_moe", "qwen3moe", false, false, false, ALWAYS },
    { "deepseek_v2", "deepseek2", false, false, true, BY_KEY },
    { "deepseek_v3", "deepseek2", false, false, true, BY_KEY },
    { "kimi_k2", "deepseek2", false, false, true, BY_KEY },
};

static const char *const outside[][2] = {
    { "model.embed_tokens", "token_embd" },
    { "model.norm", "output_norm" },
    { "lm_head", "output" },
};

static const char *const inside[][2] = {
    { "input_layernorm", "attn_norm" },
    { "self_attn.q_proj", "attn_q" },
    { "self_attn.k_proj", "attn_k" },
    { "self_attn.v_proj", "attn_v" },
    { "self_attn.o_proj", "attn_output" },
    { "self_attn.q_norm", "attn_q_norm" },
    { "self_attn.k_norm", "attn_k_norm" },
    { "self_attn.q_a_proj", "attn_q_a" },
    { "self_attn.q_a_layernorm", "attn_q_a_norm" },
    { "self_attn.q_b_proj", "attn_q_b" },
    { "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa" },
    { "self_attn.kv_a_layernorm", "attn_kv_a_norm" },
    { "post_attention_layernorm", "ffn_norm" },
    { "mlp.gate_proj", "ffn_gate" },
    { "mlp.up_proj", "ffn_up" },
    { "mlp.down_proj", "ffn_down" },
    { "mlp.gate", "ffn_gate_inp" },
    { "block_sparse_moe.gate", "ffn_gate_inp" },
    { "mlp.shared_experts.gate_proj", "ffn_gate_shexp" },
    { "mlp.shared_experts.up_proj", "ffn_up_shexp" },
    { "mlp.shared_experts.down_proj", "ffn_down_shexp" },
    { "mlp.shared_expert.gate_proj", "ffn_gate_shexp" },
    { "mlp.shared_expert.up_proj", "ffn_up_shexp" },
    { "mlp.shared_expert.down_proj", "ffn_down_shexp" },
    { "mlp.shared_expert_gate", "ffn_gate_inp_shexp" },
};

static const char *const of_experts[][2] = {
    { "gate_proj", "ffn_gate_exps" }, { "w1", "ffn_gate_exps" },
    { "up_proj", "ffn_up_exps" },     { "w3", "ffn_up_exps" },
    { "down_proj", "ffn_down_exps" }, { "w2", "ffn_down_exps" },
};

static const struct known *known(const struct model_config *c)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (!strcmp(families[i].model_type, c->family->model_type))
            return &families[i];
    return NULL;
}

/* ---- settings ---- */

static int check_rope(const struct model_config *c, struct err *e)
{
    const struct rope *r = &c->rope;
    double usual = rope_yarn_attention(r->factor, 0, 0);

    if (r->kind == ROPE_DYNAMIC)
        return err_set(e, E_CONFIG, "llama.cpp has no dynamic RoPE");
    if (r->kind == ROPE_LONGROPE)
        return err_set(e, E_CONFIG, "LongRoPE is not written as GGUF");
    if (c->mla.kv_lora && !c->rope_pairs)
        return err_set(e, E_CONFIG,
                       "llama.cpp's deepseek2 rotates pairs of "
                       "neighbours, this model halves");
    if (r->kind != ROPE_YARN)
        return 0;
    if (!r->truncate)
        return err_set(e, E_CONFIG,
                       "llama.cpp's YaRN rounds its range to whole dimensions, "
                       "this model's does not");
    /* src/models/deepseek2.cpp: the scores' factor is that of mscale_all_dim,
     * and cos and sin have none */
    if (c->mla.kv_lora ? r->mscale_all_dim <= 0 || r->attention_factor != 1 :
                         r->attention_factor != usual)
        return err_set(e, E_CONFIG,
                       "llama.cpp's YaRN has not this model's factor of "
                       "attention, %g",
                       r->attention_factor);
    return 0;
}

/* src/models/deepseek2.cpp takes models of so many layers for DeepSeek-V2-Lite,
 * which has no latent of queries. */
static bool is_lite(const struct model_config *c)
{
    return c->n_layers == 26 || c->n_layers == 27 ||
           (c->n_layers == 48 && c->vocab_size == 128256);
}

static int check_experts(const struct model_config *c, const struct known *k,
                         struct err *e)
{
    int64_t dense = 0;

    while (k->dense_first && dense < c->n_layers && !c->moe.sparse[dense])
        dense++;
    for (int64_t i = dense; i < c->n_layers; i++)
        if (!c->moe.sparse[i])
            return err_set(e, E_CONFIG,
                           "llama.cpp's %s has experts in each layer%s, layer "
                           "%" PRId64 " has none",
                           k->architecture,
                           k->dense_first ? " behind the first dense ones" : "",
                           i);
    if (c->moe.n_router != c->moe.n_experts)
        return err_set(e, E_CONFIG,
                       "the router has %" PRId64 " experts, the model %" PRId64
                       ": llama.cpp has no map of experts",
                       c->moe.n_router, c->moe.n_experts);
    if (k->renormalize != BY_KEY &&
        c->moe.renormalize != (k->renormalize == ALWAYS))
        return err_set(e, E_CONFIG,
                       "llama.cpp's %s %s a token's weights of experts by "
                       "their sum, this model %s",
                       k->architecture,
                       k->renormalize == ALWAYS ? "divides" : "does not divide",
                       k->renormalize == ALWAYS ? "does not" : "does");
    if (c->moe.grouped && c->family->router != ROUTER_SIGMOID)
        return err_set(e, E_CONFIG,
                       "llama.cpp ranks groups of experts by their two best, "
                       "this model by the best");
    return 0;
}

int gguf_architecture(const struct model_config *c, const char **name,
                      struct err *e)
{
    const struct known *k = known(c);

    if (!k)
        return err_set(e, E_CONFIG,
                       "models of type %s are not written as GGUF; llama, "
                       "mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, "
                       "deepseek_v2, deepseek_v3 and kimi_k2 are",
                       c->family->model_type);
    if (!k->biases && (c->qkv_bias || c->o_bias || c->mlp_bias))
        return err_set(e, E_CONFIG, "llama.cpp's %s has no biases",
                       k->architecture);
    if (c->sliding_window)
        return err_set(e, E_CONFIG,
                       "llama.cpp's %s has no sliding window, this model one "
                       "of %" PRId64 " tokens",
                       k->architecture, c->sliding_window);
    if (c->mla.q_lora && is_lite(c))
        return err_set(e, E_CONFIG,
                       "llama.cpp takes a deepseek2 of %" PRId64 " layers for "
                       "DeepSeek-V2-Lite, which has no q_a_proj",
                       c->n_layers);
    if (check_rope(c, e) || (c->moe.n_experts && check_experts(c, k, e)))
        return e->code;
    *name = k->architecture;
    return 0;
}

/* ---- tensors ---- */

static const char *find(const char *const (*table)[2], size_t n,
                        struct name_text module)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i][0]) == module.len &&
            !memcmp(table[i][0], module.at, module.len))
            return table[i][1];
    return NULL;
}

static int put(struct gguf_place *p, int64_t layer, const char *name,
               const char *tail)
{
    if (layer < 0)
        snprintf(p->name, GGUF_NAME_MAX, "%s%s", name, tail);
    else
        snprintf(p->name, GGUF_NAME_MAX, "blk.%" PRId64 ".%s%s", layer, name,
                 tail);
    return 1;
}

bool gguf_is_extra(const struct model_config *c, const char *tensor)
{
    return c->mla.kv_lora && tensor_name_layer(tensor) >= c->n_layers;
}

int gguf_places(const struct model_config *c, const char *tensor,
                struct gguf_place place[GGUF_PLACES])
{
    const struct known *k = known(c);
    const char *dot = strrchr(tensor, '.'), *to;
    struct name_text module;
    struct tensor_name n;

    place[0] = place[1] = (struct gguf_place){ .expert = -1 };
    tensor_name_parse(&n, tensor);
    if (!k || !dot || n.layer >= c->n_layers)
        return 0;
    if (c->family->correction && n.layer >= 0 &&
        n.part.len == strlen(c->family->correction) &&
        !strncmp(n.part.at, c->family->correction, n.part.len))
        return put(place, n.layer, "exp_probs_b", ".bias");
    if (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0)
        return 0;
    module.at = n.layer < 0 ? tensor : n.part.at;
    module.len = dot > module.at ? (size_t)(dot - module.at) : 0;
    if (n.layer >= 0 && module.len == strlen("self_attn.kv_b_proj") &&
        !strncmp(module.at, "self_attn.kv_b_proj", module.len)) {
        place[0].form = GGUF_KEYS;
        place[1].form = GGUF_VALUES;
        put(&place[0], n.layer, "attn_k_b", dot);
        return 1 + put(&place[1], n.layer, "attn_v_b", dot);
    }
    to = n.layer < 0   ? find(outside, ARRAY_LEN(outside), module) :
         n.expert >= 0 ? find(of_experts, ARRAY_LEN(of_experts), module) :
                         find(inside, ARRAY_LEN(inside), module);
    if (!to || n.expert >= c->moe.n_experts)
        return 0;
    if (n.expert >= 0) {
        place->form = GGUF_STACK;
        place->expert = n.expert;
    }
    if (k->halves && (!strcmp(to, "attn_q") || !strcmp(to, "attn_k")))
        place->head = (uint64_t)c->head_dim;
    place->f32 = !strncmp(to, "ffn_gate_inp", strlen("ffn_gate_inp"));
    return put(place, n.layer, to, dot);
}
