/* config_altup.c - Gemma 3n: its residual streams, layers' own inputs, shared
 * keys and values, widths and sparsity by layer.  See struct altup. */
#include <math.h>

#include "arch/config.h"
#include "arch/config_parts.h"
#include "arch/fields.h"

/* The member, an array of num_hidden_layers; NULL: absent, or (*e is set) no
 * such array. */
static int layer_list(const struct model_config *c, const struct json *o,
                      const char *key, const struct json **list, struct err *e)
{
    *list = field_get(o, key);
    if (*list && (json_type(*list) != JSON_ARRAY ||
                  json_count(*list) != (size_t)c->n_layers))
        return err_set(e, E_DATA,
                       "%s is not an array of num_hidden_layers %lld numbers",
                       key, (long long)c->n_layers);
    return 0;
}

/* intermediate_size: one for all layers, or one for each. */
static int read_widths(struct model_config *c, const struct json *o,
                       struct err *e)
{
    static const char key[] = "intermediate_size";
    const struct json *list = field_get(o, key), *v;
    int64_t i = 0;

    if (!list || json_type(list) != JSON_ARRAY)
        return field_need(o, key, MAX_WIDTH, &c->intermediate_size, e);
    if (layer_list(c, o, key, &list, e) < 0)
        return e->code;
    c->layer_width =
        mem_zero((size_t)c->n_layers, sizeof(*c->layer_width), "layers", e);
    if (!c->layer_width)
        return e->code;
    for (v = json_first(list); v; v = json_after(v), i++) {
        if (!json_int(v, &c->layer_width[i]) || c->layer_width[i] < 1 ||
            c->layer_width[i] > MAX_WIDTH)
            return err_set(e, E_DATA, "%s[%lld] is out of range", key,
                           (long long)i);
        if (c->layer_width[i] > c->intermediate_size)
            c->intermediate_size = c->layer_width[i];
    }
    return 0;
}

/* x with Phi(x) = p, the normal distribution's: Newton's steps from 0, which go to
 * x from one side. */
static double quantile(double p)
{
    const double density = 1 / sqrt(2 * acos(-1));
    double x = 0;

    for (int i = 0; i < 100; i++)
        x += (p - erfc(-x / sqrt(2)) / 2) / (density * exp(-x * x / 2));
    return x;
}

/* activation_sparsity_pattern: the share of a layer's activations that are to be
 * 0; by default 0.95 in the first ten layers of more than ten. */
static int read_cutoffs(struct model_config *c, const struct json *o,
                        struct err *e)
{
    static const char key[] = "activation_sparsity_pattern";
    const struct json *list, *v;
    int64_t i = 0;

    if (layer_list(c, o, key, &list, e) < 0)
        return e->code;
    c->altup.cutoff =
        mem_zero((size_t)c->n_layers, sizeof(*c->altup.cutoff), "layers", e);
    if (!c->altup.cutoff)
        return e->code;
    v = list ? json_first(list) : NULL;
    for (; i < c->n_layers; i++, v = v ? json_after(v) : NULL) {
        double share = i < 10 && c->n_layers > 10 ? 0.95 : 0;

        if (v && (!json_number(v, &share) || share < 0 || share > 0.9999))
            return err_set(e, E_DATA, "%s[%lld] is no share below 1", key,
                           (long long)i);
        c->altup.cutoff[i] = share > 0 ? quantile(share) : -HUGE_VAL;
    }
    return 0;
}

/* Every kind of layer that uses keys of another one must have one before them. */
static int check_shared(const struct model_config *c, struct err *e)
{
    int64_t own = c->n_layers - c->altup.shared;

    for (int64_t i = own; i < c->n_layers; i++) {
        int64_t k = own - 1;

        while (k >= 0 && model_layer_slides(c, k) != model_layer_slides(c, i))
            k--;
        if (k < 0)
            return err_set(e, E_DATA,
                           "num_kv_shared_layers: layer %lld has no layer of "
                           "its type whose keys it could use",
                           (long long)i);
    }
    return 0;
}

int config_read_altup(struct model_config *c, const struct json *o,
                      struct err *e)
{
    struct altup *a = &c->altup;

    if (!c->family->altup)
        return 0;
    *a = (struct altup){ .n = 4,
                         .rank = 64,
                         .inputs = 256,
                         .vocab_size = 262144,
                         .shared = 15,
                         .scale_corrected = true };
    if (read_widths(c, o, e) < 0 ||
        field_int(o, "altup_num_inputs", 1, ALTUP_STREAMS, &a->n, e) < 0 ||
        field_int(o, "altup_active_idx", 0, a->n - 1, &a->active, e) < 0 ||
        field_bool(o, "altup_correct_scale", &a->scale_corrected, e) < 0 ||
        field_int(o, "laurel_rank", 1, MAX_WIDTH, &a->rank, e) < 0 ||
        field_int(o, "hidden_size_per_layer_input", 1, MAX_WIDTH, &a->inputs,
                  e) < 0 ||
        field_int(o, "vocab_size_per_layer_input", 1, MAX_WIDTH, &a->vocab_size,
                  e) < 0 ||
        field_int(o, "num_kv_shared_layers", 0, c->n_layers - 1, &a->shared,
                  e) < 0 ||
        read_cutoffs(c, o, e) < 0)
        return e->code;
    if (a->shared >= c->n_layers)
        return err_set(e, E_DATA,
                       "num_kv_shared_layers %lld is not below "
                       "num_hidden_layers %lld",
                       (long long)a->shared, (long long)c->n_layers);
    return check_shared(c, e);
}

/* ---- a token's row ---- */

/* Elements of the keys, and of the values, of a token in a layer. */
static int64_t keys_width(const struct model_config *c)
{
    return c->n_kv_heads * c->head_dim;
}

int64_t model_row_stream(const struct model_config *c, int64_t i)
{
    return c->hidden_size * (1 + i);
}

bool model_layer_shares(const struct model_config *c, int64_t layer)
{
    return layer >= c->n_layers - c->altup.shared;
}

int64_t model_row_keys(const struct model_config *c, int64_t layer)
{
    bool slides = model_layer_slides(c, layer);
    int64_t next = layer + 1;

    if (!c->altup.shared)
        return 0;
    /* the last of its kind that has keys keeps them */
    while (next < c->n_layers && model_layer_slides(c, next) != slides)
        next++;
    if (!model_layer_shares(c, layer) &&
        (next == c->n_layers || !model_layer_shares(c, next)))
        return 0;
    return model_row_stream(c, c->altup.n) + 2 * slides * keys_width(c);
}

int64_t model_row_input(const struct model_config *c, int64_t layer)
{
    return model_row_stream(c, c->altup.n) +
           (c->altup.shared ? 4 * keys_width(c) : 0) + layer * c->altup.inputs;
}

int64_t model_row(const struct model_config *c)
{
    return c->family->altup ? model_row_input(c, c->n_layers) : c->hidden_size;
}
