/* config.json: both spellings, defaults of each family, and what is refused
 * by name. */
#include "test.h"

#include <math.h>
#include <string.h>

#include "arch/config.h"

#define SIZES                                                                  \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":3,"     \
    "\"num_attention_heads\":4,\"vocab_size\":256"

static struct model_config c;
static struct err e;

static int parse(const char *family, const char *more)
{
    char text[4096];

    snprintf(text, sizeof(text), "{\"model_type\":\"%s\"," SIZES "%s%s}",
             family, *more ? "," : "", more);
    model_config_release(&c);
    return model_config_parse(&c, text, strlen(text), "'config.json'", &e);
}

/* The message names what is wrong. */
static void refused(int code, const char *family, const char *more,
                    const char *says)
{
    int rc = parse(family, more);

    if (rc != code || !strstr(e.msg, says))
        fprintf(stderr, "%s: %d %s\n", more, rc, rc < 0 ? e.msg : "accepted");
    CHECK(rc == code && strstr(e.msg, says));
}

static void test_defaults(void)
{
    CHECK(parse("llama", "") == 0);
    CHECK(c.n_kv_heads == 4 && c.head_dim == 16 && c.max_position == 2048);
    CHECK(c.rms_eps == 1e-6 && !c.tied && c.dtype == DT_BF16);
    CHECK(!c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.sliding_window);
    CHECK(c.rope.kind == ROPE_DEFAULT && c.rope.theta == 10000);
    CHECK(!strcmp(c.architecture, "LlamaForCausalLM") && !*c.quant_method);

    CHECK(parse("mistral", "\"num_key_value_heads\":2") == 0);
    CHECK(c.sliding_window == 4096 && model_layer_slides(&c, 0));
    CHECK(parse("mistral", "\"num_key_value_heads\":null,"
                           "\"sliding_window\":null,\"head_dim\":32") == 0);
    CHECK(c.n_kv_heads == 4 && c.head_dim == 32 && !model_layer_slides(&c, 2));

    CHECK(parse("qwen2", "\"num_key_value_heads\":2") == 0);
    CHECK(c.qkv_bias && !c.o_bias && !model_layer_slides(&c, 2));
    CHECK(parse("qwen3", "\"num_key_value_heads\":2") == 0);
    CHECK(c.head_dim == 128 && c.family->qk_norm && !c.qkv_bias);
    CHECK(parse("qwen3", "\"num_key_value_heads\":2,\"head_dim\":null") == 0);
    CHECK(c.head_dim == 16);
}

/* Defaults and settings of the families that differ from Llama. */
static void test_variants(void)
{
    struct linear l;

    CHECK(parse("gemma2", "") == 0);
    CHECK(c.n_kv_heads == 4 && c.head_dim == 256 && c.tied);
    CHECK(c.attention_cap == 50 && c.logit_cap == 30 && c.embed_scale == 8);
    CHECK(c.attention_scale == 1.0 / 16 && model_adds_scaled(&c));
    CHECK(model_layer_slides(&c, 0) && !model_layer_slides(&c, 1));
    CHECK(parse("gemma2", "\"attn_logit_softcapping\":null,"
                          "\"query_pre_attn_scalar\":4") == 0);
    CHECK(c.attention_cap == 0 && c.attention_scale == 0.5);

    CHECK(parse("gemma3_text", "\"attn_logit_softcapping\":50.0,"
                               "\"final_logit_softcapping\":30.0") == 0);
    CHECK(c.attention_cap == 0 && c.logit_cap == 30);
    CHECK(parse("gemma3_text", "\"sliding_window_pattern\":3,"
                               "\"rope_local_base_freq\":500,"
                               "\"rope_scaling\":{\"rope_type\":\"linear\","
                               "\"factor\":8}") == 0);
    CHECK(model_layer_rope(&c, 0)->theta == 500);
    CHECK(model_layer_rope(&c, 0)->kind == ROPE_DEFAULT);
    CHECK(model_layer_rope(&c, 2)->theta == 1e6);
    CHECK(model_layer_rope(&c, 2)->kind == ROPE_LINEAR && !c.attention_cap);

    CHECK(parse("olmo3", "") == 0 && c.qk_norm == QK_NORM_FLAT);
    CHECK(!model_norms(&c)->attn_in && model_norms(&c)->mlp_out);
    CHECK(parse("granite", "\"logits_scaling\":8,\"residual_multiplier\":0.25,"
                           "\"embedding_multiplier\":12,"
                           "\"attention_multiplier\":0.5") == 0);
    CHECK(c.logit_scale == 0.125 && c.residual_scale == 0.25);
    CHECK(c.embed_scale == 12 && c.attention_scale == 0.5);
    CHECK(parse("seed_oss", "\"num_key_value_heads\":2") == 0);
    CHECK(c.qkv_bias && !c.o_bias && c.head_dim == 128);
    CHECK(parse("ernie4_5", "\"use_bias\":true") == 0);
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias && c.rope_pairs);
    CHECK(parse("smollm3", "\"no_rope_layers\":[1,0,1]") == 0);
    CHECK(model_layer_rope(&c, 0) && !model_layer_rope(&c, 1));
    CHECK(parse("smollm3", "\"no_rope_layer_interval\":2") == 0);
    CHECK(model_layer_rope(&c, 0) && !model_layer_rope(&c, 1));

    CHECK(parse("phi3", "") == 0 && !c.sliding_window);
    CHECK(model_linear_count(&c, 0) == 4 && c.longest == 0);
    model_linear(&c, 1, 0, &l);
    CHECK(!strcmp(l.module, "model.layers.1.self_attn.qkv_proj"));
    CHECK(l.part == PART_QKV && l.rows == 192 && l.cols == 64);
    model_linear(&c, 1, 2, &l);
    CHECK(l.part == PART_GATE_UP && l.rows == 192 && l.input == IN_MLP);
    CHECK(parse("phi3", "\"original_max_position_embeddings\":512,"
                        "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":"
                        "[1,1,1,1,1,1,1,2],\"long_factor\":[4]}") == 0);
    CHECK(c.rope.kind == ROPE_LONGROPE && c.longest == 512);
    CHECK(c.rope.divisors[7] == 2 && c.rope.attention_factor > 1);
}

/* Several streams, and what is another thing in each layer. */
static void test_altup(void)
{
    static const char text[] =
        "{\"model_type\":\"gemma3n_text\",\"hidden_size\":64,"
        "\"num_hidden_layers\":12,\"num_kv_shared_layers\":3,"
        "\"intermediate_size\":[96,96,96,96,96,96,96,96,96,96,96,64]}";
    struct linear l;

    model_config_release(&c);
    CHECK(!model_config_parse(&c, text, strlen(text), "'config.json'", &e));
    CHECK(c.attention_scale == 1 && c.logit_cap == 30 && c.n_kv_heads == 2);
    CHECK(fabs(c.altup.cutoff[9] - 1.6448536269514722) < 1e-12);
    CHECK(!isfinite(c.altup.cutoff[10]) && model_layer_width(&c, 11) == 64);
    /* 5 streams; keys and values of full and of sliding layers; inputs */
    CHECK(model_row(&c) == 5 * 64 + 4 * 512 + 12 * 256);
    CHECK(model_row_keys(&c, 4) == 5 * 64);
    CHECK(model_row_keys(&c, 9) == model_row_keys(&c, 4));
    CHECK(model_row_keys(&c, 8) == 5 * 64 + 2 * 512);
    CHECK(model_row_keys(&c, 11) == model_row_keys(&c, 8));
    CHECK(!model_row_keys(&c, 7) && model_layer_shares(&c, 9));
    CHECK(model_linear_count(&c, 8) == 7 && model_linear_count(&c, 9) == 5);
    model_linear(&c, 9, 1, &l);
    CHECK(l.part == PART_O);
    CHECK(parse("gemma3n_text", "\"num_kv_shared_layers\":1") == 0);
    refused(E_DATA, "gemma3n_text", "", "num_kv_shared_layers 15");
    refused(E_DATA, "gemma3n_text",
            "\"num_kv_shared_layers\":2,\"layer_types\":["
            "\"sliding_attention\",\"sliding_attention\","
            "\"full_attention\"]",
            "layer 2 has no layer of its type");
    refused(E_DATA, "gemma3n_text",
            "\"num_kv_shared_layers\":0,"
            "\"activation_sparsity_pattern\":[0,1,0]",
            "activation_sparsity_pattern[1]");
    refused(E_DATA, "gemma3n_text",
            "\"num_kv_shared_layers\":0,\"altup_active_idx\":4",
            "altup_active_idx");
}

/* A multimodal model: text_config describes its language model. */
static void test_wrappers(void)
{
    static const char gemma[] =
        "{\"model_type\":\"gemma3\",\"architectures\":"
        "[\"Gemma3ForConditionalGeneration\"],\"dtype\":\"float16\","
        "\"text_config\":{\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":2},\"vision_config\":{\"hidden_size\":8}}";
    static const char flat[] =
        "{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":64,"
        "\"intermediate_size\":96,\"num_hidden_layers\":2,\"vocab_size\":9,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"vision_config\":{},\"rope_scaling\":{\"type\":\"mrope\","
        "\"mrope_section\":[2,3,3]}}";
    static const char mistral[] =
        "{\"model_type\":\"mistral3\",\"text_config\":{\"hidden_size\":64,"
        "\"intermediate_size\":96,\"num_hidden_layers\":2,\"vocab_size\":9,"
        "\"num_attention_heads\":8}}";
    static const char other[] =
        "{\"model_type\":\"llava_next\",\"text_config\":{}}";

    model_config_release(&c);
    CHECK(!model_config_parse(&c, gemma, strlen(gemma), "'config.json'", &e));
    CHECK(!strcmp(c.family->model_type, "gemma3_text") && c.n_heads == 8);
    CHECK(c.vocab_size == 262208 && c.dtype == DT_F16 && c.wrapper);
    model_config_release(&c);
    CHECK(!model_config_parse(&c, flat, strlen(flat), "'config.json'", &e));
    CHECK(!strcmp(c.family->model_type, "qwen2_5_vl_text") && c.qkv_bias);
    CHECK(c.rope.kind == ROPE_DEFAULT && c.rope.theta == 1e6 && !c.tied);
    model_config_release(&c);
    CHECK(
        !model_config_parse(&c, mistral, strlen(mistral), "'config.json'", &e));
    CHECK(c.tied); /* as Mistral3Config */
    model_config_release(&c);
    CHECK(model_config_parse(&c, other, strlen(other), "'config.json'", &e) ==
          E_CONFIG);
    CHECK(strstr(e.msg, "llava_next") && strstr(e.msg, "mistral3"));
}

static void test_biases(void)
{
    CHECK(parse("llama", "\"attention_bias\":true,\"mlp_bias\":true") == 0);
    CHECK(c.qkv_bias && c.o_bias && c.mlp_bias);
    CHECK(parse("qwen3", "\"num_key_value_heads\":1,"
                         "\"attention_bias\":true,\"mlp_bias\":true") == 0);
    CHECK(c.qkv_bias && c.o_bias && !c.mlp_bias);
    CHECK(parse("mistral", "\"num_key_value_heads\":1,"
                           "\"attention_bias\":true") == 0);
    CHECK(!c.qkv_bias);
}

static void test_sliding(void)
{
#define Q "\"num_key_value_heads\":1,\"use_sliding_window\":true,"
    CHECK(parse("qwen2", Q "\"sliding_window\":8,\"max_window_layers\":1") ==
          0);
    CHECK(!model_layer_slides(&c, 0) && model_layer_slides(&c, 1));
    CHECK(parse("qwen2", Q "\"sliding_window\":8,\"layer_types\":"
                           "[\"sliding_attention\",\"full_attention\","
                           "\"full_attention\"]") == 0);
    CHECK(model_layer_slides(&c, 0) && !model_layer_slides(&c, 1));
    refused(E_CONFIG, "qwen3",
            "\"num_key_value_heads\":1,\"layer_types\":[\"sliding_attention\","
            "\"full_attention\",\"full_attention\"]",
            "layer 0 slides");
    refused(E_DATA, "qwen2", Q "\"layer_types\":[\"full_attention\"]",
            "layer_types");
    refused(E_CONFIG, "qwen2",
            Q "\"layer_types\":[\"chunked_attention\",\"a\",\"b\"]",
            "chunked_attention");
    refused(E_CONFIG, "mistral",
            "\"num_key_value_heads\":1,\"layer_types\":[\"full_attention\","
            "\"sliding_attention\",\"sliding_attention\"]",
            "layer 0 is full_attention");
#undef Q
}

static void test_rope_spellings(void)
{
    CHECK(parse("llama", "\"rope_theta\":5e5,\"rope_scaling\":null") == 0);
    CHECK(c.rope.kind == ROPE_DEFAULT && c.rope.theta == 5e5);
    CHECK(parse("llama", "\"rope_theta\":5e5,\"rope_scaling\":"
                         "{\"type\":\"linear\",\"factor\":2}") == 0);
    CHECK(c.rope.kind == ROPE_LINEAR && c.rope.factor == 2);
    CHECK(parse("llama", "\"rope_parameters\":{\"rope_type\":\"llama3\","
                         "\"rope_theta\":7e5,\"factor\":8,"
                         "\"low_freq_factor\":1,\"high_freq_factor\":4}") == 0);
    CHECK(c.rope.kind == ROPE_LLAMA3 && c.rope.theta == 7e5);
    CHECK(c.rope.original_max_position == 2048);
    CHECK(parse("llama", "\"rope_scaling\":{\"rope_type\":\"yarn\","
                         "\"factor\":4,\"beta_fast\":null,"
                         "\"original_max_position_embeddings\":512,"
                         "\"truncate\":false}") == 0);
    CHECK(c.rope.kind == ROPE_YARN && c.rope.beta_fast == 32);
    CHECK(c.rope.original_max_position == 512 && !c.rope.truncate);
    CHECK(c.rope.attention_factor > 1.138 && c.rope.attention_factor < 1.139);
    CHECK(parse("llama", "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,"
                         "\"original_max_position_embeddings\":512}") == 0);
    CHECK(c.rope.factor == 4);
    CHECK(parse("llama", "\"rope_scaling\":{\"type\":\"dynamic\","
                         "\"factor\":2}") == 0);
    CHECK(c.rope.kind == ROPE_DYNAMIC);
#define MINISTRAL(beta)                                                        \
    "\"num_key_value_heads\":2,\"rope_parameters\":{\"rope_type\":\"yarn\","   \
    "\"factor\":4,\"original_max_position_embeddings\":64,"                    \
    "\"llama_4_scaling_beta\":" beta "}"
    CHECK(parse("ministral3", MINISTRAL("0.1")) == 0 && c.longest == 64);
    CHECK(parse("ministral3", MINISTRAL("0.0")) == 0 && !c.longest);
    CHECK(parse("llama", "\"rope_scaling\":{}") == 0);
}

static void test_rope_refusals(void)
{
    refused(E_CONFIG, "llama", "\"rope_scaling\":{\"rope_type\":\"mrope\"}",
            "mrope");
    refused(E_DATA, "phi3", "\"rope_scaling\":{\"type\":\"su\"}",
            "short_factor is not an array of 8");
    refused(E_DATA, "phi3", "\"rope_scaling\":{\"type\":\"yarn\"}",
            "short_factor is not an array of 8");
    refused(E_CONFIG, "phi3",
            "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}",
            "'linear' is not supported (of phi3 models");
    refused(E_CONFIG, "gemma3_text",
            "\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":"
            "\"yarn\"}}",
            "'yarn' of sliding layers");
    refused(E_DATA, "ministral3", "\"num_key_value_heads\":2",
            "rope_parameters is missing");
    refused(E_DATA, "smollm3", "\"no_rope_layers\":[1,2,1]",
            "no_rope_layers[1]");
    refused(E_CONFIG, "llama", "\"partial_rotary_factor\":0.5",
            "partial_rotary_factor");
    refused(E_CONFIG, "llama",
            "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}",
            "full_attention");
    refused(E_DATA, "llama", "\"rope_scaling\":{\"type\":\"linear\"}",
            "factor");
    refused(E_DATA, "llama", "\"rope_scaling\":[]", "rope");
    refused(E_DATA, "llama", "\"rope_theta\":0", "rope_theta");
    refused(E_DATA, "llama",
            "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
            "\"low_freq_factor\":4,\"high_freq_factor\":3}",
            "high_freq_factor");
}

static void test_refusals(void)
{
    refused(E_CONFIG, "gpt2", "", "gpt2");
    refused(E_CONFIG, "phi", "", "nearest relative that is: phi3)");
    refused(E_CONFIG, "gemma4_text", "", "that is: gemma3_text)");
    refused(E_CONFIG, "exaone4", "", "that is: llama)");
    refused(E_CONFIG, "step3", "\"num_experts\":8", "that is: qwen3_moe)");
    refused(E_CONFIG, "qwen4_moe", "\"num_experts\":8", "that is: qwen2_moe)");
    refused(E_CONFIG, "deepseek_v4",
            "\"kv_lora_rank\":8,\"n_routed_experts\":8,\"index_topk\":8",
            "that is: deepseek_v32)");
    refused(E_CONFIG, "falcon_h1", "\"mamba_d_state\":8",
            "that is: granitemoehybrid)");
    refused(E_CONFIG, "gemma2", "\"hidden_activation\":\"gelu\"", "gelu");
    refused(E_CONFIG, "llama", "\"hidden_act\":\"gelu\"", "gelu");
    refused(E_CONFIG, "llama", "\"text_config\":{}", "text_config");
    refused(E_CONFIG, "gemma4", "\"text_config\":{}", "that is: gemma3)");
    refused(E_CONFIG, "bert", "\"layer_norm_eps\":1e-5",
            "no relative of it is");
    refused(E_CONFIG, "llama",
            "\"architectures\":[\"LlamaForSequenceClassification\"]",
            "LlamaForSequenceClassification");
    refused(E_CONFIG, "gemma3_text", "\"use_bidirectional_attention\":true",
            "use_bidirectional_attention is not supported");
    refused(E_CONFIG, "llama", "\"dtype\":\"float8_e4m3fn\"", "float8_e4m3fn");
    refused(E_CONFIG, "llama", "\"head_dim\":15", "head_dim 15");
    refused(E_DATA, "llama", "\"num_key_value_heads\":3", "multiple");
    refused(E_DATA, "llama", "\"rms_norm_eps\":-1", "rms_norm_eps");
    refused(E_DATA, "llama", "\"tie_word_embeddings\":1",
            "tie_word_embeddings");
    refused(E_DATA, "llama", "\"max_position_embeddings\":1e300",
            "max_position_embeddings");
    CHECK(model_config_parse(&c, "[]", 2, "'config.json'", &e) == E_DATA);
    CHECK(model_config_parse(&c, "{}", 2, "'config.json'", &e) == E_DATA);
    CHECK(strstr(e.msg, "model_type is missing"));
}

static void test_storage(void)
{
    CHECK(parse("llama", "\"torch_dtype\":\"float16\"") == 0);
    CHECK(c.dtype == DT_F16);
    CHECK(parse("llama", "\"dtype\":\"float32\",\"torch_dtype\":\"float16\"") ==
          0);
    CHECK(c.dtype == DT_F32);
    CHECK(parse("llama", "\"quantization_config\":{\"quant_method\":"
                         "\"awq\"}") == 0);
    CHECK(!strcmp(c.quant_method, "awq"));
}

static void test_linears(void)
{
    struct linear l[7], one;

    CHECK(parse("qwen2", "\"num_key_value_heads\":2") == 0);
    CHECK(model_linear_count(&c, 1) == 7 && model_linear_common(&c, 1) == 7);
    for (int i = 0; i < 7; i++)
        model_linear(&c, 1, i, &l[i]);
    CHECK(!strcmp(l[1].module, "model.layers.1.self_attn.k_proj"));
    CHECK(l[1].rows == 32 && l[1].cols == 64 && l[1].bias);
    CHECK(l[1].input == IN_ATTN && l[3].input == IN_ATTN_OUT);
    CHECK(!l[3].bias && l[6].input == IN_MLP_MID && l[6].cols == 96);
    for (int i = 0; i < 7; i++)
        CHECK(model_find_linear(&c, l[i].module, &one) &&
              one.rows == l[i].rows && one.layer == 1);
    CHECK(!model_find_linear(&c, "model.layers.3.mlp.up_proj", &one));
    CHECK(!model_find_linear(&c, "model.layers.01.mlp.up_proj", &one));
    CHECK(!model_find_linear(&c, "model.layers.1.mlp.up_proj.weight", &one));
    CHECK(!model_find_linear(&c, "model.layers.", &one));
    CHECK(!model_find_linear(&c, "lm_head", &one));
    CHECK(!model_find_linear(
        &c, "model.layers.99999999999999999999.mlp.up_proj", &one));
}

int main(void)
{
    test_defaults();
    test_variants();
    test_altup();
    test_wrappers();
    test_biases();
    test_sliding();
    test_rope_spellings();
    test_rope_refusals();
    test_refusals();
    test_storage();
    test_linears();
    model_config_release(&c);
    return 0;
}
