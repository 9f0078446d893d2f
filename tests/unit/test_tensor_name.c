/* Names as the published checkpoints of every family in the table have them
 * (model.safetensors.index.json of each), and those of frames: what is in them,
 * and that each comes back as it was. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "arch/config.h"
#include "arch/tensor_name.h"

static const struct known {
    const char *name;
    int64_t layer, expert;
    const char *experts, *part;
    enum companion companion;
} known[] = {
    /* llama, mistral */
    { "model.layers.0.self_attn.q_proj.weight", 0, -1, "",
      "self_attn.q_proj.weight", 0 },
    { "model.layers.79.input_layernorm.weight", 79, -1, "",
      "input_layernorm.weight", 0 },
    { "model.layers.31.self_attn.rotary_emb.inv_freq", 31, -1, "",
      "self_attn.rotary_emb.inv_freq", 0 },
    { "model.embed_tokens.weight", -1, -1, "", "model.embed_tokens.weight", 0 },
    { "model.norm.weight", -1, -1, "", "model.norm.weight", 0 },
    { "lm_head.weight", -1, -1, "", "lm_head.weight", 0 },
    /* qwen2, qwen3 */
    { "model.layers.27.self_attn.k_proj.bias", 27, -1, "",
      "self_attn.k_proj.bias", 0 },
    { "model.layers.35.self_attn.q_norm.weight", 35, -1, "",
      "self_attn.q_norm.weight", 0 },
    /* mixtral */
    { "model.layers.31.block_sparse_moe.experts.7.w2.weight", 31, 7,
      "block_sparse_moe.experts", "w2.weight", 0 },
    { "model.layers.31.block_sparse_moe.gate.weight", 31, -1, "",
      "block_sparse_moe.gate.weight", 0 },
    /* qwen2_moe, qwen3_moe */
    { "model.layers.23.mlp.experts.59.down_proj.weight", 23, 59, "mlp.experts",
      "down_proj.weight", 0 },
    { "model.layers.23.mlp.shared_expert.gate_proj.weight", 23, -1, "",
      "mlp.shared_expert.gate_proj.weight", 0 },
    { "model.layers.23.mlp.shared_expert_gate.weight", 23, -1, "",
      "mlp.shared_expert_gate.weight", 0 },
    { "model.layers.93.mlp.experts.127.up_proj.weight", 93, 127, "mlp.experts",
      "up_proj.weight", 0 },
    /* deepseek_v2, deepseek_v3, kimi_k2, deepseek_v32 */
    { "model.layers.3.self_attn.kv_a_proj_with_mqa.weight", 3, -1, "",
      "self_attn.kv_a_proj_with_mqa.weight", 0 },
    { "model.layers.60.mlp.experts.255.up_proj.weight_scale_inv", 60, 255,
      "mlp.experts", "up_proj.weight_scale_inv", 0 },
    { "model.layers.60.mlp.shared_experts.down_proj.weight", 60, -1, "",
      "mlp.shared_experts.down_proj.weight", 0 },
    { "model.layers.3.mlp.gate.e_score_correction_bias", 3, -1, "",
      "mlp.gate.e_score_correction_bias", 0 },
    { "model.layers.61.shared_head.head.weight", 61, -1, "",
      "shared_head.head.weight", 0 },
    { "model.layers.60.mlp.experts.383.gate_proj.weight", 60, 383,
      "mlp.experts", "gate_proj.weight", 0 },
    { "model.layers.0.self_attn.indexer.k_norm.bias", 0, -1, "",
      "self_attn.indexer.k_norm.bias", 0 },
    /* glm4_moe, minimax_m2 */
    { "model.layers.46.mlp.experts.0.gate_proj.weight", 46, 0, "mlp.experts",
      "gate_proj.weight", 0 },
    { "model.layers.61.block_sparse_moe.experts.255.w1.weight_scale_inv", 61,
      255, "block_sparse_moe.experts", "w1.weight_scale_inv", 0 },
    { "model.layers.0.block_sparse_moe.e_score_correction_bias", 0, -1, "",
      "block_sparse_moe.e_score_correction_bias", 0 },
    /* 4-bit ones, and experts in one tensor */
    { "model.layers.1.mlp.experts.12.up_proj.qweight", 1, 12, "mlp.experts",
      "up_proj.qweight", 0 },
    { "model.layers.1.mlp.experts.gate_up_proj", 1, -1, "",
      "mlp.experts.gate_up_proj", 0 },
    /* frames */
    { "model.layers.12", 12, -1, "", "", 0 },
    { "model.layers.12.original", 12, -1, "", "", COMPANION_ORIGINAL },
    { "model.layers.12.mlp", 12, -1, "", "mlp", 0 },
    { "model.layers.12.attn_in.drift", 12, -1, "", "attn_in", COMPANION_DRIFT },
    { "model.layers.12.attn_out.output", 12, -1, "", "attn_out",
      COMPANION_OUTPUT },
    { "model.layers.12.mlp.experts.3.in", 12, 3, "mlp.experts", "in", 0 },
    { "model.layers.12.mlp.experts.3.mid.gap", 12, 3, "mlp.experts", "mid",
      COMPANION_GAP },
    { "model.layers.12.self_attn.q_proj.gradient", 12, -1, "",
      "self_attn.q_proj", COMPANION_GRADIENT },
    { "mlp.experts.3.up_proj", -1, 3, "mlp.experts", "up_proj", 0 },
    /* none of ours */
    { "", -1, -1, "", "", 0 },
    { ".drift", -1, -1, "", ".drift", 0 },
    { "model.layers.", -1, -1, "", "model.layers.", 0 },
    { "model.layers.3.", -1, -1, "", "model.layers.3.", 0 },
    { "model.layers.3x.mlp", -1, -1, "", "model.layers.3x.mlp", 0 },
    { "model.layers.03.mlp", -1, -1, "", "model.layers.03.mlp", 0 },
    { "model.layers.-1.mlp", -1, -1, "", "model.layers.-1.mlp", 0 },
    { "model.layers.99999999999999999999.mlp", -1, -1, "",
      "model.layers.99999999999999999999.mlp", 0 },
    { "model.layers.1048576.mlp", -1, -1, "", "model.layers.1048576.mlp", 0 },
    { "model.layers.1048575.mlp", 1048575, -1, "", "mlp", 0 },
    { "transformer.h.3.mlp.experts.1.w1", -1, 1, "transformer.h.3.mlp.experts",
      "w1", 0 },
    { "model.layers.3.mlp.experts.07.w1", 3, -1, "", "mlp.experts.07.w1", 0 },
    { "model.layers.3.myexperts.7.w1", 3, -1, "", "myexperts.7.w1", 0 },
    { "model.layers.3.experts.x.experts.4.w1", 3, 4, "experts.x.experts", "w1",
      0 },
};

static bool equal(struct name_text t, const char *s)
{
    return t.len == strlen(s) && !strncmp(t.at, s, t.len);
}

static void check_known(void)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        const struct known *k = &known[i];
        struct tensor_name n;
        char back[TENSOR_NAME_MAX];
        bool same;

        tensor_name_parse(&n, k->name);
        same = n.layer == k->layer && n.expert == k->expert &&
               n.companion == k->companion &&
               n.experts.len == strlen(k->experts) && equal(n.part, k->part) &&
               (!n.experts.len || equal(n.experts, k->experts));
        if (!same)
            printf("%s: layer %lld, expert %lld, part %.*s\n", k->name,
                   (long long)n.layer, (long long)n.expert, (int)n.part.len,
                   n.part.at);
        CHECK(same);
        CHECK(tensor_name_format(&n, back, sizeof(back)) == strlen(k->name));
        CHECK(!strcmp(back, k->name));
    }
}

/* Any text comes back. */
static void check_random(void)
{
    static const char *const piece[] = {
        "model.layers.", "experts.", "mlp.", "7", "0",     ".",
        "12.",           "drift",    ".gap", "x", "model", ".experts.3"
    };
    char name[128], back[128];
    struct tensor_name n;

    srand(7);
    for (int i = 0; i < 200000; i++) {
        *name = 0;
        for (int k = rand() % 8; k > 0; k--)
            strcat(name, piece[(size_t)rand() % ARRAY_LEN(piece)]);
        tensor_name_parse(&n, name);
        if (tensor_name_format(&n, back, sizeof(back)) != strlen(name) ||
            strcmp(back, name) != 0) {
            printf("'%s' became '%s'\n", name, back);
            CHECK(false);
            return;
        }
    }
}

static void check_format(void)
{
    struct tensor_name n;
    char to[TENSOR_NAME_MAX], small[12];
    size_t len;

    tensor_name_parse(&n, "model.layers.3.mlp.experts.7.up_proj");
    n.layer = -1;
    n.expert = EXPERT_ANY;
    tensor_name_format(&n, to, sizeof(to));
    CHECK(!strcmp(to, "mlp.experts.*.up_proj"));
    n.layer = 4;
    n.expert = 0;
    n.companion = COMPANION_DRIFT;
    tensor_name_format(&n, to, sizeof(to));
    CHECK(!strcmp(to, "model.layers.4.mlp.experts.0.up_proj.drift"));
    CHECK(tensor_name_format(&n, small, sizeof(small)) == strlen(to));
    CHECK(!strcmp(small, "model.layer"));
    layer_tensor_name(9, "mlp.gate", to);
    CHECK(!strcmp(to, "model.layers.9.mlp.gate"));
    layer_tensor_name(9, "", to);
    CHECK(!strcmp(to, "model.layers.9"));
    CHECK(companion_of("model.layers.4.in.gap", &len) == COMPANION_GAP &&
          len == strlen("model.layers.4.in"));
    CHECK(companion_of("model.layers.4.in", &len) == COMPANION_NONE &&
          len == strlen("model.layers.4.in"));
}

static void check_rows(void)
{
    static const char *const none[] = { "model.layers.3.self_attn.o_proj",
                                        "x.rows-0-4",
                                        "x.rows-0-4-of-3",
                                        "x.rows-4-4-of-8",
                                        "x.rows-00-4-of-8",
                                        "x.rows-0-4-of-8.y",
                                        "x.rows--4-of-8",
                                        "rows-0-4-of-8",
                                        "x.rows-0-4-of-" };
    struct name_rows r;
    char to[TENSOR_NAME_MAX];
    size_t len;

    name_rows_format("a.b", &(struct name_rows){ 48, 96, 100 }, to);
    CHECK(!strcmp(to, "a.b.rows-48-96-of-100"));
    CHECK(name_rows_of(to, &len, &r) && len == 3 && r.first == 48 &&
          r.end == 96 && r.of == 100);
    CHECK(name_rows_of("x.rows-0-1-of-1.rows-0-4-of-8", &len, &r) &&
          len == 15 && r.end == 4);
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        CHECK(!name_rows_of(none[i], &len, &r) && len == strlen(none[i]));
}

/* The linears of every family are found by the names that they are given. */
static void check_linears(void)
{
    static const char *const config[] = {
        "llama",        "mistral",   "qwen2",      "qwen3",
        "mixtral",      "qwen2_moe", "qwen3_moe",  "deepseek_v2",
        "deepseek_v32", "glm4_moe",  "minimax_m2", "deepseek-v3-22m"
    };

    for (size_t f = 0; f < ARRAY_LEN(config); f++) {
        char path[128], text[16384], back[TENSOR_NAME_MAX];
        struct model_config c;
        struct err e;
        FILE *in;
        size_t len;

        snprintf(path, sizeof(path), "tests/fuzz/corpus/config/%s", config[f]);
        CHECK((in = fopen(path, "r")));
        len = fread(text, 1, sizeof(text), in);
        fclose(in);
        CHECK(model_config_parse(&c, text, len, path, &e) == 0);
        for (int64_t layer = 0; layer < c.n_layers; layer++)
            for (int64_t i = 0; i < model_linear_count(&c, layer); i++) {
                struct linear l, found;
                struct tensor_name n;

                model_linear(&c, layer, i, &l);
                tensor_name_parse(&n, l.module);
                CHECK(n.layer == layer && n.expert == l.expert);
                tensor_name_format(&n, back, sizeof(back));
                CHECK(!strcmp(back, l.module));
                CHECK(model_find_linear(&c, l.module, &found));
                CHECK(found.part == l.part && found.expert == l.expert);
            }
        model_config_release(&c);
    }
}

int main(void)
{
    check_known();
    check_random();
    check_format();
    check_rows();
    check_linears();
    return 0;
}
