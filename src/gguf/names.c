/* names.c - see names.h. */
#include "gguf/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of the families here; layers of experts and latent attention have other
 * tensors. */
static const struct {
    const char *model_type, *architecture;
    bool halves; /* q and k are turned from halves to pairs */
    bool biases; /* of q, k, v and others there may be some */
} families[] = {
    { "llama", "llama", true, true },
    { "mistral", "llama", true, true },
    { "qwen2", "qwen2", false, true },
    { "qwen3", "qwen3", false, false },
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
    { "post_attention_layernorm", "ffn_norm" },
    { "mlp.gate_proj", "ffn_gate" },
    { "mlp.up_proj", "ffn_up" },
    { "mlp.down_proj", "ffn_down" },
};

static size_t family_of(const struct model_config *c)
{
    size_t i = 0;

    while (i < ARRAY_LEN(families) &&
           strcmp(families[i].model_type, c->family->model_type) != 0)
        i++;
    return i;
}

int gguf_architecture(const struct model_config *c, const char **name,
                      struct err *e)
{
    size_t i = family_of(c);

    if (i == ARRAY_LEN(families))
        return err_set(e, E_CONFIG,
                       "models of type %s are not written as GGUF; llama, "
                       "mistral, qwen2 and qwen3 are",
                       c->family->model_type);
    if (!families[i].biases && (c->qkv_bias || c->o_bias || c->mlp_bias))
        return err_set(e, E_CONFIG, "llama.cpp's %s has no biases",
                       families[i].architecture);
    if (c->sliding_window)
        return err_set(e, E_CONFIG,
                       "llama.cpp's %s has no sliding window, this model one "
                       "of %" PRId64 " tokens",
                       families[i].architecture, c->sliding_window);
    if (c->rope.kind == ROPE_DYNAMIC)
        return err_set(e, E_CONFIG, "llama.cpp has no dynamic RoPE");
    *name = families[i].architecture;
    return 0;
}

static const char *find(const char *const (*table)[2], size_t n,
                        const char *module, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i][0]) == len && !memcmp(table[i][0], module, len))
            return table[i][1];
    return NULL;
}

bool gguf_name(const struct model_config *c, const char *tensor,
               char name[GGUF_NAME_MAX], uint64_t *head)
{
    const char *dot = strrchr(tensor, '.'), *to;
    size_t i = family_of(c);
    struct tensor_name n;

    *head = 0;
    tensor_name_parse(&n, tensor);
    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0) ||
        i == ARRAY_LEN(families) || n.layer >= c->n_layers)
        return false;
    if (n.layer < 0) {
        to = find(outside, ARRAY_LEN(outside), tensor, (size_t)(dot - tensor));
        return to && snprintf(name, GGUF_NAME_MAX, "%s%s", to, dot) > 0;
    }
    to = n.expert < 0 && n.part.at < dot ?
             find(inside, ARRAY_LEN(inside), n.part.at,
                  (size_t)(dot - n.part.at)) :
             NULL;
    if (!to)
        return false;
    if (families[i].halves && (!strcmp(to, "attn_q") || !strcmp(to, "attn_k")))
        *head = (uint64_t)c->head_dim;
    return snprintf(name, GGUF_NAME_MAX, "blk.%" PRId64 ".%s%s", n.layer, to,
                    dot) > 0;
}
