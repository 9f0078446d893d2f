/* config.json of models with latent attention and mixtures of experts. */
#include "test.h"

#include <math.h>
#include <string.h>

#include "arch/config.h"

#define BASE                                                                   \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":6,"     \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100,"  \
    "\"num_experts_per_tok\":2"
#define MLA                                                                    \
    ",\"kv_lora_rank\":48,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,"     \
    "\"v_head_dim\":24,\"moe_intermediate_size\":32,\"n_routed_experts\":16"
#define LORA MLA ",\"q_lora_rank\":32"
#define QWEN ",\"num_experts\":8,\"moe_intermediate_size\":32"
#define YARN                                                                   \
    ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,"       \
    "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096}"

static struct model_config c;
static struct err e;

static int parse(const char *family, const char *more)
{
    char text[2048];

    snprintf(text, sizeof(text), "{\"model_type\":\"%s\"," BASE "%s}", family,
             more);
    model_config_release(&c);
    return model_config_parse(&c, text, strlen(text), "'config.json'", &e);
}

static void refused(int code, const char *family, const char *more,
                    const char *says)
{
    int rc = parse(family, more);

    if (rc != code || !strstr(e.msg, says))
        fprintf(stderr, "%s: %d %s\n", more, rc, rc < 0 ? e.msg : "accepted");
    CHECK(rc == code && strstr(e.msg, says));
}

/* Which of the six layers have experts, as a word of 0 and 1. */
static const char *sparse(void)
{
    static char word[8];

    for (int i = 0; i < 6; i++)
        word[i] = model_layer_experts(&c, i) ? '1' : '0';
    return word;
}

static void test_latent(void)
{
    CHECK(parse("deepseek_v3", MLA ",\"q_lora_rank\":32,\"n_group\":8") == 0);
    CHECK(c.mla.q_lora == 32 && c.mla.kv_lora == 48 && c.head_dim == 24);
    CHECK(c.v_dim == 24 && c.rotary == 8 && c.rotary_at == 16 && c.rope_pairs);
    CHECK(fabs(c.attention_scale - 1 / sqrt(24.0)) < 1e-12);
    CHECK(parse("deepseek_v3", MLA YARN ",\"rope_interleave\":false,"
                                        "\"q_lora_rank\":null") == 0);
    CHECK(c.mla.q_lora == 0 && !c.rope_pairs);
    /* DeepSeek-V3: 192^-1/2 * 1.3688879454^2 = 0.1352337789 */
    CHECK(fabs(c.attention_scale * sqrt(24.0) - 0.1352337789 * sqrt(192.0)) <
          1e-8);
    CHECK(c.rope.attention_factor == 1);
    refused(E_DATA, "deepseek_v3", QWEN, "kv_lora_rank is missing");
    refused(E_CONFIG, "deepseek_v3",
            ",\"kv_lora_rank\":48,\"qk_nope_head_dim\":16,"
            "\"qk_rope_head_dim\":7,\"v_head_dim\":24",
            "16 + 7");
}

/* DeepSeek-V2's mlp_bias: of the dense MLP and the shared experts. */
static void test_mlp_bias(void)
{
    struct linear l;

    CHECK(parse("deepseek_v2", LORA ",\"mlp_bias\":true,"
                                    "\"n_shared_experts\":1,"
                                    "\"first_k_dense_replace\":1") == 0);
    for (int64_t layer = 0; layer < 2; layer++)
        for (int64_t i = 0; i < model_linear_count(&c, layer); i++) {
            model_linear(&c, layer, i, &l);
            CHECK(l.bias == (l.expert < 0 && strstr(l.module, ".mlp.")));
        }
}

static void test_router(void)
{
    CHECK(parse("deepseek_v3", MLA) == 0);
    CHECK(c.moe.grouped && c.moe.n_group == 8 && c.moe.topk_group == 4);
    CHECK(c.moe.renormalize && c.moe.scale == 2.5 && c.moe.top_k == 2);
    CHECK(parse("kimi_k2", MLA ",\"n_group\":1,\"topk_group\":1,"
                               "\"routed_scaling_factor\":2.827,"
                               "\"architectures\":"
                               "[\"DeepseekV3ForCausalLM\"]") == 0);
    CHECK(!c.moe.grouped && c.moe.scale == 2.827);
    CHECK(parse("deepseek_v2", MLA ",\"norm_topk_prob\":true") == 0);
    CHECK(!c.moe.grouped && !c.moe.renormalize && c.moe.scale == 1);
    CHECK(parse("deepseek_v2", MLA ",\"topk_method\":\"group_limited_greedy\","
                                   "\"n_group\":4,\"topk_group\":2") == 0);
    CHECK(c.moe.grouped && c.moe.topk_group == 2);
    CHECK(parse("mixtral", ",\"num_local_experts\":8") == 0);
    CHECK(!c.sliding_window); /* as MixtralConfig */
    CHECK(c.moe.renormalize && c.moe.width == 96 && c.rope.theta == 1e6);
    CHECK(parse("qwen3_moe", QWEN) == 0 && !c.moe.renormalize);
    refused(E_DATA, "deepseek_v3", MLA ",\"n_group\":5", "n_group 5");
    refused(E_DATA, "deepseek_v3", MLA ",\"topk_group\":9", "topk_group 9");
    refused(E_DATA, "deepseek_v3", MLA ",\"n_group\":16,\"topk_group\":1",
            "num_experts_per_tok 2 of 1 ");
    refused(E_DATA, "qwen3_moe",
            ",\"num_experts\":1,\"moe_intermediate_size\":32",
            "num_experts_per_tok 2 of 1 ");
    refused(E_CONFIG, "deepseek_v3", MLA ",\"scoring_func\":\"softmax\"",
            "scoring_func 'softmax'");
    refused(E_CONFIG, "deepseek_v2", MLA ",\"topk_method\":\"noaux_tc\"",
            "topk_method 'noaux_tc'");
    refused(E_DATA, "qwen3_moe", "", "n_routed_experts is missing");
    refused(E_DATA, "qwen3_moe", ",\"num_experts\":8",
            "moe_intermediate_size is missing");
}

static void test_layers(void)
{
    CHECK(parse("deepseek_v3", MLA) == 0 && !strcmp(sparse(), "000111"));
    CHECK(parse("deepseek_v3", MLA ",\"first_k_dense_replace\":1,"
                                   "\"moe_layer_freq\":2") == 0);
    CHECK(!strcmp(sparse(), "001010"));
    CHECK(parse("deepseek_v32",
                LORA ",\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\","
                     "\"dense\",\"dense\",\"sparse\"]") == 0);
    CHECK(!strcmp(sparse(), "101001") && c.longest == 0);
    CHECK(c.indexer.top_k == 2048 && c.indexer.n_heads == 64);
    CHECK(parse("glm_moe_dsa", LORA ",\"index_topk\":7,\"index_head_dim\":"
                                    "96,\"indexer_types\":[\"full\"]") == 0);
    CHECK(c.indexer.top_k == 7 && c.indexer.n_heads == 32 &&
          c.indexer.dim == 96 && c.longest == 0);
    CHECK(parse("glm_moe_dsa", LORA ",\"index_topk_pattern\":\"FSFS\"") == 0);
    CHECK(c.indexer.top_k == 0 && c.longest == 2048);
    CHECK(parse("glm_moe_dsa", LORA ",\"index_topk_freq\":4") == 0);
    CHECK(c.indexer.top_k == 0 && c.longest == 2048);
    refused(E_DATA, "deepseek_v32", LORA ",\"index_head_dim\":4",
            "index_head_dim 4 is less than");
    refused(E_DATA, "deepseek_v32", MLA, "q_lora_rank is missing");
    CHECK(parse("qwen2_moe", QWEN ",\"shared_expert_intermediate_size\":40,"
                                  "\"decoder_sparse_step\":2") == 0);
    CHECK(!strcmp(sparse(), "010101"));
    CHECK(parse("qwen3_moe", QWEN ",\"mlp_only_layers\":[0,3,77]") == 0);
    CHECK(!strcmp(sparse(), "011011"));
    CHECK(parse("qwen3_moe", ",\"num_experts\":0") == 0);
    CHECK(!strcmp(sparse(), "000000"));
    CHECK(parse("minimax_m2", ",\"num_local_experts\":4") == 0);
    CHECK(!strcmp(sparse(), "111111"));
    refused(E_DATA, "qwen3_moe", QWEN ",\"mlp_only_layers\":[-1]",
            "mlp_only_layers");
    refused(E_DATA, "deepseek_v32", LORA ",\"mlp_layer_types\":[\"dense\"]",
            "mlp_layer_types");
}

static void test_ernie(void)
{
    const char *more = ",\"moe_num_experts\":8,\"moe_k\":2,"
                       "\"moe_intermediate_size\":32,"
                       "\"moe_num_shared_experts\":2,\"moe_layer_interval\":2,"
                       "\"moe_layer_start_index\":2,\"moe_layer_end_index\":4";

    CHECK(parse("ernie4_5_moe", more) == 0 && !strcmp(sparse(), "000100"));
    CHECK(c.moe.top_k == 2 && c.moe.shared_width == 64 && c.moe.renormalize);
    refused(E_CONFIG, "ernie4_5_moe",
            ",\"moe_num_experts\":8,\"moe_k\":2,\"use_bias\":true,"
            "\"moe_intermediate_size\":32",
            "use_bias true is not supported");
}

static void test_linear(void)
{
    struct linear l;

    CHECK(parse("qwen3_next", QWEN ",\"shared_expert_intermediate_size\":40") ==
          0);
    for (int i = 0; i < 6; i++)
        CHECK(model_layer_linear(&c, i) == (i != 3));
    CHECK(
        model_find_linear(&c, "model.layers.0.linear_attn.in_proj_qkvz", &l) &&
        l.rows == 2 * 16 * 128 + 2 * 32 * 128 && l.input == IN_ATTN);
    CHECK(!model_find_linear(&c, "model.layers.0.linear_attn.in_proj_ba", &l));
    CHECK(!model_find_linear(&c, "model.layers.0.self_attn.q_proj", &l));
    CHECK(model_find_linear(&c, "model.layers.3.self_attn.q_proj", &l) &&
          l.rows == 2 * c.n_heads * 256);
    CHECK(parse("qwen3_5_text",
                ",\"linear_num_key_heads\":2,\"linear_num_value_heads\":6,"
                "\"linear_key_head_dim\":8,\"linear_value_head_dim\":10,"
                "\"layer_types\":[\"full_attention\",\"linear_attention\","
                "\"full_attention\",\"full_attention\",\"full_attention\","
                "\"full_attention\"]") == 0);
    CHECK(!model_layer_linear(&c, 0) && model_layer_linear(&c, 1));
    CHECK(model_find_linear(&c, "model.layers.1.linear_attn.in_proj_qkv", &l) &&
          l.rows == 2 * 16 + 60);
    CHECK(model_find_linear(&c, "model.layers.1.linear_attn.out_proj", &l) &&
          l.cols == 60);
    refused(E_DATA, "qwen3_5_text", ",\"linear_num_value_heads\":17",
            "linear_num_value_heads 17 is not a multiple");
}

static void test_heads(void)
{
    CHECK(parse("glm4_moe", MLA ",\"head_dim\":32") == 0);
    CHECK(c.rotary == 16 && c.qk_norm == QK_NORM_NONE && !c.qkv_bias);
    CHECK(parse("glm4_moe", MLA ",\"head_dim\":32,\"use_qk_norm\":true,"
                                "\"attention_bias\":true,"
                                "\"partial_rotary_factor\":0.25") == 0);
    CHECK(c.rotary == 8 && c.qk_norm == QK_NORM_HEAD);
    CHECK(c.qkv_bias && !c.o_bias);
    CHECK(parse("minimax_m2", ",\"num_local_experts\":4,\"rotary_dim\":64") ==
          0);
    CHECK(c.head_dim == 128 && c.rotary == 64 && c.qk_norm == QK_NORM_FLAT);
    CHECK(parse("minimax_m2", ",\"num_local_experts\":4,\"rope_parameters\":{"
                              "\"rope_type\":\"default\","
                              "\"partial_rotary_factor\":0.5}") == 0);
    CHECK(c.rotary == 64 && c.rope.theta == 5e6);
    CHECK(parse("qwen2_moe", QWEN ",\"shared_expert_intermediate_size\":40,"
                                  "\"qkv_bias\":false") == 0);
    CHECK(!c.qkv_bias);
    CHECK(parse("qwen2_moe", QWEN ",\"shared_expert_intermediate_size\":40,"
                                  "\"use_sliding_window\":true,"
                                  "\"sliding_window\":9,"
                                  "\"max_window_layers\":3") == 0);
    CHECK(model_layer_slides(&c, 0) && !model_layer_slides(&c, 1));
    CHECK(model_layer_slides(&c, 2) && !model_layer_slides(&c, 4));
    refused(E_CONFIG, "glm4_moe",
            MLA ",\"head_dim\":32,"
                "\"partial_rotary_factor\":0.1",
            "3 of a head's 32 dims");
}

static void check_linear(int64_t layer, int64_t i, const char *name,
                         enum input_class in, int64_t rows, int64_t cols)
{
    struct linear l, found;
    char want[MODULE_PATH_MAX];

    model_linear(&c, layer, i, &l);
    snprintf(want, sizeof(want), "model.layers.%lld.%s", (long long)layer,
             name);
    CHECK(!strcmp(l.module, want));
    CHECK(l.input == in && l.rows == rows && l.cols == cols);
    CHECK(model_find_linear(&c, want, &found));
    CHECK(found.expert == l.expert && found.part == l.part);
}

#define LLAMA4 ",\"intermediate_size_mlp\":128,\"num_local_experts\":4"

static void test_llama4(void)
{
    CHECK(parse("llama4_text", LLAMA4 ",\"interleave_moe_layer_step\":2,"
                                      "\"no_rope_layers\":[],"
                                      "\"attn_temperature_tuning\":4") == 0);
    CHECK(c.intermediate_size == 128 && c.moe.width == 96 &&
          c.moe.shared_width == 96 && c.moe.weigh_inputs);
    CHECK(!model_layer_experts(&c, 0) && model_layer_experts(&c, 1) == 4);
    CHECK(model_layer_rope(&c, 2) && !model_layer_rope(&c, 3));
    CHECK(c.sliding_window == 8192 && model_layer_slides(&c, 2) &&
          !model_layer_slides(&c, 3));
    CHECK(c.qk_norm == QK_NORM_UNIT);
    CHECK(c.query_growth.scale > 0 && c.query_growth.floor == 8192);
    check_linear(0, 4, "feed_forward.gate_proj", IN_MLP, 128, 64);
    check_linear(1, 4, "feed_forward.shared_expert.gate_proj", IN_MLP, 96, 64);
    check_linear(1, 9, "feed_forward.experts.0.down_proj", IN_EXPERT_MID, 64,
                 96);
    CHECK(parse("llama4_text",
                LLAMA4 ",\"moe_layers\":[2],"
                       "\"use_qk_norm\":false,"
                       "\"attention_chunk_size\":null,"
                       "\"attn_temperature_tuning\":false") == 0);
    CHECK(!model_layer_experts(&c, 1) && model_layer_experts(&c, 2) == 4);
    CHECK(c.qk_norm == QK_NORM_NONE && c.query_growth.scale <= 0);
    CHECK(!model_layer_slides(&c, 2));
    refused(E_DATA, "llama4_text", LLAMA4 ",\"moe_layers\":[2,-1]",
            "moe_layers: not the number");
    refused(E_CONFIG, "llama4_text",
            LLAMA4 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}",
            "in front of norms of q and k");
    CHECK(parse("llama4_text", /* Scout's */
                LLAMA4 ",\"rope_scaling\":{\"rope_type\":\"llama3\","
                       "\"factor\":16.0,\"low_freq_factor\":1.0,"
                       "\"high_freq_factor\":1.0,"
                       "\"original_max_position_embeddings\":8192}") == 0);
}

#define MAMBA ",\"mamba_n_heads\":8,\"mamba_n_groups\":2,\"mamba_d_state\":24"
#define MIXED ",\"num_local_experts\":4,\"shared_intermediate_size\":40"

static void test_granite(void)
{
    CHECK(parse("granitemoe",
                ",\"num_local_experts\":4,\"residual_multiplier\":0.5") == 0);
    CHECK(fabs(c.moe.scale - 0.5) < 1e-12 && c.moe.renormalize);
    check_linear(0, 5, "block_sparse_moe.experts.0.w3", IN_EXPERT, 96, 64);
    CHECK(parse("granitemoehybrid", MAMBA MIXED
                ",\"layer_types\":[\"mamba\",\"attention\",\"mamba\","
                "\"linear_attention\",\"full_attention\",\"mamba\"],"
                "\"time_step_limit\":[0.25,{\"x\":1}]") == 0);
    CHECK(c.delta.v_dim == 16 && c.delta.step_min > 0.2 &&
          isinf(c.delta.step_max));
    CHECK(model_layer_linear(&c, 3) && !model_layer_linear(&c, 4));
    CHECK(!model_layer_rope(&c, 1));
    check_linear(0, 0, "mamba.in_proj", IN_ATTN, 2 * 128 + 2 * 48 + 8, 64);
    check_linear(0, 1, "mamba.out_proj", IN_ATTN_OUT, 64, 128);
    check_linear(0, 2, "shared_mlp.input_linear", IN_MLP, 80, 64);
    check_linear(0, 6, "block_sparse_moe.experts.0.down_proj", IN_EXPERT_MID,
                 64, 96);
    CHECK(parse("granitemoehybrid", MAMBA
                ",\"num_local_experts\":0,\"shared_intermediate_size\":40,"
                "\"position_embedding_type\":\"rope\"") == 0);
    CHECK(model_layer_linear(&c, 5) && model_layer_rope(&c, 1));
    check_linear(0, 3, "shared_mlp.output_linear", IN_MLP_MID, 64, 40);
    refused(E_DATA, "granitemoehybrid",
            MIXED ",\"mamba_n_heads\":8,\"mamba_n_groups\":3",
            "mamba_n_groups");
    refused(E_DATA, "granitemoehybrid",
            MIXED ",\"mamba_n_heads\":8,\"time_step_limit\":[2,1]",
            "time_step_limit is no range");
    refused(E_DATA, "granitemoehybrid", MIXED ",\"mamba_n_heads\":7",
            "mamba_n_heads 7");
}

#define KIMI                                                                   \
    ",\"kv_lora_rank\":48,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,"     \
    "\"v_head_dim\":24,\"moe_intermediate_size\":32,\"num_experts\":8,"        \
    "\"num_experts_per_token\":3"

static void test_kimi(void)
{
    CHECK(parse("kimi_linear",
                KIMI ",\"num_shared_experts\":1,\"model_max_length\":99,"
                     "\"linear_attn_config\":{\"full_attn_layers\":[4],"
                     "\"num_heads\":3,\"head_dim\":16,"
                     "\"short_conv_kernel_size\":3}") == 0);
    CHECK(model_layer_linear(&c, 2) && !model_layer_linear(&c, 3));
    CHECK(c.max_position == 99 && c.moe.top_k == 3 && c.delta.kernel == 3);
    CHECK(!model_layer_rope(&c, 3) && !strcmp(sparse(), "011111"));
    check_linear(2, 0, "self_attn.q_proj", IN_ATTN, 48, 64);
    check_linear(2, 3, "self_attn.o_proj", IN_ATTN_OUT, 64, 48);
    check_linear(3, 1, "self_attn.kv_a_proj_with_mqa", IN_ATTN, 56, 64);
    check_linear(2, 5, "block_sparse_moe.shared_experts.up_proj", IN_MLP, 32,
                 64);
    check_linear(2, 7, "block_sparse_moe.experts.0.w1", IN_EXPERT, 32, 64);
    refused(E_CONFIG, "kimi_linear", KIMI ",\"mla_use_nope\":false",
            "mla_use_nope false");
    refused(E_DATA, "kimi_linear",
            KIMI ",\"linear_attn_config\":{\"full_attn_layers\":[7]}",
            "full_attn_layers: not the number");
}

static void test_linears(void)
{
    struct linear l;
    char name[MODULE_PATH_MAX];

    CHECK(parse("deepseek_v3",
                MLA ",\"q_lora_rank\":32,\"n_shared_experts\":2") == 0);
    CHECK(model_linear_count(&c, 0) == 7 && model_linear_count(&c, 3) == 55);
    check_linear(3, 0, "self_attn.q_a_proj", IN_ATTN, 32, 64);
    check_linear(3, 1, "self_attn.kv_a_proj_with_mqa", IN_ATTN, 56, 64);
    check_linear(3, 2, "self_attn.q_b_proj", IN_Q_LAT, 96, 32);
    check_linear(3, 3, "self_attn.o_proj", IN_ATTN_OUT, 64, 96);
    check_linear(3, 5, "mlp.shared_experts.up_proj", IN_MLP, 64, 64);
    check_linear(3, 7, "mlp.experts.0.gate_proj", IN_EXPERT, 32, 64);
    check_linear(3, 54, "mlp.experts.15.down_proj", IN_EXPERT_MID, 64, 32);
    check_linear(0, 6, "mlp.down_proj", IN_MLP_MID, 64, 96);
    CHECK(!model_find_linear(&c, "model.layers.3.mlp.experts.16.up_proj", &l));
    CHECK(!model_find_linear(&c, "model.layers.3.mlp.experts.03.up_proj", &l));
    CHECK(!model_find_linear(&c, "model.layers.3.mlp.gate", &l));
    CHECK(!model_find_linear(&c, "model.layers.3.self_attn.kv_b_proj", &l));
    CHECK(!model_find_linear(&c, "model.layers.6.self_attn.o_proj", &l));
    CHECK(!model_find_linear(&c, "model.layers.0.mlp.experts.0.up_proj", &l));
    model_activation_name(&c, 3, IN_EXPERT_MID, 12, name);
    CHECK(!strcmp(name, "model.layers.3.mlp.experts.12.mid"));
    model_activation_name(&c, 3, IN_Q_LAT, -1, name);
    CHECK(!strcmp(name, "model.layers.3.q_lat"));

    c.kv_b = true; /* kv_b_proj in front of o_proj */
    CHECK(model_linear_count(&c, 0) == 8 && model_linear_common(&c, 3) == 8);
    check_linear(3, 2, "self_attn.q_b_proj", IN_Q_LAT, 96, 32);
    check_linear(3, 3, "self_attn.kv_b_proj", IN_KV_LAT, 4 * (16 + 24), 48);
    check_linear(3, 4, "self_attn.o_proj", IN_ATTN_OUT, 64, 96);
    model_activation_name(&c, 3, IN_KV_LAT, -1, name);
    CHECK(!strcmp(name, "model.layers.3.kv_lat"));

    CHECK(parse("deepseek_v3", MLA ",\"n_shared_experts\":null") == 0);
    CHECK(model_linear_common(&c, 3) == 3);
    check_linear(3, 0, "self_attn.q_proj", IN_ATTN, 96, 64);
    c.kv_b = true;
    check_linear(3, 2, "self_attn.kv_b_proj", IN_KV_LAT, 4 * (16 + 24), 48);

    CHECK(parse("mixtral", ",\"num_local_experts\":4") == 0);
    check_linear(5, 5, "block_sparse_moe.experts.0.w3", IN_EXPERT, 96, 64);
    check_linear(5, 15, "block_sparse_moe.experts.3.w2", IN_EXPERT_MID, 64, 96);
}

int main(void)
{
    test_latent();
    test_mlp_bias();
    test_router();
    test_layers();
    test_ernie();
    test_linear();
    test_heads();
    test_linears();
    test_llama4();
    test_granite();
    test_kimi();
    model_config_release(&c);
    return 0;
}
