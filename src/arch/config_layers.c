/* config_layers.c - what kind of attention each layer has: sliding windows, linear
 * attention, RoPE or none. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "arch/config.h"
#include "arch/config_parts.h"
#include "arch/fields.h"

/* [n_layers], false; NULL: none. */
static bool *layer_flags(const struct model_config *c, struct err *e)
{
    return mem_zero((size_t)c->n_layers, sizeof(bool), "layers", e);
}

/* ---- sliding window ---- */

/* Read layer_types into c->layer_slides. */
static int read_layer_types(struct model_config *c, const struct json *list,
                            struct err *e)
{
    const char *slides = c->family->sliding == SLIDING_CHUNKS ?
                             "chunked_attention" :
                             "sliding_attention";
    const struct json *v;
    const char *type;
    int64_t i = 0;

    if (json_type(list) != JSON_ARRAY ||
        json_count(list) != (size_t)c->n_layers)
        return err_set(e, E_DATA,
                       "layer_types is not an array of num_hidden_layers "
                       "%lld strings",
                       (long long)c->n_layers);
    c->layer_slides = layer_flags(c, e);
    if (!c->layer_slides)
        return e->code;
    for (v = json_first(list); v; v = json_after(v), i++) {
        if (!json_string(v, &type))
            return err_set(e, E_DATA, "layer_types[%lld] is not a string",
                           (long long)i);
        if (c->layer_linear && c->layer_linear[i])
            continue; /* read_linear() */
        c->layer_slides[i] = !strcmp(type, slides);
        if (!c->layer_slides[i] && strcmp(type, "full_attention") &&
            !(c->layer_linear && !strcmp(type, "attention")))
            return err_set(e, E_CONFIG,
                           "layer_types: '%.64s' is not supported "
                           "(full_attention and %s are)",
                           type, slides);
    }
    return 0;
}

/* Refuse layer_types that the family's model code in transformers would not
 * follow. */
static int check_layer_types(const struct model_config *c, struct err *e)
{
    enum sliding s = c->family->sliding;
    bool all = (s == SLIDING_ALL || s == SLIDING_IF_USED) &&
               c->sliding_window && !c->family->by_type;

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

/* Without layer_types: by sliding_window_pattern or max_window_layers; chunks in
 * layers with RoPE. */
static int slide_by_number(struct model_config *c, const struct json *o,
                           struct err *e)
{
    enum sliding s = c->family->sliding;
    bool pattern = s == SLIDING_PATTERN;
    int64_t n = pattern ? c->family->pattern : 28;

    if (s != SLIDING_CHUNKS &&
        field_int(o, pattern ? "sliding_window_pattern" : "max_window_layers",
                  pattern, INT_MAX, &n, e) < 0)
        return e->code;
    c->layer_slides = layer_flags(c, e);
    if (!c->layer_slides)
        return e->code;
    for (int64_t i = 0; i < c->n_layers; i++)
        c->layer_slides[i] = s == SLIDING_CHUNKS ? !c->layer_nope[i] :
                             pattern             ? (i + 1) % n != 0 :
                             s == SLIDING_EVEN   ? i < n && i % 2 == 0 :
                                                   i >= n;
    return 0;
}

static int read_sliding(struct model_config *c, const struct json *o,
                        struct err *e)
{
    enum sliding s = c->family->sliding;
    const char *key =
        s == SLIDING_CHUNKS ? "attention_chunk_size" : "sliding_window";
    bool use = s == SLIDING_ALL || s >= SLIDING_PATTERN;
    bool by_layer = s >= SLIDING_FROM;

    if (s && !use && field_bool(o, "use_sliding_window", &use, e) < 0)
        return e->code;
    if (use) {
        c->sliding_window = json_get(o, key) || c->family->no_window ? 0 :
                            c->family->window ? c->family->window :
                                                4096;
        if (field_int(o, key, 1, MAX_POSITION, &c->sliding_window, e) < 0)
            return e->code;
    }
    if (c->family->indexer) /* layer_types is all "indexed_attention" */
        return 0;
    if (field_get(o, "layer_types"))
        return read_layer_types(c, field_get(o, "layer_types"), e) < 0 ||
                       check_layer_types(c, e) < 0 ?
                   e->code :
                   0;
    if (c->sliding_window && c->family->nope_layers && s != SLIDING_CHUNKS)
        return err_set(e, E_DATA, "layer_types is missing");
    return c->sliding_window && by_layer ? slide_by_number(c, o, e) : 0;
}

bool model_layer_slides(const struct model_config *c, int64_t layer)
{
    return c->sliding_window && (!c->layer_slides || c->layer_slides[layer]);
}

/* ---- linear attention ---- */

/* time_step_limit, whose upper end may be no number (infinity). */
static int read_steps(struct delta *d, const struct json *list, struct err *e)
{
    const struct json *hi;

    d->step_max = HUGE_VAL;
    if (!list)
        return 0;
    if (json_type(list) != JSON_ARRAY || json_count(list) != 2 ||
        !json_number(json_first(list), &d->step_min) ||
        (hi = json_after(json_first(list)),
         json_type(hi) == JSON_NUMBER && !json_number(hi, &d->step_max)) ||
        d->step_min < 0 || d->step_max < d->step_min)
        return err_set(e, E_DATA, "time_step_limit is no range");
    return 0;
}

/* c->delta of Mamba 2; defaults are those of GraniteMoeHybridConfig. */
static int read_mamba(struct model_config *c, const struct json *o,
                      struct err *e)
{
    struct delta *d = &c->delta;
    const struct json *dim = field_get(o, "mamba_d_head");
    const char *word;
    int64_t expand = 2;

    *d = (struct delta){ .k_heads = 1,
                         .v_heads = 128,
                         .k_dim = 256,
                         .kernel = 4,
                         .conv_bias = true };
    if (field_int(o, "mamba_n_groups", 1, 1 << 16, &d->k_heads, e) < 0 ||
        field_int(o, "mamba_n_heads", 1, 1 << 16, &d->v_heads, e) < 0 ||
        field_int(o, "mamba_d_state", 1, HEAD_DIM_MAX, &d->k_dim, e) < 0 ||
        field_int(o, "mamba_d_conv", 1, 64, &d->kernel, e) < 0 ||
        field_int(o, "mamba_expand", 1, 64, &expand, e) < 0 ||
        field_bool(o, "mamba_conv_bias", &d->conv_bias, e) < 0 ||
        field_bool(o, "mamba_proj_bias", &d->bias, e) < 0 ||
        read_steps(d, field_get(o, "time_step_limit"), e) < 0)
        return e->code;
    d->v_dim = expand * c->hidden_size / d->v_heads;
    if (!json_string(dim, &word) &&
        field_int(o, "mamba_d_head", 1, HEAD_DIM_MAX, &d->v_dim, e) < 0)
        return e->code;
    if (d->v_heads % d->k_heads || d->v_dim > HEAD_DIM_MAX ||
        d->v_dim * d->v_heads != expand * c->hidden_size)
        return err_set(e, E_DATA,
                       "mamba_n_heads %lld, in mamba_n_groups %lld, of "
                       "mamba_d_head %lld do not make mamba_expand %lld times "
                       "hidden_size",
                       (long long)d->v_heads, (long long)d->k_heads,
                       (long long)d->v_dim, (long long)expand);
    return 0;
}

static int read_rule(struct model_config *c, const struct json *o,
                     struct err *e)
{
    struct delta *d = &c->delta;

    *d = (struct delta){
        .k_heads = 16, .v_heads = 32, .k_dim = 128, .v_dim = 128, .kernel = 4
    };
    if (field_int(o, "linear_num_key_heads", 1, 1 << 16, &d->k_heads, e) < 0 ||
        field_int(o, "linear_num_value_heads", 1, 1 << 16, &d->v_heads, e) <
            0 ||
        field_int(o, "linear_key_head_dim", 1, HEAD_DIM_MAX, &d->k_dim, e) <
            0 ||
        field_int(o, "linear_value_head_dim", 1, HEAD_DIM_MAX, &d->v_dim, e) <
            0 ||
        field_int(o, "linear_conv_kernel_dim", 1, 64, &d->kernel, e) < 0)
        return e->code;
    return field_multiple("linear_num_value_heads", d->v_heads,
                          "linear_num_key_heads", d->k_heads, e);
}

/* c->delta of Kimi Delta Attention, from linear_attn_config (or NULL) or members
 * of config.json's own. */
static int read_kda(struct model_config *c, const struct json *o,
                    const struct json *in, struct err *e)
{
    struct delta *d = &c->delta;
    bool nope = true;

    *d = (struct delta){ .k_heads = 32, .k_dim = 128, .kernel = 4 };
    if (in && json_type(in) != JSON_OBJECT)
        return err_set(e, E_DATA, "linear_attn_config is not an object");
    if (field_bool(o, "mla_use_nope", &nope, e) < 0)
        return e->code;
    if (!nope)
        return err_set(e, E_CONFIG, "mla_use_nope false is not supported");
    if (field_int(in ? in : o, in ? "num_heads" : "linear_num_heads", 1,
                  1 << 16, &d->k_heads, e) < 0 ||
        field_int(in ? in : o, in ? "head_dim" : "linear_head_dim", 1,
                  HEAD_DIM_MAX, &d->k_dim, e) < 0 ||
        field_int(in ? in : o,
                  in ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 1,
                  64, &d->kernel, e) < 0)
        return e->code;
    d->v_heads = d->k_heads;
    d->v_dim = d->k_dim;
    return 0;
}

/* Without layer_types: linear_attn_config's full_attn_layers, counted from 1,
 * else layers 4, 8, ... have full attention. */
static int kda_layers(struct model_config *c, const struct json *in,
                      struct err *e)
{
    const struct json *list = in ? field_get(in, "full_attn_layers") : NULL;
    int64_t n;

    for (int64_t i = 0; i < c->n_layers; i++)
        c->layer_linear[i] = list || !i || i % 4;
    if (list && json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "full_attn_layers is not an array");
    for (const struct json *v = list ? json_first(list) : NULL; v;
         v = json_after(v)) {
        if (!json_int(v, &n) || n < 1 || n > c->n_layers)
            return err_set(e, E_DATA,
                           "full_attn_layers: not the number of a layer");
        c->layer_linear[n - 1] = false;
    }
    return 0;
}

/* c->delta and c->layer_linear: by layer_types, else all layers but every
 * full_attention_interval-th; of Mamba 2 all layers. */
static int read_linear(struct model_config *c, const struct json *o,
                       struct err *e)
{
    bool mamba = c->family->delta == DELTA_MAMBA;
    bool kda = c->family->delta == DELTA_CHANNELS;
    const struct json *in = kda ? field_get(o, "linear_attn_config") : NULL;
    const struct json *list = field_get(o, "layer_types"), *v;
    const char *type = "";
    int64_t every = mamba ? INT_MAX : 4, i = 0;

    if (!c->family->delta)
        return 0;
    if ((kda ? read_kda(c, o, in, e) :
               (mamba ? read_mamba : read_rule)(c, o, e)) < 0 ||
        field_int(o, "full_attention_interval", 1, INT_MAX, &every, e) < 0)
        return e->code;
    c->layer_linear = layer_flags(c, e);
    if (!c->layer_linear)
        return e->code;
    if (kda && !list)
        return kda_layers(c, in, e);
    v = list && json_type(list) == JSON_ARRAY ? json_first(list) : NULL;
    for (; i < c->n_layers; i++, v = v ? json_after(v) : NULL)
        c->layer_linear[i] =
            v ? json_string(v, &type) && (!strcmp(type, "linear_attention") ||
                                          (mamba && !strcmp(type, "mamba"))) :
                (i + 1) % every != 0;
    return 0;
}

bool model_layer_linear(const struct model_config *c, int64_t layer)
{
    return c->layer_linear && c->layer_linear[layer];
}

/* ---- layers without RoPE ---- */

/* c->query_growth; attn_temperature_tuning is a number in some checkpoints. */
static int read_growth(struct model_config *c, const struct json *o,
                       struct err *e)
{
    const struct json *on = field_get(o, "attn_temperature_tuning");
    struct query_growth *g = &c->query_growth;
    int64_t number = 1;

    if (!c->family->query_growth)
        return 0;
    *g = (struct query_growth){ .scale = 0.1, .floor = 8192 };
    if (on && !json_int(on, &number)) {
        bool is = true;

        if (field_bool(o, "attn_temperature_tuning", &is, e) < 0)
            return e->code;
        number = is;
    }
    if (field_number(o, "attn_scale", &g->scale, e) < 0 ||
        field_int(o, "floor_scale", 1, MAX_POSITION, &g->floor, e) < 0)
        return e->code;
    if (!number)
        g->scale = 0;
    return 0;
}

float query_factor(const struct query_growth *g, int64_t t)
{
    return g->scale > 0 ?
               1 + (float)(g->scale * log1p((double)((t + 1) / g->floor))) :
               1;
}

/* All layers, unless position_embedding_type is rope. */
static int nope_by_key(struct model_config *c, const struct json *o,
                       struct err *e)
{
    const char *type = "nope";

    if (field_string(o, "position_embedding_type", &type, e) < 0)
        return e->code;
    if (!strcmp(type, "rope"))
        return 0;
    c->layer_nope = layer_flags(c, e);
    for (int64_t i = 0; c->layer_nope && i < c->n_layers; i++)
        c->layer_nope[i] = true;
    return c->layer_nope ? 0 : e->code;
}

static int read_nope(struct model_config *c, const struct json *o,
                     struct err *e)
{
    const struct json *list = field_get(o, "no_rope_layers"), *v;
    int64_t every = 4, has = 0, i = 0;

    if (c->family->rope_by_key)
        return nope_by_key(c, o, e);
    if (!c->family->nope_layers)
        return 0;
    if (field_int(o, "no_rope_layer_interval", 1, INT_MAX, &every, e) < 0)
        return e->code;
    if (list && json_type(list) == JSON_ARRAY && !json_count(list))
        list = NULL; /* Llama 4's [] */
    if (list && (json_type(list) != JSON_ARRAY ||
                 json_count(list) < (size_t)c->n_layers))
        return err_set(e, E_DATA,
                       "no_rope_layers is not an array of num_hidden_layers "
                       "%lld numbers",
                       (long long)c->n_layers);
    c->layer_nope = layer_flags(c, e);
    if (!c->layer_nope || read_growth(c, o, e) < 0)
        return e->code;
    v = list ? json_first(list) : NULL;
    for (; i < c->n_layers; i++, v = v ? json_after(v) : NULL) {
        if (v && (!json_int(v, &has) || has < 0 || has > 1))
            return err_set(e, E_DATA, "no_rope_layers[%lld] is neither 0 nor 1",
                           (long long)i);
        c->layer_nope[i] = v ? !has : (i + 1) % every == 0;
    }
    return 0;
}

const struct rope *model_layer_rope(const struct model_config *c, int64_t layer)
{
    if (c->layer_nope && c->layer_nope[layer])
        return NULL;
    return c->family->rope_by_type && model_layer_slides(c, layer) ?
               &c->local_rope :
               &c->rope;
}

int config_read_layers(struct model_config *c, const struct json *o,
                       struct err *e)
{
    bool both = false; /* gemma3_text: tokens see those behind them, too */

    if (field_bool(o, "use_bidirectional_attention", &both, e) < 0)
        return e->code;
    if (both)
        return err_set(e, E_CONFIG,
                       "use_bidirectional_attention is not supported");
    return read_linear(c, o, e) < 0 || read_nope(c, o, e) < 0 ||
                   read_sliding(c, o, e) < 0 ?
               e->code :
               0;
}
