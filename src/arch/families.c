/* families.c - the table of model families, struct family.  Defaults are those
 * of the families' configuration classes in transformers. */
#include <stdio.h>
#include <string.h>

#include "arch/config.h"
#include "arch/config_parts.h"

/* DeepSeek-V3 and families with its architecture. */
#define DEEPSEEK_V3                                                            \
    .mla = true, .attention_bias = true, .o_bias = true, .rope_pairs = true,   \
    .router = ROUTER_SIGMOID, .router_name = "mlp.gate",                       \
    .correction = "mlp.gate.e_score_correction_bias",                          \
    .experts = "mlp.experts", .shared = "mlp.shared_experts",                  \
    .first_dense = 3, .n_group = 8, .topk_group = 4, .renormalize = true,      \
    .scale = 2.5

static const struct family families[] = {
    { .model_type = "llama",
      .architecture = "LlamaForCausalLM",
      .attention_bias = true,
      .o_bias = true,
      .mlp_bias = true,
      .max_position = 2048 },
    { .model_type = "mistral",
      .architecture = "MistralForCausalLM",
      .sliding = SLIDING_ALL,
      .n_kv_heads = 8,
      .max_position = 131072 },
    { .model_type = "qwen2",
      .architecture = "Qwen2ForCausalLM",
      .qkv_bias = true,
      .sliding = SLIDING_FROM,
      .n_kv_heads = 32,
      .max_position = 32768 },
    { .model_type = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .qk_norm = QK_NORM_HEAD,
      .sliding = SLIDING_FROM,
      .attention_bias = true,
      .o_bias = true,
      .head_dim = 128,
      .n_kv_heads = 32,
      .max_position = 32768 },
    { .model_type = "mixtral",
      .architecture = "MixtralForCausalLM",
      .sliding = SLIDING_ALL,
      .router = ROUTER_SOFTMAX,
      .renormalize_always = true,
      .experts = "block_sparse_moe.experts",
      .router_name = "block_sparse_moe.gate",
      .mixtral = true,
      .rms_eps = 1e-5,
      .theta = 1e6,
      .n_kv_heads = 8,
      .max_position = 131072 },
    { .model_type = "qwen2_moe",
      .architecture = "Qwen2MoeForCausalLM",
      .qkv_bias = true,
      .qkv_bias_key = true,
      .sliding = SLIDING_EVEN,
      .router = ROUTER_SOFTMAX,
      .experts = "mlp.experts",
      .router_name = "mlp.gate",
      .shared = "mlp.shared_expert",
      .shared_gate = "mlp.shared_expert_gate",
      .sparse_step = true,
      .n_kv_heads = 16,
      .max_position = 32768 },
    { .model_type = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .qk_norm = QK_NORM_HEAD,
      .attention_bias = true,
      .o_bias = true,
      .sliding = SLIDING_IF_USED,
      .router = ROUTER_SOFTMAX,
      .experts = "mlp.experts",
      .router_name = "mlp.gate",
      .sparse_step = true,
      .n_kv_heads = 4,
      .max_position = 32768 },
    { .model_type = "deepseek_v2",
      .architecture = "DeepseekV2ForCausalLM",
      .mla = true,
      .attention_bias = true,
      .o_bias = true,
      .rope_pairs = true,
      .router = ROUTER_SOFTMAX,
      .renormalize_never = true,
      .experts = "mlp.experts",
      .router_name = "mlp.gate",
      .shared = "mlp.shared_experts",
      .max_position = 2048 },
    { .model_type = "deepseek_v3",
      .architecture = "DeepseekV3ForCausalLM",
      .max_position = 4096,
      DEEPSEEK_V3 },
    { .model_type = "kimi_k2",
      .architecture = "DeepseekV3ForCausalLM",
      .max_position = 4096,
      DEEPSEEK_V3 },
    { .model_type = "deepseek_v32",
      .architecture = "DeepseekV32ForCausalLM",
      .indexer = true,
      .max_position = 163840,
      DEEPSEEK_V3 },
    { .model_type = "glm4_moe",
      .architecture = "Glm4MoeForCausalLM",
      .attention_bias = true,
      .qk_norm = QK_NORM_HEAD,
      .qk_norm_key = true,
      .partial_rotary = 0.5,
      .router = ROUTER_SIGMOID,
      .correction = "mlp.gate.e_score_correction_bias",
      .experts = "mlp.experts",
      .router_name = "mlp.gate",
      .shared = "mlp.shared_experts",
      .first_dense = 1,
      .renormalize = true,
      .rms_eps = 1e-5,
      .n_kv_heads = 8,
      .max_position = 131072 },
    { .model_type = "minimax_m2",
      .architecture = "MiniMaxM2ForCausalLM",
      .qk_norm = QK_NORM_FLAT,
      .partial_rotary = 1,
      .router = ROUTER_SIGMOID,
      .renormalize_always = true,
      .correction = "block_sparse_moe.e_score_correction_bias",
      .experts = "block_sparse_moe.experts",
      .router_name = "block_sparse_moe.gate",
      .mixtral = true,
      .theta = 5e6,
      .head_dim = 128,
      .n_kv_heads = 8,
      .max_position = 196608 },
};

const struct family *family_find(const char *model_type)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (!strcmp(model_type, families[i].model_type))
            return &families[i];
    return NULL;
}

void family_list(char *buf, size_t n)
{
    size_t at = 0;

    *buf = 0;
    for (size_t i = 0; i < ARRAY_LEN(families) && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%s", i ? ", " : "",
                               families[i].model_type);
}
