/* config.h - what config.json says about a model, in one struct.
 *
 * Families are rows of a table (families.c); adding one is a row plus whatever
 * is really new in layer.c, attention.c or router.c.  Sources of names and defaults: the model's own
 * configuration classes in transformers. */
#ifndef FORGE_CONFIG_H
#define FORGE_CONFIG_H

#include "arch/tensor_name.h"
#include "common/base.h"
#include "common/math/dtype.h"

enum { MODULE_PATH_MAX = TENSOR_NAME_MAX, HEAD_DIM_MAX = 512 };

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
    double mscale_all_dim; /* 0: not given */
    bool truncate;         /* yarn: whole-numbered correction range */
};

enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD, /* RMS norm of each head of q and k, before rope */
    QK_NORM_FLAT  /* RMS norm over all heads together */
};

/* Which layers see only sliding_window keys. */
enum sliding {
    SLIDING_NONE,
    SLIDING_ALL,     /* all, where sliding_window is given */
    SLIDING_IF_USED, /* all, if use_sliding_window */
    SLIDING_FROM,    /* if use_sliding_window, from max_window_layers on, or
                        those of layer_types */
    SLIDING_EVEN     /* if use_sliding_window, the even ones below
                        max_window_layers, or those of layer_types */
};

/* How a token's experts are chosen. */
enum router_kind {
    ROUTER_NONE,
    ROUTER_SOFTMAX, /* the largest probabilities */
    ROUTER_SIGMOID  /* the largest sigmoid + correction bias */
};

/* A row of the table (families.c): what distinguishes one family from
 * another.  A default of 0 stands for what the comment says. */
struct family {
    const char *model_type;   /* "qwen3" */
    const char *architecture; /* "Qwen3ForCausalLM" */
    bool mla;                 /* latent attention */
    bool indexer;             /* that sees index_topk keys of longer texts */
    bool qkv_bias;            /* q, k, v carry a bias (qwen2) ... */
    bool qkv_bias_key;        /* ... unless the config's qkv_bias says no */
    bool attention_bias;      /* honours attention_bias: q, k, v, and ... */
    bool o_bias;              /* ... o */
    bool mlp_bias;            /* honours mlp_bias */
    enum qk_norm qk_norm;
    bool qk_norm_key; /* only if use_qk_norm */
    enum sliding sliding;
    bool rope_pairs;       /* neighbours turn together, not halves */
    double partial_rotary; /* default part of a head that turns; 0: all, and
                              the config cannot say otherwise */
    enum router_kind router;
    const char *router_name; /* "mlp.gate" */
    const char *correction;  /* of sigmoid: the bias's tensor */
    const char *experts;     /* "mlp.experts", "block_sparse_moe.experts" */
    const char *shared;      /* "mlp.shared_experts"; NULL: has none */
    const char *shared_gate; /* its output is times sigmoid(x g); or NULL */
    bool mixtral;            /* an expert's linears are w1, w3 and w2, and
                                intermediate_size is their width */
    bool sparse_step;        /* decoder_sparse_step and mlp_only_layers say
                                which layers have experts; else
                                first_k_dense_replace and moe_layer_freq */
    bool renormalize_always, renormalize_never; /* whatever norm_topk_prob */
    /* defaults */
    bool renormalize;            /* norm_topk_prob */
    double scale;                /* routed_scaling_factor; 1 */
    int64_t n_group, topk_group; /* 1 */
    int64_t first_dense;         /* first_k_dense_replace */
    int64_t head_dim;            /* hidden_size / num_attention_heads */
    int64_t n_kv_heads;          /* num_attention_heads */
    int64_t max_position;
    double rms_eps; /* 1e-6 */
    double theta;   /* 1e4 */
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
    int64_t n_experts;    /* 0: none in any layer */
    int64_t n_router;     /* rows of the router; more than n_experts where some
                         are pruned (checkpoint/expertmap.h) */
    int64_t top_k;        /* experts of a token */
    int64_t width;        /* outputs of an expert's gate and up */
    int64_t shared_width; /* the same of the shared expert; 0: none */
    int64_t n_group, topk_group; /* groups of experts, and those kept */
    bool grouped;     /* experts come from topk_group groups of n_group */
    bool renormalize; /* weights of a token are divided by their sum */
    double scale;     /* ... and multiplied by this */
    bool *sparse;     /* [n_layers] which layers have experts */
};

struct model_config {
    const struct family *family;
    int64_t hidden_size, intermediate_size, n_layers, vocab_size;
    int64_t n_heads, n_kv_heads, max_position;
    int64_t head_dim;       /* of q and k */
    int64_t v_dim;          /* of v; = head_dim but for MLA */
    double attention_scale; /* of scores; head_dim^-1/2, but for yarn MLA */
    enum qk_norm qk_norm;
    int64_t rotary, rotary_at; /* dims of a head that turn, and the first */
    bool rope_pairs;           /* neighbours turn together, not halves */
    int64_t longest; /* tokens of a sequence that an indexer leaves alone; 0:
                        any */
    struct mla mla;
    struct moe moe;
    double rms_eps;
    bool tied;              /* tie_word_embeddings */
    bool qkv_bias, o_bias;  /* these linears carry a bias */
    bool mlp_bias;          /* gate, up and down do */
    int64_t sliding_window; /* 0: none */
    bool *layer_slides;     /* [n_layers]; NULL: all or none do */
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

/* What yarn multiplies cos and sin by when the config does not say:
 * m(mscale)/m(mscale_all_dim) where both are given, else m(1),
 * m(x) = 0.1 x ln(factor) + 1. */
double rope_yarn_attention(double factor, double mscale, double all_dim);

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
/* kv_b_proj of a layer with latent attention, which is not quantized. */
void model_kv_b(const struct model_config *c, int64_t layer, struct linear *l);
/* Find the linear whose module path this is; false: not a quantized linear. */
bool model_find_linear(const struct model_config *c, const char *module,
                       struct linear *l);

#endif
