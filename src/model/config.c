/* config.c - see config.h. */
#include "model/config.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/json.h"
#include "model/rope.h"

enum { CONFIG_MAX = 16 * 1024 * 1024 };
/* More than any model has; small enough that products of two fit an int64. */
enum { MAX_WIDTH = 1 << 24, MAX_LAYERS = 1 << 16, MAX_POSITION = 1 << 30 };

static const struct family families[] = {
    { .model_type = "llama",
      .architecture = "LlamaForCausalLM",
      .attention_bias = true,
      .mlp_bias = true,
      .max_position = 2048 },
    { .model_type = "mistral",
      .architecture = "MistralForCausalLM",
      .sliding = true,
      .n_kv_heads = 8,
      .max_position = 131072 },
    { .model_type = "qwen2",
      .architecture = "Qwen2ForCausalLM",
      .qkv_bias = true,
      .sliding = true,
      .sliding_by_layer = true,
      .n_kv_heads = 32,
      .max_position = 32768 },
    { .model_type = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .qk_norm = true,
      .sliding = true,
      .sliding_by_layer = true,
      .attention_bias = true,
      .head_dim = 128,
      .n_kv_heads = 32,
      .max_position = 32768 },
};

/* ---- fields ---- */

/* The member, or NULL when it is absent or null. */
static const struct json *member(const struct json *o, const char *key)
{
    const struct json *v = json_get(o, key);

    return v && json_type(v) != JSON_NULL ? v : NULL;
}

/* Leaves *out alone when the field is absent. */
static int get_int(const struct json *o, const char *key, int64_t min,
                   int64_t max, int64_t *out, struct err *e)
{
    const struct json *v = member(o, key);
    int64_t x;

    if (!v)
        return 0;
    if (!json_int(v, &x) || x < min || x > max)
        return err_set(e, E_DATA, "%s is not an integer from %lld to %lld", key,
                       (long long)min, (long long)max);
    *out = x;
    return 0;
}

static int need_int(const struct json *o, const char *key, int64_t max,
                    int64_t *out, struct err *e)
{
    if (!member(o, key))
        return err_set(e, E_DATA, "%s is missing", key);
    return get_int(o, key, 1, max, out, e);
}

/* A positive finite number. */
static int get_number(const struct json *o, const char *key, double *out,
                      struct err *e)
{
    const struct json *v = member(o, key);
    double x;

    if (!v)
        return 0;
    if (!json_number(v, &x) || !isfinite(x) || x <= 0)
        return err_set(e, E_DATA, "%s is not a positive number", key);
    *out = x;
    return 0;
}

static int get_bool(const struct json *o, const char *key, bool *out,
                    struct err *e)
{
    const struct json *v = member(o, key);

    if (v && !json_bool(v, out))
        return err_set(e, E_DATA, "%s is neither true nor false", key);
    return 0;
}

static int get_string(const struct json *o, const char *key, const char **out,
                      struct err *e)
{
    const struct json *v = member(o, key);

    if (v && !json_string(v, out))
        return err_set(e, E_DATA, "%s is not a string", key);
    return 0;
}

/* ---- family ---- */

static int find_family(struct model_config *c, const struct json *o,
                       struct err *e)
{
    const char *type = NULL;

    if (member(o, "text_config"))
        return err_set(e, E_CONFIG,
                       "text_config: models inside a wrapper (vision, audio) "
                       "are not supported");
    if (get_string(o, "model_type", &type, e) < 0)
        return e->code;
    if (!type)
        return err_set(e, E_DATA, "model_type is missing");
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (!strcmp(type, families[i].model_type))
            c->family = &families[i];
    if (!c->family)
        return err_set(e, E_CONFIG,
                       "model_type '%.64s' is not supported (llama, mistral, "
                       "qwen2 and qwen3 are)",
                       type);
    return 0;
}

static int check_architecture(struct model_config *c, const struct json *o,
                              struct err *e)
{
    const struct json *list = member(o, "architectures");
    const char *name = c->family->architecture;

    if (list && json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "architectures is not an array");
    if (list && json_count(list) && !json_string(json_first(list), &name))
        return err_set(e, E_DATA, "architectures[0] is not a string");
    /* The first Llama was spelled LLaMAForCausalLM. */
    if (strcasecmp(name, c->family->architecture))
        return err_set(e, E_CONFIG,
                       "architecture '%.64s' is not supported (of %s models, "
                       "%s is)",
                       name, c->family->model_type, c->family->architecture);
    snprintf(c->architecture, sizeof(c->architecture), "%s", name);
    return 0;
}

/* ---- sizes ---- */

static int read_heads(struct model_config *c, const struct json *o,
                      struct err *e)
{
    if (need_int(o, "num_attention_heads", 1 << 16, &c->n_heads, e) < 0)
        return e->code;
    /* null means as many as heads, absent the family's default */
    c->n_kv_heads = c->family->n_kv_heads;
    if (!c->n_kv_heads || json_get(o, "num_key_value_heads"))
        c->n_kv_heads = c->n_heads;
    if (get_int(o, "num_key_value_heads", 1, 1 << 16, &c->n_kv_heads, e) < 0)
        return e->code;
    if (c->n_heads % c->n_kv_heads)
        return err_set(e, E_DATA,
                       "num_attention_heads %lld is not a multiple of "
                       "num_key_value_heads %lld",
                       (long long)c->n_heads, (long long)c->n_kv_heads);
    c->head_dim = json_get(o, "head_dim") ? 0 : c->family->head_dim;
    if (get_int(o, "head_dim", 1, HEAD_DIM_MAX, &c->head_dim, e) < 0)
        return e->code;
    if (!c->head_dim && c->hidden_size % c->n_heads)
        return err_set(e, E_DATA,
                       "hidden_size %lld is not a multiple of "
                       "num_attention_heads %lld",
                       (long long)c->hidden_size, (long long)c->n_heads);
    if (!c->head_dim)
        c->head_dim = c->hidden_size / c->n_heads;
    if (c->head_dim % 2 || c->head_dim > HEAD_DIM_MAX)
        return err_set(e, E_CONFIG,
                       "head_dim %lld is not supported (even ones up to %d "
                       "are)",
                       (long long)c->head_dim, HEAD_DIM_MAX);
    c->v_dim = c->head_dim;
    if (c->n_heads * c->head_dim > MAX_WIDTH)
        return err_set(e, E_DATA, "%lld heads of %lld are out of range",
                       (long long)c->n_heads, (long long)c->head_dim);
    return 0;
}

static int read_sizes(struct model_config *c, const struct json *o,
                      struct err *e)
{
    const char *act = "silu";

    c->max_position = c->family->max_position;
    c->rms_eps = 1e-6;
    if (need_int(o, "hidden_size", MAX_WIDTH, &c->hidden_size, e) < 0 ||
        need_int(o, "intermediate_size", MAX_WIDTH, &c->intermediate_size, e) <
            0 ||
        need_int(o, "num_hidden_layers", MAX_LAYERS, &c->n_layers, e) < 0 ||
        need_int(o, "vocab_size", MAX_WIDTH, &c->vocab_size, e) < 0 ||
        read_heads(c, o, e) < 0 ||
        get_int(o, "max_position_embeddings", 1, MAX_POSITION, &c->max_position,
                e) < 0 ||
        get_number(o, "rms_norm_eps", &c->rms_eps, e) < 0 ||
        get_bool(o, "tie_word_embeddings", &c->tied, e) < 0 ||
        get_string(o, "hidden_act", &act, e) < 0)
        return e->code;
    if (strcmp(act, "silu") && strcmp(act, "swish"))
        return err_set(e, E_CONFIG,
                       "hidden_act '%.64s' is not supported "
                       "(silu is)",
                       act);
    return 0;
}

static int read_biases(struct model_config *c, const struct json *o,
                       struct err *e)
{
    bool attention = false, mlp = false;

    if (c->family->attention_bias &&
        get_bool(o, "attention_bias", &attention, e) < 0)
        return e->code;
    if (c->family->mlp_bias && get_bool(o, "mlp_bias", &mlp, e) < 0)
        return e->code;
    c->qkv_bias = attention || c->family->qkv_bias;
    c->o_bias = attention;
    c->mlp_bias = mlp;
    return 0;
}

/* ---- sliding window ---- */

/* layer_types into c->layer_slides. */
static int read_layer_types(struct model_config *c, const struct json *list,
                            struct err *e)
{
    const struct json *v;
    const char *type;
    int64_t i = 0;

    if (json_type(list) != JSON_ARRAY ||
        json_count(list) != (size_t)c->n_layers)
        return err_set(e, E_DATA,
                       "layer_types is not an array of num_hidden_layers "
                       "%lld strings",
                       (long long)c->n_layers);
    c->layer_slides =
        mem_zero((size_t)c->n_layers, sizeof(bool), "layer_types", e);
    if (!c->layer_slides)
        return e->code;
    for (v = json_first(list); v; v = json_after(v), i++) {
        if (!json_string(v, &type))
            return err_set(e, E_DATA, "layer_types[%lld] is not a string",
                           (long long)i);
        c->layer_slides[i] = !strcmp(type, "sliding_attention");
        if (!c->layer_slides[i] && strcmp(type, "full_attention"))
            return err_set(e, E_CONFIG,
                           "layer_types: '%.64s' is not supported "
                           "(full_attention and sliding_attention are)",
                           type);
    }
    return 0;
}

/* layer_types must not say what this family's model does not do. */
static int check_layer_types(const struct model_config *c, struct err *e)
{
    bool all =
        c->family->sliding && !c->family->sliding_by_layer && c->sliding_window;

    for (int64_t i = 0; i < c->n_layers; i++) {
        bool slides = c->layer_slides[i];

        if (slides && !c->sliding_window)
            return err_set(e, E_CONFIG,
                           "layer_types: layer %lld slides, but there is no "
                           "sliding_window in use",
                           (long long)i);
        if (!slides && all)
            return err_set(e, E_CONFIG,
                           "layer_types: layer %lld is full_attention, but "
                           "%s slides in every layer",
                           (long long)i, c->family->model_type);
    }
    return 0;
}

static int read_sliding(struct model_config *c, const struct json *o,
                        struct err *e)
{
    bool use = c->family->sliding && !c->family->sliding_by_layer;

    if (c->family->sliding_by_layer) {
        c->first_sliding_layer = 28;
        if (get_bool(o, "use_sliding_window", &use, e) < 0 ||
            get_int(o, "max_window_layers", 0, INT_MAX, &c->first_sliding_layer,
                    e) < 0)
            return e->code;
    }
    if (use) {
        c->sliding_window = json_get(o, "sliding_window") ? 0 : 4096;
        if (get_int(o, "sliding_window", 1, MAX_POSITION, &c->sliding_window,
                    e) < 0)
            return e->code;
    }
    if (member(o, "layer_types") &&
        (read_layer_types(c, member(o, "layer_types"), e) < 0 ||
         check_layer_types(c, e) < 0))
        return e->code;
    return 0;
}

bool model_layer_slides(const struct model_config *c, int64_t layer)
{
    if (!c->sliding_window)
        return false;
    return c->layer_slides ? c->layer_slides[layer] :
                             layer >= c->first_sliding_layer;
}

/* ---- rope ---- */

static const struct {
    const char *name;
    enum rope_kind kind;
} rope_kinds[] = {
    { "default", ROPE_DEFAULT }, { "linear", ROPE_LINEAR },
    { "llama3", ROPE_LLAMA3 },   { "yarn", ROPE_YARN },
    { "dynamic", ROPE_DYNAMIC },
};

static int read_rope_kind(struct rope *r, const struct json *p, struct err *e)
{
    const char *name = NULL;

    if (get_string(p, "rope_type", &name, e) < 0 ||
        (!name && get_string(p, "type", &name, e) < 0))
        return e->code;
    for (size_t i = 0; i < ARRAY_LEN(rope_kinds); i++)
        if (!strcmp(name ? name : "default", rope_kinds[i].name)) {
            r->kind = rope_kinds[i].kind;
            return 0;
        }
    return err_set(e, E_CONFIG,
                   "rope type '%.64s' is not supported (default, linear, "
                   "llama3, yarn and dynamic are)",
                   name);
}

static int read_partial(const struct json *o, struct err *e)
{
    double part = 1;

    if (get_number(o, "partial_rotary_factor", &part, e) < 0)
        return e->code;
    if (part != 1)
        return err_set(e, E_CONFIG, "partial_rotary_factor %g is not supported",
                       part);
    return 0;
}

/* Members that a kind cannot do without. */
static int need_rope_fields(const struct rope *r, const struct json *p,
                            struct err *e)
{
    const char *need[] = { "factor", "low_freq_factor", "high_freq_factor" };
    size_t n = r->kind == ROPE_LLAMA3                            ? 3 :
               r->kind == ROPE_LINEAR || r->kind == ROPE_DYNAMIC ? 1 :
                                                                   0;

    for (size_t i = 0; i < n; i++)
        if (!member(p, need[i]))
            return err_set(e, E_DATA, "rope parameters: %s is missing",
                           need[i]);
    if (r->kind == ROPE_LLAMA3 && r->high_freq_factor <= r->low_freq_factor)
        return err_set(e, E_DATA,
                       "rope parameters: high_freq_factor %g is not above "
                       "low_freq_factor %g",
                       r->high_freq_factor, r->low_freq_factor);
    return 0;
}

static int read_yarn(struct model_config *c, const struct json *p,
                     struct err *e)
{
    struct rope *r = &c->rope;
    double mscale = 0, all = 0;

    r->beta_fast = 32;
    r->beta_slow = 1;
    r->truncate = true;
    if (!member(p, "factor"))
        r->factor = (double)c->max_position / r->original_max_position;
    if (get_number(p, "beta_fast", &r->beta_fast, e) < 0 ||
        get_number(p, "beta_slow", &r->beta_slow, e) < 0 ||
        get_bool(p, "truncate", &r->truncate, e) < 0)
        return e->code;
    /* 0 counts as absent for these */
    if (member(p, "mscale") && !json_number(member(p, "mscale"), &mscale))
        return err_set(e, E_DATA, "mscale is not a number");
    if (member(p, "mscale_all_dim") &&
        !json_number(member(p, "mscale_all_dim"), &all))
        return err_set(e, E_DATA, "mscale_all_dim is not a number");
    r->attention_factor = rope_yarn_attention(r->factor, mscale, all);
    if (r->theta == 1)
        return err_set(e, E_DATA, "rope_theta 1 makes no yarn");
    return get_number(p, "attention_factor", &r->attention_factor, e);
}

/* p: rope_scaling or rope_parameters; NULL when neither says anything. */
static int read_rope_fields(struct model_config *c, const struct json *o,
                            const struct json *p, struct err *e)
{
    struct rope *r = &c->rope;

    *r = (struct rope){ .theta = 10000, .factor = 1, .attention_factor = 1 };
    r->original_max_position = (double)c->max_position;
    if (read_partial(o, e) < 0 || get_number(o, "rope_theta", &r->theta, e) < 0)
        return e->code;
    if (!p)
        return 0;
    if (json_type(p) != JSON_OBJECT)
        return err_set(e, E_DATA, "rope parameters are not an object");
    for (const struct json *v = json_first(p); v; v = json_after(v))
        if (json_type(v) == JSON_OBJECT)
            return err_set(e, E_CONFIG,
                           "rope parameters by layer type ('%.64s') are not "
                           "supported",
                           json_key(v));
    if (read_rope_kind(r, p, e) < 0 || read_partial(p, e) < 0 ||
        get_number(p, "rope_theta", &r->theta, e) < 0)
        return e->code;
    if (r->kind == ROPE_DEFAULT)
        return 0;
    if (get_number(p, "factor", &r->factor, e) < 0 ||
        get_number(p, "low_freq_factor", &r->low_freq_factor, e) < 0 ||
        get_number(p, "high_freq_factor", &r->high_freq_factor, e) < 0 ||
        get_number(p, "original_max_position_embeddings",
                   &r->original_max_position, e) < 0 ||
        get_number(o, "original_max_position_embeddings",
                   &r->original_max_position, e) < 0 ||
        need_rope_fields(r, p, e) < 0)
        return e->code;
    return r->kind == ROPE_YARN ? read_yarn(c, p, e) : 0;
}

static int read_rope(struct model_config *c, const struct json *o,
                     struct err *e)
{
    const struct json *p = member(o, "rope_scaling");

    if (!p || (json_type(p) == JSON_OBJECT && !json_count(p)))
        p = member(o, "rope_parameters");
    return read_rope_fields(c, o, p, e);
}

/* ---- storage ---- */

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

    c->dtype = DT_BF16;
    if (get_string(o, "dtype", &name, e) < 0 ||
        (!name && get_string(o, "torch_dtype", &name, e) < 0))
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
    const struct json *q = member(o, "quantization_config");
    const char *method = "";

    if (!q)
        return 0;
    if (json_type(q) != JSON_OBJECT)
        return err_set(e, E_DATA, "quantization_config is not an object");
    if (get_string(q, "quant_method", &method, e) < 0)
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
    if (json_type(o) != JSON_OBJECT)
        return err_set(e, E_DATA, "not a JSON object");
    if (find_family(c, o, e) < 0 || check_architecture(c, o, e) < 0 ||
        read_sizes(c, o, e) < 0 || read_biases(c, o, e) < 0 ||
        read_sliding(c, o, e) < 0 || read_rope(c, o, e) < 0 ||
        read_dtype(c, o, e) < 0 || read_quantization(c, o, e) < 0)
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
    char path[PATH_MAX], what[PATH_MAX + 2];
    struct json_doc *doc;
    int rc;

    memset(c, 0, sizeof(*c));
    if (snprintf(path, sizeof(path), "%s/config.json", dir) >=
        (int)sizeof(path))
        return err_set(e, E_NOINPUT, "'%.64s...': path is too long", dir);
    if (json_read_file(&doc, path, CONFIG_MAX, e) < 0)
        return e->code;
    snprintf(what, sizeof(what), "'%s'", path);
    rc = read_document(c, doc, what, e);
    json_free(doc);
    return rc;
}

void model_config_release(struct model_config *c)
{
    free(c->layer_slides);
    memset(c, 0, sizeof(*c));
}
