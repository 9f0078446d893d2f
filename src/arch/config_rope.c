/* config_rope.c - RoPE parameters of config.json, in all spellings. */
#include <math.h>
#include <string.h>

#include "arch/config.h"
#include "arch/config_parts.h"
#include "arch/fields.h"

static const struct {
    const char *name;
    enum rope_kind kind;
} rope_kinds[] = {
    { "default", ROPE_DEFAULT }, { "linear", ROPE_LINEAR },
    { "llama3", ROPE_LLAMA3 },   { "yarn", ROPE_YARN },
    { "dynamic", ROPE_DYNAMIC }, { "longrope", ROPE_LONGROPE },
    { "su", ROPE_LONGROPE },
};

static int read_rope_kind(struct model_config *c, const struct json *p,
                          struct err *e)
{
    const char *name = NULL;
    struct rope *r = &c->rope;

    if (field_string(p, "rope_type", &name, e) < 0 ||
        (!name && field_string(p, "type", &name, e) < 0))
        return e->code;
    if (name && c->family->mrope && !strcmp(name, "mrope"))
        name = "default";
    if (name && c->family->longrope_only && !strcmp(name, "yarn"))
        name = "longrope";
    for (size_t i = 0; i < ARRAY_LEN(rope_kinds); i++)
        if (!strcmp(name ? name : "default", rope_kinds[i].name)) {
            r->kind = rope_kinds[i].kind;
            if (!c->family->longrope_only || r->kind == ROPE_DEFAULT ||
                r->kind == ROPE_LONGROPE)
                return 0;
            return err_set(e, E_CONFIG,
                           "rope type '%s' is not supported (of %s models, "
                           "default and longrope are)",
                           name, c->family->model_type);
        }
    return err_set(e, E_CONFIG,
                   "rope type '%.64s' is not supported (default, linear, "
                   "llama3, yarn, dynamic and longrope are)",
                   name);
}

/* partial_rotary_factor of object o, config.json or its rope parameters. */
static int read_partial(struct model_config *c, const struct json *o,
                        struct err *e)
{
    double part = 1;

    if (!field_get(o, "partial_rotary_factor"))
        return 0;
    if (field_number(o, "partial_rotary_factor", &part, e) < 0)
        return e->code;
    if (part > 1 || (part != 1 && c->family->partial_rotary <= 0))
        return err_set(e, E_CONFIG, "partial_rotary_factor %g is not supported",
                       part);
    if (c->family->partial_rotary > 0)
        c->rotary = (int64_t)((double)c->head_dim * part);
    return 0;
}

/* o: config.json, p: its rope parameters or NULL. */
static int read_rotary(struct model_config *c, const struct json *o,
                       const struct json *p, struct err *e)
{
    double part = c->family->partial_rotary;

    if (part != 0)
        c->rotary = (int64_t)((double)c->head_dim * part);
    if (read_partial(c, o, e) < 0 || (p && read_partial(c, p, e) < 0))
        return e->code;
    if (part != 0 &&
        field_int(o, "rotary_dim", 1, c->head_dim, &c->rotary, e) < 0)
        return e->code;
    if (c->rotary < 2 || c->rotary % 2)
        return err_set(e, E_CONFIG,
                       "%lld of a head's %lld dims turn: an even number "
                       "is supported",
                       (long long)c->rotary, (long long)c->head_dim);
    return 0;
}

double rope_yarn_attention(double factor, double mscale, double all_dim)
{
    double l = factor <= 1 ? 0 : 0.1 * log(factor);

    return mscale != 0 && all_dim != 0 ? (mscale * l + 1) / (all_dim * l + 1) :
                                         l + 1;
}

/* E_DATA if a parameter is missing that the kind needs. */
static int need_rope_fields(const struct rope *r, const struct json *p,
                            struct err *e)
{
    const char *need[] = { "factor", "low_freq_factor", "high_freq_factor" };
    size_t n = r->kind == ROPE_LLAMA3                            ? 3 :
               r->kind == ROPE_LINEAR || r->kind == ROPE_DYNAMIC ? 1 :
                                                                   0;

    for (size_t i = 0; i < n; i++)
        if (!field_get(p, need[i]))
            return err_set(e, E_DATA, "rope parameters: %s is missing",
                           need[i]);
    if (r->kind == ROPE_LLAMA3 && r->high_freq_factor < r->low_freq_factor)
        return err_set(e, E_DATA,
                       "rope parameters: high_freq_factor %g is below "
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
    if (!field_get(p, "factor"))
        r->factor = (double)c->max_position / r->original_max_position;
    if (field_number(p, "beta_fast", &r->beta_fast, e) < 0 ||
        field_number(p, "beta_slow", &r->beta_slow, e) < 0 ||
        field_bool(p, "truncate", &r->truncate, e) < 0)
        return e->code;
    /* transformers treats 0 like an absent member here */
    if (field_get(p, "mscale") && !json_number(field_get(p, "mscale"), &mscale))
        return err_set(e, E_DATA, "mscale is not a number");
    if (field_get(p, "mscale_all_dim") &&
        !json_number(field_get(p, "mscale_all_dim"), &all))
        return err_set(e, E_DATA, "mscale_all_dim is not a number");
    r->mscale_all_dim = all;
    r->attention_factor = rope_yarn_attention(r->factor, mscale, all);
    if (r->theta == 1)
        return err_set(e, E_DATA, "rope_theta 1 makes no yarn");
    return field_number(p, "attention_factor", &r->attention_factor, e);
}

/* short_factor of longrope, after c->rotary is known. */
static int read_divisors(struct model_config *c, const struct json *p,
                         struct err *e)
{
    const struct json *list = field_get(p, "short_factor");
    struct rope *r = &c->rope;
    int64_t i = 0;
    double x;

    if (!list || json_type(list) != JSON_ARRAY ||
        json_count(list) != (size_t)c->rotary / 2)
        return err_set(e, E_DATA,
                       "rope parameters: short_factor is not an array of %lld "
                       "numbers",
                       (long long)c->rotary / 2);
    r->divisors =
        mem_alloc((size_t)c->rotary / 2 * sizeof(*r->divisors), "rope", e);
    if (!r->divisors)
        return e->code;
    for (const struct json *v = json_first(list); v; v = json_after(v)) {
        if (!json_number(v, &x) || !isfinite(x) || x <= 0)
            return err_set(e, E_DATA,
                           "rope parameters: short_factor[%lld] is not a "
                           "positive number",
                           (long long)i);
        r->divisors[i++] = (float)x;
    }
    return 0;
}

/* LongRoPE (Ding et al. 2024): cos and sin are multiplied by sqrt(1 + ln f / ln
 * original), f = max_position / original. */
static int read_longrope(struct model_config *c, const struct json *p,
                         struct err *e)
{
    struct rope *r = &c->rope;
    double original = r->original_max_position, f = r->factor;

    if (!field_get(p, "factor"))
        f = (double)c->max_position / original;
    if (f > 1)
        r->attention_factor = sqrt(1 + log(f) / log(original));
    c->longest = (int64_t)original;
    c->longest_by = "original_max_position_embeddings";
    return field_number(p, "attention_factor", &r->attention_factor, e);
}

/* p: rope_scaling or rope_parameters; NULL: neither is given. */
static int read_rope_fields(struct model_config *c, const struct json *o,
                            const struct json *p, struct err *e)
{
    struct rope *r = &c->rope;

    *r = (struct rope){ .theta = 10000, .factor = 1, .attention_factor = 1 };
    if (c->family->theta > 0)
        r->theta = c->family->theta;
    r->original_max_position = (double)c->max_position;
    if (field_number(o, "rope_theta", &r->theta, e) < 0)
        return e->code;
    if (!p)
        return 0;
    for (const struct json *v = json_first(p); v; v = json_after(v))
        if (json_type(v) == JSON_OBJECT)
            return err_set(e, E_CONFIG,
                           "rope parameters by layer type ('%.64s') are not "
                           "supported",
                           json_key(v));
    if (read_rope_kind(c, p, e) < 0 ||
        field_number(p, "rope_theta", &r->theta, e) < 0)
        return e->code;
    if (r->kind == ROPE_DEFAULT)
        return 0;
    if (field_number(p, "factor", &r->factor, e) < 0 ||
        field_number(p, "low_freq_factor", &r->low_freq_factor, e) < 0 ||
        field_number(p, "high_freq_factor", &r->high_freq_factor, e) < 0 ||
        field_number(p, "original_max_position_embeddings",
                     &r->original_max_position, e) < 0 ||
        field_number(o, "original_max_position_embeddings",
                     &r->original_max_position, e) < 0 ||
        need_rope_fields(r, p, e) < 0)
        return e->code;
    if (r->kind == ROPE_LONGROPE)
        return read_longrope(c, p, e);
    return r->kind == ROPE_YARN ? read_yarn(c, p, e) : 0;
}

/* MLA with yarn: scores are multiplied by m(mscale_all_dim)^2 (DeepSeek-V2's
 * softmax_scale). */
static void scale_scores(struct model_config *c)
{
    const struct rope *r = &c->rope;
    double m;

    if (!c->family->mla || r->kind != ROPE_YARN || r->mscale_all_dim == 0 ||
        r->factor <= 1)
        return;
    m = 0.1 * r->mscale_all_dim * log(r->factor) + 1;
    c->attention_scale *= m * m;
}

/* c->local_rope of sliding layers: rope_theta alone, from local (or NULL), else
 * from rope_local_base_freq. */
static int read_local(struct model_config *c, const struct json *o,
                      const struct json *local, struct err *e)
{
    const struct family *f = c->family;
    struct rope *r = &c->local_rope;
    const char *type = "default";

    *r = (struct rope){ .theta = f->local_theta > 0 ? f->local_theta : f->theta,
                        .factor = 1,
                        .attention_factor = 1 };
    if (f->local_theta <= 0 && field_number(o, "rope_theta", &r->theta, e) < 0)
        return e->code;
    if (field_number(o, "rope_local_base_freq", &r->theta, e) < 0)
        return e->code;
    if (!local)
        return 0;
    if (field_number(local, "rope_theta", &r->theta, e) < 0 ||
        field_string(local, "rope_type", &type, e) < 0)
        return e->code;
    if (strcmp(type, "default"))
        return err_set(e, E_CONFIG,
                       "rope type '%.64s' of sliding layers is not supported "
                       "(default is)",
                       type);
    return 0;
}

/* llama_4_scaling_beta 0: queries do not grow with their position. */
static bool does_not_grow(const struct json *p)
{
    double beta = 1;

    return json_number(field_get(p, "llama_4_scaling_beta"), &beta) &&
           beta == 0;
}

int config_read_rope(struct model_config *c, const struct json *o,
                     struct err *e)
{
    const struct json *p = field_get(o, "rope_scaling");
    const struct json *local = NULL;

    if (!p || (json_type(p) == JSON_OBJECT && !json_count(p)))
        p = field_get(o, "rope_parameters");
    if (p && c->family->rope_by_type &&
        (field_get(p, "full_attention") || field_get(p, "sliding_attention"))) {
        local = field_get(p, "sliding_attention");
        p = field_get(p, "full_attention");
    }
    if ((p && json_type(p) != JSON_OBJECT) ||
        (local && json_type(local) != JSON_OBJECT))
        return err_set(e, E_DATA, "rope parameters are not an object");
    if ((c->family->rope_by_type && read_local(c, o, local, e) < 0) ||
        read_rope_fields(c, o, p, e) < 0 || read_rotary(c, o, p, e) < 0 ||
        (c->rope.kind == ROPE_LONGROPE && read_divisors(c, p, e) < 0))
        return e->code;
    if (c->family->rope_given && !p)
        return err_set(e, E_DATA, "rope_parameters is missing");
    if (c->family->position_scale && !(p && does_not_grow(p))) {
        c->longest = (int64_t)c->rope.original_max_position;
        c->longest_by = "original_max_position_embeddings";
    }
    if (c->qk_norm == QK_NORM_UNIT && c->rope.attention_factor != 1)
        return err_set(e, E_CONFIG,
                       "attention_factor %g is not supported in front of norms "
                       "of q and k",
                       c->rope.attention_factor);
    scale_scores(c);
    return 0;
}
