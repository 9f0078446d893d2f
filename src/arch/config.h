/* config.h - a model's configuration (config.json), and the list of its
 * linears.
 *
 * Families are rows of a table (families.c): a new one is a row, and code in
 * src/model for what no row can say.  Names and defaults are those of the
 * families' configuration classes in transformers.
 *
 * config.c, config_layers.c, config_altup.c, config_rope.c and config_moe.c read config.json;
 * linears.c lists linears. */
#ifndef FORGE_CONFIG_H
#define FORGE_CONFIG_H

#include "arch/activation.h"
#include "arch/tensor_name.h"
#include "common/base.h"
#include "common/math/dtype.h"

/* HEAD_DIM_MAX: largest supported head_dim. */
enum { MODULE_PATH_MAX = TENSOR_NAME_MAX, HEAD_DIM_MAX = 512 };

/* rope_type of transformers (modeling_rope_utils). */
enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_DYNAMIC, /* as default up to max_position tokens; longer inputs are
                   * refused */
    ROPE_LONGROPE /* frequencies divided by short_factor, up to
                   * original_max_position tokens; longer inputs are refused */
};

/* Rotary position embedding. */
struct rope {
    enum rope_kind kind;
    double theta, factor; /* base; scaling factor, 1 where the kind has none */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_position;
    /* yarn only, but attention_factor, by which cos and sin are multiplied: 1
     * for other kinds */
    double beta_fast, beta_slow, attention_factor;
    double mscale_all_dim; /* 0: absent */
    bool truncate;   /* yarn: the correction range is rounded to whole dims */
    float *divisors; /* longrope: [rotary / 2] short_factor; else NULL */
};

/* RMS norm of q and k before RoPE. */
enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD, /* of each head */
    QK_NORM_FLAT, /* over all heads together */
    QK_NORM_UNIT  /* of each head, without weights, in layers with RoPE */
};

/* Which layers attend only to the last sliding_window keys (layer_types of
 * transformers; below: when it is absent). */
enum sliding {
    SLIDING_NONE,
    SLIDING_ALL,     /* all layers, if sliding_window is given */
    SLIDING_IF_USED, /* all layers, if use_sliding_window */
    SLIDING_FROM, /* if use_sliding_window: layers from max_window_layers on */
    SLIDING_EVEN, /* if use_sliding_window: even layers below
                      * max_window_layers */
    SLIDING_PATTERN, /* if sliding_window is given: all layers but every n-th, n
                      * = sliding_window_pattern */
    SLIDING_CHUNKS   /* if attention_chunk_size is given: layers with RoPE see
                      * keys from its last multiple on */
};

/* How the router scores a token's experts; the top-k are chosen. */
enum router_kind {
    ROUTER_NONE,
    ROUTER_SOFTMAX, /* softmax of the logits; chosen by it + correction bias,
                     * if there is one */
    ROUTER_SIGMOID  /* sigmoid of the logits; chosen by sigmoid + correction
                     * bias */
};

/* The norms of a layer by module; NULL: there is none.  x += attn_out(
 * attention(attn_in(x))); x += mlp_out(mlp(mlp_in(x))). */
struct layer_norms {
    const char *attn_in, *attn_out, *mlp_in, *mlp_out;
};

/* How a family stores the linears of linear attention. */
enum delta_form {
    DELTA_NONE,
    DELTA_FUSED,    /* in_proj_qkvz, in_proj_ba: by key heads */
    DELTA_SPLIT,    /* in_proj_qkv, in_proj_z, in_proj_b, in_proj_a */
    DELTA_CHANNELS, /* Kimi Delta Attention: q_proj, k_proj, v_proj; the decay
                     * is one of each dim of a key */
    DELTA_MAMBA /* no gated delta rule, but Mamba 2 (model/mamba.h): in_proj */
};

/* What distinguishes one family from another.  Defaults, below, apply where
 * config.json has no such member; 0 stands for the value in the comment. */
struct family {
    const char *model_type;   /* "qwen3" */
    const char *architecture; /* "Qwen3ForCausalLM" */
    bool mla;                 /* multi-head latent attention, struct mla */
    bool indexer;             /* sparse attention, struct indexer */
    bool indexer_pairs;       /* its RoPE rotates dims (2i, 2i+1) */
    int64_t index_heads;      /* default of index_n_heads; 64 */
    bool qkv_bias;            /* q, k and v have a bias ... */
    bool qkv_bias_key;        /* ... unless config.json's qkv_bias is false */
    bool attention_bias;      /* config.json's attention_bias gives q, k, v a
                               * bias, and ... */
    bool o_bias;              /* ... o too */
    bool mlp_bias;    /* config.json's mlp_bias gives gate, up, down a bias, but
                       * not those of experts */
    bool mlp_biased;  /* gate, up and down have one, those of experts, too */
    bool o_bias_key;  /* config.json's attention_out_bias gives o one */
    bool use_bias;    /* config.json's use_bias gives all of them one */
    bool fused_qkv;   /* q, k and v are one linear, qkv_proj */
    bool fused_mlp;   /* gate and up are one, gate_up_proj */
    bool granite_mlp; /* that is input_linear, and down is output_linear */
    const char *mlp;  /* module of the dense MLP; "mlp" */
    const char *mlp_width; /* member that says its width; intermediate_size */
    const struct layer_norms *norms; /* NULL: input_layernorm in front of
                                      * attention, post_attention_layernorm in
                                      * front of the MLP */
    bool norm_plus_one;              /* norms multiply by 1 + weight */
    enum activation act;
    bool embed_sqrt;     /* embeddings are multiplied by sqrt(hidden_size) */
    bool multipliers;    /* config.json's embedding_multiplier,
                       * attention_multiplier, residual_multiplier and
                       * logits_scaling */
    bool query_scalar;   /* query_pre_attn_scalar takes the place of head_dim in
                        * the scale of scores */
    bool softcaps;       /* config.json's final_logit_softcapping, and where it
                        * has a default attn_logit_softcapping; see below */
    bool rope_by_type;   /* sliding layers have a RoPE of their own: rope_theta
                        * local_theta, without scaling */
    bool mrope;          /* rope type mrope is default: for text its three
                        * positions are equal */
    bool nope_layers;    /* config.json's no_rope_layers names layers without
                        * RoPE, by default every no_rope_layer_interval-th */
    bool unit_scale;     /* scores are not scaled */
    bool altup;          /* several residual streams, struct altup */
    bool position_scale; /* queries grow with their position from
                          * original_max_position_embeddings on; up to there
                          * sequences are supported */
    bool longrope_only;  /* rope types are default and longrope, which is also
                          * called su or yarn */
    bool rope_by_key;    /* RoPE only if position_embedding_type is rope */
    bool query_growth;   /* in layers without RoPE queries grow with their
                          * position (struct query_growth) */
    bool rope_given;     /* config.json must say its RoPE parameters */
    enum delta_form delta; /* some layers have linear attention */
    bool attention_gate;   /* q_proj puts out a head's query, then its gate g,
                            * and attention's output is multiplied by
                            * sigmoid(g) */
    bool sinks;            /* each head's softmax has a further score, its sink,
                          * whose weight is dropped */
    enum qk_norm qk_norm;
    bool qk_norm_key; /* only if config.json's use_qk_norm; absent: false, true
                       * for QK_NORM_UNIT */
    enum sliding sliding;
    bool by_type;          /* layer_types may mix both kinds of layers */
    bool rope_pairs;       /* RoPE rotates dims (2i, 2i+1), not (i, i + d/2) */
    double partial_rotary; /* default part of a head that RoPE rotates; 0:
                            * all, and config.json cannot change it */
    enum router_kind router;
    const char *router_name; /* router's module, "mlp.gate" */
    bool router_bias;        /* it has a bias */
    const char *correction;  /* tensor of the correction bias; NULL: none */
    const char *experts;     /* prefix of experts: "mlp.experts",
                              * "block_sparse_moe.experts" */
    const char *shared;      /* shared expert's module, "mlp.shared_experts";
                              * NULL: none */
    const char *shared_gate; /* module g: the shared expert's output is
                              * multiplied by sigmoid(g x); NULL: none */
    bool mixtral;            /* an expert's gate, up, down are named w1, w3,
                              * w2 */
    bool plain_width;        /* an expert's width is intermediate_size */
    bool kimi_keys;  /* config.json says num_experts_per_token, moe_renormalize,
                     * num_expert_group, num_shared_experts, model_max_length
                     */
    bool shared_key; /* shared_intermediate_size is the shared expert's
                              * width; 0: none */
    bool weigh_inputs;     /* an expert's input, not its output, is multiplied
                              * by its weight */
    bool interleaved_keys; /* config.json says which layers have experts by
                              * moe_layers, or interleave_moe_layer_step */
    bool sparse_step;      /* decoder_sparse_step and mlp_only_layers say
                              * which layers have experts, else
                              * first_k_dense_replace and moe_layer_freq */
    bool ernie_keys;       /* config.json says moe_k, moe_num_experts,
                              * moe_num_shared_experts, and which layers have
                              * experts by moe_layer_start_index,
                              * moe_layer_end_index and moe_layer_interval */
    bool all_sparse;       /* all have, and no intermediate_size */
    bool renormalize_always, renormalize_never; /* override norm_topk_prob */
    /* defaults */
    bool renormalize;            /* norm_topk_prob */
    double scale;                /* routed_scaling_factor; 1 */
    int64_t n_group, topk_group; /* 1 */
    int64_t n_shared;            /* n_shared_experts */
    int64_t first_dense;         /* first_k_dense_replace */
    int64_t head_dim;            /* hidden_size / num_attention_heads */
    int64_t n_kv_heads;          /* num_attention_heads */
    int64_t max_position;
    double rms_eps;                  /* 1e-6 */
    double theta;                    /* 1e4 */
    double local_theta;              /* theta */
    double attention_cap, logit_cap; /* none */
    int64_t query_scale;             /* query_pre_attn_scalar */
    int64_t window;                  /* sliding_window; 4096 */
    bool no_window;                  /* sliding_window is null */
    int64_t pattern;                 /* sliding_window_pattern */
    int64_t n_heads, vocab_size;     /* required */
    bool tied;                       /* tie_word_embeddings */
    bool biased;                     /* attention_bias */
};

/* Multi-head latent attention (DeepSeek-V2): q = q_b(rms(q_a(x))), or
 * q_proj(x); keys and values = kv_b(rms(first kv_lora outputs of kv_a(x)));
 * one rotary key shared by all heads = the last `rope` outputs of kv_a(x).  A
 * head of q and k has `nope` dims without RoPE, then `rope` dims with it. */
struct mla {
    int64_t q_lora;  /* rank of the query latent; 0: q_proj */
    int64_t kv_lora; /* rank of the key-value latent; 0: not an MLA model */
    int64_t nope, rope;
};

/* DeepSeek sparse attention (DeepSeek-V3.2-Exp): a query at position t sees the
 * top_k keys s <= t with the largest index scores
 *     I(t, s) = sum over heads h of w(t, h) relu(q(t, h) . k(s)) dim^-1/2. */
struct indexer {
    int64_t n_heads, dim;
    int64_t top_k; /* 0: attention is dense */
};

/* Linear attention by the gated delta rule (model/delta.h). */
struct delta {
    int64_t k_heads, v_heads; /* heads of q and k; of v, a multiple */
    int64_t k_dim, v_dim;     /* dims of a head */
    int64_t kernel;           /* tokens of the convolution */
    /* Mamba 2: heads of x are v_heads, groups of B and C k_heads, k_dim is the
     * state's size; biases of the convolution, of in_proj and out_proj; limits
     * of a step. */
    bool conv_bias, bias;
    double step_min, step_max;
};

/* Queries at position t are multiplied by 1 + scale log(1 + floor((t + 1) /
 * floor)) (Nakanishi 2025). */
struct query_growth {
    double scale; /* 0: they are not */
    int64_t floor;
};

enum { ALTUP_STREAMS = 64 };
/* Gemma 3n: a token has n residual streams.  A layer predicts all of them, runs
 * on the active one, and corrects all by what came out (AltUp, Baykal et al.
 * 2023); a low-rank path lies beside attention (LAuReL, Menghani et al. 2024),
 * and each layer has an input of its own from the token's id.  The last layers
 * use the keys and values of a layer before them. */
struct altup {
    int64_t n, active;    /* streams, at most ALTUP_STREAMS; the one that layers
                           * run on */
    int64_t rank;         /* of LAuReL */
    int64_t inputs;       /* width of a layer's own input */
    int64_t vocab_size;   /* rows of the table of these inputs */
    int64_t shared;       /* last layers without keys and values of their own */
    bool scale_corrected; /* the active stream is scaled before it meets the
                           * layer's own input */
    /* [n_layers]: outputs g of the MLP's gate become max(g - mean - cutoff *
     * deviation, 0), over a token's outputs; -infinity: they stay */
    double *cutoff;
};

/* Mixture of experts. */
struct moe {
    int64_t n_experts;    /* experts per layer; 0: the model is dense */
    int64_t n_router;     /* rows of the router; more than n_experts if some
                           * experts are pruned (checkpoint/expertmap.h) */
    int64_t top_k;        /* experts per token */
    int64_t width;        /* outputs of an expert's gate and up */
    int64_t shared_width; /* the same for the shared expert; 0: none */
    int64_t n_group, topk_group; /* groups of experts; groups kept */
    bool grouped; /* the top-k are chosen from topk_group of n_group groups */
    bool renormalize;  /* a token's weights are divided by their sum */
    double scale;      /* and multiplied by this (routed_scaling_factor) */
    bool weigh_inputs; /* as in struct family: the outputs' factors are 1 */
    bool *sparse;      /* [n_layers] whether the layer has experts */
};

/* A multimodal model: its language model, of a family, is described by
 * text_config. */
struct wrapper {
    const char *model_type;   /* "gemma3" */
    const char *architecture; /* "Gemma3ForConditionalGeneration" */
    const char *text; /* model_type of the language model where config.json
                       * does not say it */
    bool tied;        /* default of tie_word_embeddings; false: the family's */
};

/* What config.json says.  Release with model_config_release(). */
struct model_config {
    const struct family *family;
    const struct wrapper *wrapper; /* NULL: no multimodal model */
    int64_t hidden_size, intermediate_size, n_layers, vocab_size;
    int64_t n_heads, n_kv_heads, max_position;
    int64_t head_dim;       /* of q and k */
    int64_t v_dim;          /* of v; = head_dim except for MLA */
    double attention_scale; /* scores are multiplied by it: head_dim^-1/2,
                             * times a square for MLA with yarn */
    enum qk_norm qk_norm;
    int64_t rotary, rotary_at; /* dims of a head that RoPE rotates; the first
                                * of them */
    bool rope_pairs;           /* RoPE rotates dims (2i, 2i+1) instead of (i,
                                * i + rotary/2) */
    int64_t longest; /* longest supported sequence in tokens; 0: no limit */
    const char *longest_by; /* the member that limits it */
    struct mla mla;
    struct indexer indexer;
    struct delta delta;
    struct altup altup;
    int64_t *layer_width; /* [n_layers] outputs of the MLP's gate; NULL:
                           * intermediate_size, else that is the widest */
    bool *layer_linear;   /* [n_layers] layers with linear attention; NULL:
                         * none */
    struct moe moe;
    double rms_eps;
    bool tied;              /* tie_word_embeddings */
    bool qkv_bias, o_bias;  /* these linears have a bias */
    bool mlp_bias;          /* gate, up and down have one */
    int64_t sliding_window; /* of SLIDING_CHUNKS: the chunk; 0: none */
    bool *layer_slides; /* [n_layers], or NULL: all layers have the window */
    struct query_growth query_growth;
    struct rope rope;
    struct rope local_rope; /* of sliding layers, if family->rope_by_type */
    bool *layer_nope;       /* [n_layers] layers without RoPE; NULL: none */
    double embed_scale, residual_scale; /* factors of embeddings, and of what
                                         * attention and MLP add to the
                                         * residual stream */
    double logit_scale;                 /* factor of logits */
    double attention_cap, logit_cap; /* c: scores (logits) s become c tanh(s /
                                      * c); 0: they stay */
    double gate_limit, gate_alpha;   /* of ACT_CLAMPED */
    /* kv_b_proj is one of the linears that may be quantized, which the caller sets
     * (module_choice_apply()): config.json does not say it */
    bool kv_b;
    enum dtype dtype;      /* dtype or torch_dtype; DT_BF16 if absent */
    char quant_method[32]; /* of quantization_config; "" if absent */
    char architecture[64]; /* architectures[0] */
};

/* Read DIR/config.json, in the spellings of transformers 4 and 5 (rope_theta
 * and rope_scaling, or rope_parameters; torch_dtype or dtype).  E_NOINPUT: no
 * such file; E_DATA: not strict JSON, a field missing or out of range;
 * E_CONFIG: an unsupported family, RoPE type, activation or setting, by name.
 * Of a multimodal model only the part in text_config is read. */
MUST_CHECK int model_config_read(struct model_config *c, const char *dir,
                                 struct err *e);
/* The same from text[len].  what: prefix of messages, e.g. "'config.json'". */
MUST_CHECK int model_config_parse(struct model_config *c, const char *text,
                                  size_t len, const char *what, struct err *e);
void model_config_release(struct model_config *c);
/* Whether the layer uses sliding window attention. */
bool model_layer_slides(const struct model_config *c, int64_t layer);
/* Whether it has linear attention. */
bool model_layer_linear(const struct model_config *c, int64_t layer);
/* The factor of the query at position t. */
float query_factor(const struct query_growth *g, int64_t t);
/* Elements of a token's row of states between layers: hidden_size; with struct
 * altup the stream at hand, all streams, the keys and values that later layers
 * use (of full attention, then of sliding), the layers' own inputs. */
int64_t model_row(const struct model_config *c);
/* Element at which stream i begins there. */
int64_t model_row_stream(const struct model_config *c, int64_t i);
/* The same of the keys that the layer leaves there for later layers, or takes
 * from there, with the values behind them; 0: neither. */
int64_t model_row_keys(const struct model_config *c, int64_t layer);
/* The same of the layer's own input. */
int64_t model_row_input(const struct model_config *c, int64_t layer);
/* Whether the layer has no keys and values of its own. */
bool model_layer_shares(const struct model_config *c, int64_t layer);
/* The layer's RoPE; NULL: it has none. */
const struct rope *model_layer_rope(const struct model_config *c,
                                    int64_t layer);
/* The norms of the model's layers. */
const struct layer_norms *model_norms(const struct model_config *c);
/* Whether o's and down's outputs are normalized or multiplied before they are
 * added to the residual stream. */
bool model_adds_scaled(const struct model_config *c);

/* YaRN's factor of cos and sin where config.json gives none (transformers,
 * _compute_yarn_parameters): m(mscale) / m(all_dim) if both are not 0, else
 * m(1), with m(x) = 0.1 x ln(factor) + 1. */
double rope_yarn_attention(double factor, double mscale, double all_dim);

/* Number of experts of the layer; 0: it is dense. */
int64_t model_layer_experts(const struct model_config *c, int64_t layer);
/* Outputs of gate and up of the layer's dense MLP or shared expert; 0: it has
 * neither. */
int64_t model_layer_width(const struct model_config *c, int64_t layer);

/* Inputs of a decoder layer's linears.  Linears with the same input share one
 * Hessian. */
enum input_class {
    IN_ATTN,       /* of q, k, v, q_a, kv_a */
    IN_Q_LAT,      /* of q_b: rms(q_a(x)) */
    IN_KV_LAT,     /* of kv_b: rms(first kv_lora outputs of kv_a(x)) */
    IN_ATTN_OUT,   /* of o */
    IN_MLP,        /* of gate and up of the dense MLP or the shared expert: all
             * tokens */
    IN_MLP_MID,    /* of their down */
    IN_EXPERT,     /* of an expert's gate and up: the tokens routed to it */
    IN_EXPERT_MID, /* of its down */
    IN_COUNT
};
/* "attn_in", "q_lat", "kv_lat", "attn_out", "mlp_in", "mlp_mid", "in", "mid". */
const char *input_class_name(enum input_class c);
/* Name of the frame of an input: "model.layers.3.attn_in", or for expert >= 0
 * "model.layers.3.mlp.experts.17.in" (experts as the family spells them). */
void model_activation_name(const struct model_config *c, int64_t layer,
                           enum input_class in, int64_t expert,
                           char name[MODULE_PATH_MAX]);

/* Role of a linear in its layer. */
enum linear_part {
    PART_Q, /* q_proj, of GQA or of MLA without q_lora */
    PART_K,
    PART_V,
    PART_Q_A,
    PART_KV_A,
    PART_Q_B,
    PART_KV_B, /* model_linear() lists it where model_config.kv_b is set */
    PART_O,
    PART_GATE, /* of the dense MLP, the shared expert or an expert */
    PART_UP,
    PART_DOWN,
    PART_QKV,     /* q, k and v in one: outputs of q, then k, then v */
    PART_GATE_UP, /* outputs of gate, then up */
    PART_MIX,     /* of linear attention: q, k and v, and if they are fused z */
    PART_Z,
    PARTS
};

/* One linear of a decoder layer: y = W x + b, W [rows, cols]. */
struct linear {
    char module[MODULE_PATH_MAX]; /* "model.layers.3.self_attn.q_proj" */
    int64_t layer;
    int64_t expert; /* -1: not of a routed expert */
    enum input_class input;
    enum linear_part part;
    int64_t rows, cols; /* outputs, inputs */
    bool bias;          /* whether config.json implies a tensor MODULE.bias */
};

/* Number of a layer's linears that are quantized.  In the order of the forward
 * pass: attention; the dense MLP or the shared expert; gate, up, down of
 * expert 0, of expert 1, ... */
int64_t model_linear_count(const struct model_config *c, int64_t layer);
/* How many of them come before the experts'. */
int64_t model_linear_common(const struct model_config *c, int64_t layer);
/* Those of an expert of the layer; expert -1: those before the experts'. */
void model_linear_range(const struct model_config *c, int64_t layer,
                        int64_t expert, int64_t *begin, int64_t *end);
/* The i-th of them, 0 <= i < model_linear_count(). */
void model_linear(const struct model_config *c, int64_t layer, int64_t i,
                  struct linear *l);
/* kv_b_proj of an MLA layer, whether or not it is listed. */
void model_kv_b(const struct model_config *c, int64_t layer, struct linear *l);
/* The linear with this module path; false: not one that is quantized. */
bool model_find_linear(const struct model_config *c, const char *module,
                       struct linear *l);

#endif
