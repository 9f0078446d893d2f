/* config.h - what config.json says about a model, in one struct.
 *
 * Families are rows of a table (config.c); adding one is a row plus whatever
 * is really new in forward.c.  Sources of names and defaults: the model's own
 * configuration classes in transformers. */
#ifndef FORGE_CONFIG_H
#define FORGE_CONFIG_H

#include "common/base.h"
#include "common/dtype.h"

enum { MODULE_PATH_MAX = 256, HEAD_DIM_MAX = 512 };

enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_DYNAMIC /* default up to max_position tokens; longer is refused */
};

struct rope {
    enum rope_kind kind;
    double theta, factor; /* factor 1 where the kind has none */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_position;
    /* yarn; attention_factor is what multiplies cos and sin, 1 for others */
    double beta_fast, beta_slow, attention_factor;
    bool truncate; /* yarn: whole-numbered correction range */
};

/* A row of the table: what distinguishes one family from another. */
struct family {
    const char *model_type;   /* "qwen3" */
    const char *architecture; /* "Qwen3ForCausalLM" */
    bool qkv_bias;            /* q, k, v always carry a bias (qwen2) */
    bool qk_norm;             /* RMS norm per head on q and k before rope */
    const char *experts;      /* "mlp.experts", "block_sparse_moe.experts" */
    const char *shared;       /* "mlp.shared_experts"; NULL: has none */
    bool mixtral;             /* an expert's linears are w1, w3 and w2 */
    bool sliding;             /* honours sliding_window */
    bool sliding_by_layer;    /* ... only if use_sliding_window, from layer
                               max_window_layers on, or by layer_types */
    bool attention_bias;      /* honours attention_bias (q, k, v and o) */
    bool mlp_bias;            /* honours mlp_bias */
    int64_t head_dim;     /* default; 0: hidden_size / num_attention_heads */
    int64_t n_kv_heads;   /* default; 0: num_attention_heads */
    int64_t max_position; /* default */
};

/* Multi-head latent attention: q = q_b(rms(q_a(x))) or q_proj(x), keys and
 * values = kv_b(rms(first kv_lora of kv_a(x))), and one rotary key for all
 * heads = the last `rope` of kv_a(x).  A head of q and k is `nope` dims and
 * then `rope` rotary ones. */
struct mla {
    int64_t q_lora;  /* 0: q_proj, no latent */
    int64_t kv_lora; /* 0: not such a model */
    int64_t nope, rope;
};

/* A mixture of experts. */
struct moe {
    int64_t n_experts;           /* 0: none in any layer */
    int64_t top_k;               /* experts of a token */
    int64_t width;               /* outputs of an expert's gate and up */
    int64_t shared_width;        /* the same of the shared expert; 0: none */
    int64_t n_group, topk_group; /* groups of experts, and those kept; 1, 1 */
    bool group_max;   /* a group is worth its best score, not its best two */
    bool renormalize; /* weights of a token are divided by their sum */
    double scale;     /* ... and multiplied by this */
    bool *sparse;     /* [n_layers] which layers have experts */
};

struct model_config {
    const struct family *family;
    int64_t hidden_size, intermediate_size, n_layers, vocab_size;
    int64_t n_heads, n_kv_heads, max_position;
    int64_t head_dim; /* of q and k */
    int64_t v_dim;    /* of v; = head_dim but for MLA */
    struct mla mla;
    struct moe moe;
    double rms_eps;
    bool tied;                   /* tie_word_embeddings */
    bool qkv_bias, o_bias;       /* these linears carry a bias */
    bool mlp_bias;               /* gate, up and down do */
    int64_t sliding_window;      /* 0: none */
    int64_t first_sliding_layer; /* layers from here on slide */
    bool *layer_slides;          /* by layer_types; NULL: the rule above */
    struct rope rope;
    enum dtype dtype;      /* torch_dtype / dtype; DT_BF16 if absent */
    char quant_method[32]; /* of quantization_config; "" when none */
    char architecture[64]; /* architectures[0] */
};

/* Read DIR/config.json.  Accepts both spellings of transformers 4 and 5
 * (rope_theta + rope_scaling, rope_parameters; torch_dtype, dtype; text_config
 * is refused).  E_NOINPUT: no such file; E_DATA: not strict JSON, a field
 * missing or out of range; E_CONFIG: a family, rope type, activation or
 * setting that is not supported, by name. */
MUST_CHECK int model_config_read(struct model_config *c, const char *dir,
                                 struct err *e);
/* The same from text; what: for messages, e.g. "'config.json'". */
MUST_CHECK int model_config_parse(struct model_config *c, const char *text,
                                  size_t len, const char *what, struct err *e);
void model_config_release(struct model_config *c);
bool model_layer_slides(const struct model_config *c, int64_t layer);

/* Experts of a layer; 0: it is dense. */
int64_t model_layer_experts(const struct model_config *c, int64_t layer);
/* Outputs of a layer's dense or shared gate and up; 0: no shared expert. */
int64_t model_layer_width(const struct model_config *c, int64_t layer);

/* The inputs that linears of a decoder layer share: one Hessian each. */
enum input_class {
    IN_ATTN,
    IN_Q_LAT, /* rms(q_a(x)) of latent attention */
    IN_ATTN_OUT,
    IN_MLP, /* of a dense MLP, or of the shared expert: all tokens */
    IN_MLP_MID,
    IN_EXPERT,     /* one expert's tokens */
    IN_EXPERT_MID, /* what its down reads */
    IN_COUNT
};
/* "attn_in", "q_lat", "attn_out", "mlp_in", "mlp_mid", "in", "mid" */
const char *input_class_name(enum input_class c);
/* The name of an activation: "model.layers.3.attn_in", or with expert >= 0
 * "model.layers.3.mlp.experts.17.in" (as the family spells its experts). */
void model_activation_name(const struct model_config *c, int64_t layer,
                           enum input_class in, int64_t expert,
                           char name[MODULE_PATH_MAX]);

/* Which of a layer's matrices a linear is; src/model's own. */
enum linear_part {
    PART_Q, /* q_proj, with or without latent attention */
    PART_K,
    PART_V,
    PART_Q_A,
    PART_KV_A,
    PART_Q_B,
    PART_KV_B, /* never quantized: no linear of model_linear() */
    PART_O,
    PART_GATE, /* of the dense MLP, the shared expert, or one expert */
    PART_UP,
    PART_DOWN,
    PARTS
};

struct linear {
    char module[MODULE_PATH_MAX]; /* "model.layers.3.self_attn.q_proj" */
    int64_t layer;
    int64_t expert; /* -1: not an expert's */
    enum input_class input;
    enum linear_part part;
    int64_t rows, cols; /* outputs O, inputs C */
    bool bias;          /* config says that MODULE.bias exists */
};

/* The linears of a layer that are quantized, in the order of the forward
 * pass: those of attention, of the dense MLP or the shared expert, and then
 * gate, up and down of expert 0, of expert 1, ... */
int64_t model_linear_count(const struct model_config *c, int64_t layer);
/* How many of them come before the first expert's. */
int64_t model_linear_common(const struct model_config *c, int64_t layer);
/* The i-th, 0 <= i < model_linear_count(). */
void model_linear(const struct model_config *c, int64_t layer, int64_t i,
                  struct linear *l);
/* Find the linear whose module path this is; false: not a quantized linear. */
bool model_find_linear(const struct model_config *c, const char *module,
                       struct linear *l);

#endif
