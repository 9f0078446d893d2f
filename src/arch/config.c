/* config.c - see config.h. */
#include "arch/config.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "arch/config_parts.h"
#include "arch/fields.h"
#include "common/io/modeldir.h"

enum { CONFIG_MAX = 16 * 1024 * 1024 };

/* ---- family ---- */

static int find_family(struct model_config *c, const struct json *o,
                       struct err *e)
{
    const char *type = c->wrapper ? c->wrapper->text : NULL;

    /* the outer object of a multimodal model names that */
    if (!(c->wrapper && field_get(o, "vision_config")) &&
        field_string(o, "model_type", &type, e) < 0)
        return e->code;
    if (!type)
        return err_set(e, E_DATA, "model_type is missing");
    c->family = family_find(type);
    return c->family ? 0 : family_refuse(type, o, e);
}

/* *text = the object that describes the language model: o, or its text_config
 * in a multimodal model that is supported; sets c->wrapper. */
static int find_text(struct model_config *c, const struct json *o,
                     const struct json **text, struct err *e)
{
    const char *type = "";

    *text = o;
    if (field_string(o, "model_type", &type, e) < 0)
        return e->code;
    c->wrapper = wrapper_find(type);
    if (!field_get(o, "text_config"))
        return 0;
    if (!c->wrapper)
        return wrapper_refuse(type, e);
    *text = field_get(o, "text_config");
    if (json_type(*text) != JSON_OBJECT)
        return err_set(e, E_DATA, "text_config is not an object");
    return 0;
}

/* Whether the class is the one that is wanted, "LlamaForCausalLM", or what that is made
 * of, "LlamaModel", of models for embeddings.  The first Llama was spelled
 * LLaMAForCausalLM. */
static bool is_class(const char *name, const char *want)
{
    const char *tail = strstr(want, "ForCausalLM");
    size_t stem = tail ? (size_t)(tail - want) : 0;

    return !strcasecmp(name, want) || (stem && !strncmp(name, want, stem) &&
                                       !strcmp(name + stem, "Model"));
}

static int check_architecture(struct model_config *c, const struct json *o,
                              struct err *e)
{
    const struct json *list = field_get(o, "architectures");
    const char *want =
        c->wrapper ? c->wrapper->architecture : c->family->architecture;
    const char *name = want;

    if (list && json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "architectures is not an array");
    if (list && json_count(list) && !json_string(json_first(list), &name))
        return err_set(e, E_DATA, "architectures[0] is not a string");
    if (!is_class(name, want))
        return err_set(
            e, E_CONFIG,
            "architecture '%.64s' is not supported (of %s models, "
            "%s is)",
            name, c->wrapper ? c->wrapper->model_type : c->family->model_type,
            want);
    snprintf(c->architecture, sizeof(c->architecture), "%s", name);
    return 0;
}

/* ---- sizes ---- */

static int read_head_dim(struct model_config *c, const struct json *o,
                         struct err *e)
{
    c->head_dim = json_get(o, "head_dim") ? 0 : c->family->head_dim;
    if (field_int(o, "head_dim", 1, HEAD_DIM_MAX, &c->head_dim, e) < 0)
        return e->code;
    if (!c->head_dim &&
        field_multiple("hidden_size", c->hidden_size, "num_attention_heads",
                       c->n_heads, e) < 0)
        return e->code;
    if (!c->head_dim)
        c->head_dim = c->hidden_size / c->n_heads;
    if (c->head_dim % 2 || c->head_dim > HEAD_DIM_MAX)
        return err_set(e, E_CONFIG,
                       "head_dim %lld is not supported (even ones up to %d "
                       "are)",
                       (long long)c->head_dim, HEAD_DIM_MAX);
    if (c->n_heads * c->head_dim > MAX_WIDTH)
        return err_set(e, E_DATA, "%lld heads of %lld are out of range",
                       (long long)c->n_heads, (long long)c->head_dim);
    c->v_dim = c->head_dim;
    c->rotary = c->head_dim;
    c->rope_pairs = c->family->rope_pairs;
    c->attention_scale = 1 / sqrt((double)c->head_dim);
    return 0;
}

/* A size that must be there unless the family has a default. */
static int read_size(const struct json *o, const char *key, int64_t max,
                     int64_t otherwise, int64_t *out, struct err *e)
{
    *out = otherwise;
    return otherwise ? field_int(o, key, 1, max, out, e) :
                       field_need(o, key, max, out, e);
}

static int read_heads(struct model_config *c, const struct json *o,
                      struct err *e)
{
    if (read_size(o, "num_attention_heads", 1 << 16, c->family->n_heads,
                  &c->n_heads, e) < 0)
        return e->code;
    /* null means num_attention_heads, absent means the family's default */
    c->n_kv_heads = c->family->n_kv_heads;
    if (!c->n_kv_heads || json_get(o, "num_key_value_heads"))
        c->n_kv_heads = c->n_heads;
    if (field_int(o, "num_key_value_heads", 1, 1 << 16, &c->n_kv_heads, e) < 0)
        return e->code;
    if (field_multiple("num_attention_heads", c->n_heads, "num_key_value_heads",
                       c->n_kv_heads, e) < 0)
        return e->code;
    return c->family->mla ? config_read_mla(c, o, e) : read_head_dim(c, o, e);
}

static int read_activation(struct model_config *c, const struct json *o,
                           struct err *e)
{
    static const struct {
        const char *key, *name, *alias;
    } known[] = { [ACT_SILU] = { "hidden_act", "silu", "swish" },
                  [ACT_GELU] = { "hidden_activation", "gelu_pytorch_tanh",
                                 "gelu_pytorch_tanh" },
                  [ACT_CLAMPED] = { "hidden_act", "silu", "swish" } };
    const enum activation want = c->family->act;
    const char *act = known[want].name;

    if (field_string(o, known[want].key, &act, e) < 0)
        return e->code;
    if (strcmp(act, known[want].name) && strcmp(act, known[want].alias))
        return err_set(e, E_CONFIG, "%s '%.64s' is not supported (%s is)",
                       known[want].key, act, known[want].name);
    c->gate_limit = 7;
    c->gate_alpha = 1.702;
    return field_number(o, "swiglu_limit", &c->gate_limit, e) < 0 ?
               e->code :
               field_number(o, "swiglu_alpha", &c->gate_alpha, e);
}

/* The width of the dense MLP, which a family whose layers all have experts may
 * lack. */
static int read_width(struct model_config *c, const struct json *o,
                      struct err *e)
{
    const char *key =
        c->family->mlp_width ? c->family->mlp_width : "intermediate_size";

    if (c->family->altup) /* config_read_altup() */
        return 0;
    if (c->family->all_sparse && !field_get(o, key))
        key = "moe_intermediate_size";
    return field_need(o, key, MAX_WIDTH, &c->intermediate_size, e);
}

static int read_sizes(struct model_config *c, const struct json *o,
                      struct err *e)
{
    c->max_position = c->family->max_position;
    c->tied = c->family->tied;
    c->rms_eps = c->family->rms_eps > 0 ? c->family->rms_eps : 1e-6;
    if (field_need(o, "hidden_size", MAX_WIDTH, &c->hidden_size, e) < 0 ||
        read_width(c, o, e) < 0 ||
        field_need(o, "num_hidden_layers", MAX_LAYERS, &c->n_layers, e) < 0 ||
        read_size(o, "vocab_size", MAX_WIDTH, c->family->vocab_size,
                  &c->vocab_size, e) < 0 ||
        read_heads(c, o, e) < 0 ||
        field_int(o,
                  c->family->kimi_keys ? "model_max_length" :
                                         "max_position_embeddings",
                  1, MAX_POSITION, &c->max_position, e) < 0 ||
        field_number(o, "rms_norm_eps", &c->rms_eps, e) < 0 ||
        field_bool(o, "tie_word_embeddings", &c->tied, e) < 0)
        return e->code;
    return read_activation(c, o, e);
}

/* Which linears have biases; whether q and k are normalized. */
static int read_biases(struct model_config *c, const struct json *o,
                       struct err *e)
{
    const struct family *f = c->family;
    bool attention = f->biased, mlp = f->mlp_biased, qkv = f->qkv_bias,
         norm = f->qk_norm == QK_NORM_UNIT;
    bool out = false, all = false;

    if (f->attention_bias && field_bool(o, "attention_bias", &attention, e) < 0)
        return e->code;
    if (f->mlp_bias && field_bool(o, "mlp_bias", &mlp, e) < 0)
        return e->code;
    if (f->qkv_bias_key && field_bool(o, "qkv_bias", &qkv, e) < 0)
        return e->code;
    if (f->qk_norm_key && field_bool(o, "use_qk_norm", &norm, e) < 0)
        return e->code;
    if (f->o_bias_key && field_bool(o, "attention_out_bias", &out, e) < 0)
        return e->code;
    if (f->use_bias && field_bool(o, "use_bias", &all, e) < 0)
        return e->code;
    c->qkv_bias = attention || qkv || all;
    c->o_bias = (attention && f->o_bias) || out || all;
    c->mlp_bias = mlp || all;
    c->qk_norm = !f->qk_norm_key || norm ? f->qk_norm : QK_NORM_NONE;
    return 0;
}

/* ---- scales ---- */

static int read_multipliers(struct model_config *c, const struct json *o,
                            struct err *e)
{
    double divisor = 1;

    c->attention_scale = 1; /* the default of attention_multiplier */
    if (field_number(o, "embedding_multiplier", &c->embed_scale, e) < 0 ||
        field_number(o, "attention_multiplier", &c->attention_scale, e) < 0 ||
        field_number(o, "residual_multiplier", &c->residual_scale, e) < 0 ||
        field_number(o, "logits_scaling", &divisor, e) < 0)
        return e->code;
    c->logit_scale = 1 / divisor;
    return 0;
}

/* A soft cap: null means none, absent means the family's default. */
static int read_cap(const struct json *o, const char *key, double otherwise,
                    double *cap, struct err *e)
{
    *cap = json_get(o, key) ? 0 : otherwise;
    return field_number(o, key, cap, e);
}

static int read_scales(struct model_config *c, const struct json *o,
                       struct err *e)
{
    const struct family *f = c->family;
    double scalar = (double)f->query_scale;

    c->embed_scale = f->embed_sqrt ? sqrt((double)c->hidden_size) : 1;
    c->residual_scale = c->logit_scale = 1;
    if (f->multipliers && read_multipliers(c, o, e) < 0)
        return e->code;
    if (f->unit_scale)
        c->attention_scale = 1;
    if (f->query_scalar) {
        if (field_number(o, "query_pre_attn_scalar", &scalar, e) < 0)
            return e->code;
        c->attention_scale = 1 / sqrt(scalar);
    }
    /* transformers passes Gemma 3's attn_logit_softcapping to no attention */
    if (f->attention_cap > 0 &&
        read_cap(o, "attn_logit_softcapping", f->attention_cap,
                 &c->attention_cap, e) < 0)
        return e->code;
    if (f->softcaps && read_cap(o, "final_logit_softcapping", f->logit_cap,
                                &c->logit_cap, e) < 0)
        return e->code;
    return 0;
}

bool model_adds_scaled(const struct model_config *c)
{
    return model_norms(c)->attn_out || c->residual_scale != 1;
}

/* ---- storage ---- */

/* c->dtype; unchanged if o does not say it. */
static int read_dtype(struct model_config *c, const struct json *o,
                      struct err *e)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = { { "bfloat16", DT_BF16 },
                  { "float16", DT_F16 },
                  { "float32", DT_F32 } };
    const char *name = NULL;

    if (field_string(o, "dtype", &name, e) < 0 ||
        (!name && field_string(o, "torch_dtype", &name, e) < 0))
        return e->code;
    if (!name)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (!strcmp(name, names[i].name)) {
            c->dtype = names[i].dtype;
            return 0;
        }
    return err_set(e, E_CONFIG,
                   "dtype '%.64s' is not supported (bfloat16, float16 and "
                   "float32 are)",
                   name);
}

static int read_quantization(struct model_config *c, const struct json *o,
                             struct err *e)
{
    const struct json *q = field_get(o, "quantization_config");
    const char *method = "";

    if (!q)
        return 0;
    if (json_type(q) != JSON_OBJECT)
        return err_set(e, E_DATA, "quantization_config is not an object");
    if (field_string(q, "quant_method", &method, e) < 0)
        return err_prefix(e, "quantization_config");
    if (strlen(method) >= sizeof(c->quant_method))
        return err_set(e, E_CONFIG, "quant_method '%.64s' is not supported",
                       method);
    snprintf(c->quant_method, sizeof(c->quant_method), "%s", method);
    return 0;
}

/* ---- the whole ---- */

static int read_all(struct model_config *c, const struct json *o, struct err *e)
{
    const struct json *t;

    if (json_type(o) != JSON_OBJECT)
        return err_set(e, E_DATA, "not a JSON object");
    c->dtype = DT_BF16;
    if (find_text(c, o, &t, e) < 0 || find_family(c, t, e) < 0 ||
        check_architecture(c, o, e) < 0 || read_sizes(c, t, e) < 0 ||
        read_biases(c, t, e) < 0 || read_scales(c, t, e) < 0 ||
        config_read_layers(c, t, e) < 0 || config_read_altup(c, t, e) < 0 ||
        config_read_rope(c, t, e) < 0 || config_read_moe(c, t, e) < 0 ||
        read_dtype(c, t, e) < 0 || read_quantization(c, o, e) < 0)
        return e->code;
    /* what both objects may say, the outer one decides, by its default, too */
    if (c->wrapper && c->wrapper->tied)
        c->tied = true;
    if (field_bool(o, "tie_word_embeddings", &c->tied, e) < 0 ||
        read_dtype(c, o, e) < 0)
        return e->code;
    return 0;
}

static int read_document(struct model_config *c, const struct json_doc *doc,
                         const char *what, struct err *e)
{
    if (read_all(c, json_root(doc), e) < 0) {
        model_config_release(c);
        return err_prefix(e, "%s", what);
    }
    return 0;
}

int model_config_parse(struct model_config *c, const char *text, size_t len,
                       const char *what, struct err *e)
{
    struct json_doc *doc;
    int rc;

    memset(c, 0, sizeof(*c));
    if (json_parse(&doc, text, len, what, e) < 0)
        return e->code;
    rc = read_document(c, doc, what, e);
    json_free(doc);
    return rc;
}

int model_config_read(struct model_config *c, const char *dir, struct err *e)
{
    char *text, what[PATH_MAX];
    size_t len;
    int rc;

    memset(c, 0, sizeof(*c));
    if (modeldir_read(dir, "config.json", CONFIG_MAX, &text, &len, e))
        return e->code;
    snprintf(what, sizeof(what), "'%s/config.json'", dir);
    rc = model_config_parse(c, text, len, what, e);
    free(text);
    return rc;
}

void model_config_release(struct model_config *c)
{
    free(c->layer_slides);
    free(c->layer_nope);
    free(c->layer_linear);
    free(c->layer_width);
    free(c->altup.cutoff);
    free(c->rope.divisors);
    free(c->moe.sparse);
    memset(c, 0, sizeof(*c));
}
