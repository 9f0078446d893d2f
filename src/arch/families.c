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

/* Gemma: norms in front of and behind attention and MLP. */
static const struct layer_norms four_norms = { "input_layernorm",
                                               "post_attention_layernorm",
                                               "pre_feedforward_layernorm",
                                               "post_feedforward_layernorm" };
/* OLMo 2: only behind. */
static const struct layer_norms norms_behind = {
    .attn_out = "post_attention_layernorm",
    .mlp_out = "post_feedforward_layernorm"
};
static const struct layer_norms glm4_norms = { "input_layernorm",
                                               "post_self_attn_layernorm",
                                               "post_attention_layernorm",
                                               "post_mlp_layernorm" };

#define GEMMA                                                                  \
    .norms = &four_norms, .norm_plus_one = true, .act = ACT_GELU,              \
    .attention_bias = true, .o_bias = true, .embed_sqrt = true,                \
    .query_scalar = true, .softcaps = true, .sliding = SLIDING_PATTERN,        \
    .n_heads = 8, .n_kv_heads = 4, .head_dim = 256, .query_scale = 256,        \
    .tied = true

/* Qwen3-Next and Qwen3.5: gated attention beside linear attention. */
#define QWEN_DELTA                                                             \
    .norm_plus_one = true, .qk_norm = QK_NORM_HEAD, .attention_bias = true,    \
    .o_bias = true, .attention_gate = true, .mrope = true,                     \
    .partial_rotary = 0.25, .head_dim = 256, .max_position = 32768
#define QWEN_MIXTURE                                                           \
    .router = ROUTER_SOFTMAX, .experts = "mlp.experts",                        \
    .router_name = "mlp.gate", .shared = "mlp.shared_expert",                  \
    .shared_gate = "mlp.shared_expert_gate", .sparse_step = true

#define GRANITE_MIXTURE                                                        \
    .multipliers = true, .attention_bias = true, .o_bias = true,               \
    .router = ROUTER_SOFTMAX, .renormalize_always = true,                      \
    .router_name = "block_sparse_moe.router.layer",                            \
    .experts = "block_sparse_moe.experts"
#define GRANITE_SHARED                                                         \
    .shared = "shared_mlp", .shared_key = true, .fused_mlp = true,             \
    .granite_mlp = true

/* Models that are not language models alone. */
static const struct wrapper wrappers[] = {
    { "gemma3", "Gemma3ForConditionalGeneration", "gemma3_text" },
    { "gemma3n", "Gemma3nForConditionalGeneration", "gemma3n_text" },
    { "llama4", "Llama4ForConditionalGeneration", "llama4_text" },
    { "mistral3", "Mistral3ForConditionalGeneration", "mistral" },
    { "qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text" },
    { "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text" },
    { "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text" },
    { "qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text" },
};

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
      .plain_width = true,
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
    { .model_type = "glm_moe_dsa",
      .architecture = "GlmMoeDsaForCausalLM",
      .mla = true,
      .attention_bias = true,
      .o_bias = true,
      .rope_pairs = true,
      .indexer = true,
      .indexer_pairs = true,
      .index_heads = 32,
      .router = ROUTER_SIGMOID,
      .correction = "mlp.gate.e_score_correction_bias",
      .experts = "mlp.experts",
      .router_name = "mlp.gate",
      .shared = "mlp.shared_experts",
      .first_dense = 3,
      .renormalize = true,
      .scale = 2.5,
      .rms_eps = 1e-5,
      .max_position = 202752 },
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
      .plain_width = true,
      .theta = 5e6,
      .head_dim = 128,
      .n_kv_heads = 8,
      .max_position = 196608 },
    { .model_type = "gpt_oss",
      .architecture = "GptOssForCausalLM",
      .attention_bias = true,
      .o_bias = true,
      .biased = true,
      .mlp_biased = true,
      .sinks = true,
      .act = ACT_CLAMPED,
      .sliding = SLIDING_PATTERN,
      .pattern = 2,
      .window = 128,
      .rope_given = true,
      .router = ROUTER_SOFTMAX,
      .renormalize_always = true,
      .router_name = "mlp.router",
      .router_bias = true,
      .experts = "mlp.experts",
      .plain_width = true,
      .head_dim = 64,
      .rms_eps = 1e-5,
      .theta = 150000,
      .n_kv_heads = 8,
      .max_position = 131072 },
    { .model_type = "llama4_text",
      .architecture = "Llama4ForCausalLM",
      .attention_bias = true,
      .o_bias = true,
      .rope_pairs = true,
      .nope_layers = true,
      .query_growth = true,
      .qk_norm = QK_NORM_UNIT,
      .qk_norm_key = true,
      .sliding = SLIDING_CHUNKS,
      .by_type = true,
      .window = 8192,
      .mlp = "feed_forward",
      .mlp_width = "intermediate_size_mlp",
      .router = ROUTER_SIGMOID,
      .renormalize_never = true,
      .weigh_inputs = true,
      .interleaved_keys = true,
      .router_name = "feed_forward.router",
      .experts = "feed_forward.experts",
      .shared = "feed_forward.shared_expert",
      .n_shared = 1,
      .plain_width = true,
      .theta = 5e5,
      .rms_eps = 1e-5,
      .head_dim = 128,
      .n_kv_heads = 8,
      .max_position = 131072 },
    { .model_type = "gemma2",
      .architecture = "Gemma2ForCausalLM",
      .attention_cap = 50,
      .logit_cap = 30,
      .pattern = 2,
      .max_position = 8192,
      GEMMA },
    { .model_type = "gemma3_text",
      .architecture = "Gemma3ForCausalLM",
      .qk_norm = QK_NORM_HEAD,
      .rope_by_type = true,
      .theta = 1e6,
      .local_theta = 1e4,
      .pattern = 6,
      .vocab_size = 262208,
      .max_position = 131072,
      GEMMA },
    { .model_type = "gemma3n_text",
      .architecture = "Gemma3nForCausalLM",
      .norms = &four_norms,
      .act = ACT_GELU,
      .attention_bias = true,
      .o_bias = true,
      .embed_sqrt = true,
      .altup = true,
      .unit_scale = true,
      .softcaps = true,
      .logit_cap = 30,
      .qk_norm = QK_NORM_HEAD,
      .sliding = SLIDING_PATTERN,
      .pattern = 5,
      .window = 512,
      .rope_by_type = true,
      .theta = 1e6,
      .local_theta = 1e4,
      .n_heads = 8,
      .n_kv_heads = 2,
      .head_dim = 256,
      .vocab_size = 262400,
      .tied = true,
      .max_position = 32768 },
    { .model_type = "phi3",
      .architecture = "Phi3ForCausalLM",
      .fused_qkv = true,
      .fused_mlp = true,
      .sliding = SLIDING_ALL,
      .no_window = true,
      .partial_rotary = 1,
      .rms_eps = 1e-5,
      .max_position = 4096 },
    { .model_type = "olmo2",
      .architecture = "Olmo2ForCausalLM",
      .norms = &norms_behind,
      .qk_norm = QK_NORM_FLAT,
      .attention_bias = true,
      .o_bias = true,
      .rms_eps = 1e-5,
      .max_position = 2048 },
    { .model_type = "olmo3",
      .architecture = "Olmo3ForCausalLM",
      .norms = &norms_behind,
      .qk_norm = QK_NORM_FLAT,
      .attention_bias = true,
      .o_bias = true,
      .sliding = SLIDING_PATTERN,
      .pattern = 4,
      .rope_by_type = true,
      .rms_eps = 1e-5,
      .theta = 5e5,
      .max_position = 2048 },
    { .model_type = "granite",
      .architecture = "GraniteForCausalLM",
      .multipliers = true,
      .attention_bias = true,
      .o_bias = true,
      .mlp_bias = true,
      .max_position = 2048 },
    { .model_type = "granitemoe",
      .architecture = "GraniteMoeForCausalLM",
      .mixtral = true,
      .plain_width = true,
      .max_position = 2048,
      GRANITE_MIXTURE },
    { .model_type = "granitemoeshared",
      .architecture = "GraniteMoeSharedForCausalLM",
      .mixtral = true,
      .plain_width = true,
      .max_position = 2048,
      GRANITE_SHARED,
      GRANITE_MIXTURE },
    { .model_type = "granitemoehybrid",
      .architecture = "GraniteMoeHybridForCausalLM",
      .delta = DELTA_MAMBA,
      .rope_by_key = true,
      .mlp = "shared_mlp",
      .mlp_width = "shared_intermediate_size",
      .plain_width = true,
      .max_position = 2048,
      GRANITE_SHARED,
      GRANITE_MIXTURE },
    { .model_type = "seed_oss",
      .architecture = "SeedOssForCausalLM",
      .attention_bias = true,
      .biased = true,
      .o_bias_key = true,
      .mlp_bias = true,
      .head_dim = 128,
      .n_kv_heads = 8,
      .max_position = 524288 },
    { .model_type = "ernie4_5",
      .architecture = "Ernie4_5ForCausalLM",
      .use_bias = true,
      .rope_pairs = true,
      .tied = true,
      .rms_eps = 1e-5,
      .theta = 5e5,
      .head_dim = 128,
      .n_kv_heads = 2,
      .max_position = 131072 },
    { .model_type = "ernie4_5_moe",
      .architecture = "Ernie4_5_MoeForCausalLM",
      .rope_pairs = true,
      .tied = true,
      .ernie_keys = true,
      .router = ROUTER_SOFTMAX,
      .renormalize_always = true,
      .correction = "mlp.moe_statics.e_score_correction_bias",
      .experts = "mlp.experts",
      .router_name = "mlp.gate",
      .shared = "mlp.shared_experts",
      .rms_eps = 1e-5,
      .theta = 5e5,
      .n_kv_heads = 4,
      .max_position = 131072 },
    { .model_type = "ministral",
      .architecture = "MinistralForCausalLM",
      .sliding = SLIDING_ALL,
      .by_type = true,
      .n_kv_heads = 8,
      .max_position = 131072 },
    { .model_type = "ministral3",
      .architecture = "Ministral3ForCausalLM",
      .sliding = SLIDING_ALL,
      .no_window = true,
      .position_scale = true,
      .rope_given = true,
      .head_dim = 128,
      .rms_eps = 1e-5,
      .n_kv_heads = 8,
      .max_position = 262144 },
    { .model_type = "smollm3",
      .architecture = "SmolLM3ForCausalLM",
      .attention_bias = true,
      .o_bias = true,
      .mlp_bias = true,
      .sliding = SLIDING_IF_USED,
      .by_type = true,
      .nope_layers = true,
      .tied = true,
      .theta = 2e6,
      .n_kv_heads = 4,
      .max_position = 32768 },
    { .model_type = "glm4",
      .architecture = "Glm4ForCausalLM",
      .norms = &glm4_norms,
      .attention_bias = true,
      .biased = true,
      .fused_mlp = true,
      .rope_pairs = true,
      .partial_rotary = 0.5,
      .rms_eps = 1.5625e-7,
      .head_dim = 128,
      .n_kv_heads = 2,
      .max_position = 131072 },
    { .model_type = "qwen3_next",
      .architecture = "Qwen3NextForCausalLM",
      .delta = DELTA_FUSED,
      .renormalize = true,
      .n_kv_heads = 2,
      QWEN_MIXTURE,
      QWEN_DELTA },
    { .model_type = "qwen3_5_text",
      .architecture = "Qwen3_5ForCausalLM",
      .delta = DELTA_SPLIT,
      .n_kv_heads = 4,
      QWEN_DELTA },
    { .model_type = "qwen3_5_moe_text",
      .architecture = "Qwen3_5MoeForCausalLM",
      .delta = DELTA_SPLIT,
      .renormalize_always = true,
      .all_sparse = true,
      .n_kv_heads = 2,
      QWEN_MIXTURE,
      QWEN_DELTA },
    { .model_type = "kimi_linear",
      .architecture = "KimiLinearForCausalLM",
      .mla = true,
      .delta = DELTA_CHANNELS,
      .rope_by_key = true,
      .router = ROUTER_SIGMOID,
      .router_name = "block_sparse_moe.gate",
      .correction = "block_sparse_moe.gate.e_score_correction_bias",
      .experts = "block_sparse_moe.experts",
      .mixtral = true,
      .shared = "block_sparse_moe.shared_experts",
      .kimi_keys = true,
      .first_dense = 1,
      .renormalize = true,
      .scale = 2.446,
      .rms_eps = 1e-5,
      .max_position = 1048576 },
    { .model_type = "qwen2_5_vl_text",
      .architecture = "Qwen2_5_VLForConditionalGeneration",
      .qkv_bias = true,
      .mrope = true,
      .sliding = SLIDING_FROM,
      .theta = 1e6,
      .rms_eps = 1e-5,
      .n_kv_heads = 8,
      .max_position = 32768 },
    { .model_type = "qwen3_vl_text",
      .architecture = "Qwen3VLForConditionalGeneration",
      .qk_norm = QK_NORM_HEAD,
      .attention_bias = true,
      .o_bias = true,
      .mrope = true,
      .theta = 5e5,
      .head_dim = 128,
      .n_kv_heads = 32,
      .max_position = 128000 },
};

const struct family *family_find(const char *model_type)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (!strcmp(model_type, families[i].model_type))
            return &families[i];
    return NULL;
}

/* Number of characters that two names begin with alike. */
static size_t alike(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

int family_refuse(const char *model_type, struct err *e)
{
    const struct family *nearest = &families[0];

    for (size_t i = 1; i < ARRAY_LEN(families); i++)
        if (alike(families[i].model_type, model_type) >
            alike(nearest->model_type, model_type))
            nearest = &families[i];
    return err_set(e, E_CONFIG,
                   "model_type '%.64s' is not supported (its nearest relative "
                   "that is: %s)",
                   model_type, nearest->model_type);
}

const struct layer_norms *model_norms(const struct model_config *c)
{
    static const struct layer_norms usual = { .attn_in = "input_layernorm",
                                              .mlp_in =
                                                  "post_attention_layernorm" };

    return c->family->norms ? c->family->norms : &usual;
}

const struct wrapper *wrapper_find(const char *model_type)
{
    for (size_t i = 0; i < ARRAY_LEN(wrappers); i++)
        if (!strcmp(model_type, wrappers[i].model_type))
            return &wrappers[i];
    return NULL;
}

int wrapper_refuse(const char *model_type, struct err *e)
{
    char known[256] = "";
    size_t at = 0;

    for (size_t i = 0; i < ARRAY_LEN(wrappers) && at < sizeof(known); i++)
        at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s",
                               i ? ", " : "", wrappers[i].model_type);
    return err_set(e, E_CONFIG,
                   "text_config: of multimodal models '%.64s' is not supported "
                   "(%s are)",
                   model_type, known);
}
