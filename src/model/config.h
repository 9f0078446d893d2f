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
    bool sliding;             /* honours sliding_window */
    bool sliding_by_layer;    /* ... only if use_sliding_window, from layer
                               max_window_layers on, or by layer_types */
    bool attention_bias;      /* honours attention_bias (q, k, v and o) */
    bool mlp_bias;            /* honours mlp_bias */
    int64_t head_dim;     /* default; 0: hidden_size / num_attention_heads */
    int64_t n_kv_heads;   /* default; 0: num_attention_heads */
    int64_t max_position; /* default */
};

struct model_config {
    const struct family *family;
    int64_t hidden_size, intermediate_size, n_layers, vocab_size;
    int64_t n_heads, n_kv_heads, head_dim, max_position;
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

/* The four inputs of a decoder layer that linears share: one Hessian each. */
enum input_class { IN_ATTN, IN_ATTN_OUT, IN_MLP, IN_MLP_MID, IN_COUNT };
const char *input_class_name(enum input_class c); /* "attn_in", "attn_out",
                                                     "mlp_in", "mlp_mid" */

struct linear {
    char module[MODULE_PATH_MAX]; /* "model.layers.3.self_attn.q_proj" */
    int64_t layer;
    enum input_class input;
    int64_t rows, cols; /* outputs O, inputs C */
    bool bias;          /* config says that MODULE.bias exists */
};

enum { LINEARS_PER_LAYER_MAX = 7 };

/* The linears of a layer that are quantized, in the order of the forward
 * pass: q, k, v, o, gate, up, down.  Returns how many; out holds
 * LINEARS_PER_LAYER_MAX. */
int model_linears(const struct model_config *c, int64_t layer,
                  struct linear *out);
/* Find the linear whose module path this is; false: not a quantized linear. */
bool model_find_linear(const struct model_config *c, const char *module,
                       struct linear *out);

#endif
