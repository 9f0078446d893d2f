/* relative.c - of a model that is not supported, the nearest relative that is: of the
 * same maker's name and with the same parts, or else of the same parts. */
#include <stdio.h>
#include <string.h>

#include "arch/config.h"
#include "arch/config_parts.h"
#include "arch/fields.h"

static bool has(const struct json *o, const char *const *keys)
{
    for (; *keys; keys++)
        if (field_get(o, *keys))
            return true;
    return false;
}

#define HAS(o, ...) has(o, (const char *const[]){ __VA_ARGS__, NULL })

/* Parts that a config speaks of. */
struct parts {
    bool latent, experts, indexer, linear, state, rms;
};

static struct parts parts_of(const struct json *o)
{
    return (struct parts){
        .latent = HAS(o, "kv_lora_rank"),
        .experts = HAS(o, "n_routed_experts", "num_experts",
                       "num_local_experts", "moe_num_experts"),
        .indexer = HAS(o, "index_topk"),
        .linear = HAS(o, "linear_num_value_heads", "linear_attn_config"),
        .state = HAS(o, "mamba_d_state", "mamba_n_heads", "ssm_state_size",
                     "state_size"),
        .rms = HAS(o, "rms_norm_eps") ||
               !HAS(o, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    };
}

/* Length of the maker's name: "qwen" of qwen3_moe. */
static size_t maker(const char *model_type)
{
    return strcspn(model_type, "0123456789_");
}

/* How much alike two names are; 0: of different makers. */
static size_t alike(const char *a, const char *b)
{
    size_t n = 0, m = 0, la = strlen(a), lb = strlen(b);

    if (maker(a) != maker(b) || strncmp(a, b, maker(a)))
        return 0;
    while (n < la && n < lb && a[n] == b[n])
        n++;
    while (m < la - n && m < lb - n && a[la - 1 - m] == b[lb - 1 - m])
        m++;
    return 3 * n + m;
}

/* Parts that a family and a config have both, or neither. */
static size_t shared(const struct family *f, const struct parts *p)
{
    return (f->mla == p->latent) + (!!f->router == p->experts) +
           (f->indexer == p->indexer) + (!!f->delta == p->linear);
}

enum { PART = 64 }; /* a part counts as much as 21 letters of a name */

/* NULL: none. */
static const char *nearest(const char *model_type, const struct parts *p)
{
    const struct family *f;
    const char *name = NULL;
    size_t best = 0;

    for (size_t i = 0; p->rms && (f = family_at(i)); i++) {
        size_t n = alike(f->model_type, model_type);

        n = n ? n + PART * shared(f, p) : 0;
        if (n > best) {
            best = n;
            name = f->model_type;
        }
    }
    if (name)
        return name;
    return p->latent  ? "deepseek_v3" :
           p->linear  ? "qwen3_next" :
           p->state   ? "granitemoehybrid" :
           !p->rms    ? NULL :
           p->experts ? "qwen3_moe" :
                        "llama";
}

int family_refuse(const char *model_type, const struct json *o, struct err *e)
{
    struct parts p = parts_of(o);
    const char *name = nearest(model_type, &p);

    return name ? err_set(e, E_CONFIG,
                          "model_type '%.64s' is not supported (its nearest "
                          "relative that is: %s)",
                          model_type, name) :
                  err_set(e, E_CONFIG,
                          "model_type '%.64s' is not supported, and no "
                          "relative of it is",
                          model_type);
}

int wrapper_refuse(const char *model_type, struct err *e)
{
    const struct wrapper *w;
    char known[256] = "";
    const char *name = NULL;
    size_t best = 0, at = 0;

    for (size_t i = 0; (w = wrapper_at(i)) && at < sizeof(known); i++) {
        size_t n = alike(w->model_type, model_type);

        if (n > best) {
            best = n;
            name = w->model_type;
        }
        at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s",
                               i ? ", " : "", w->model_type);
    }
    return err_set(e, E_CONFIG,
                   "text_config: of multimodal models '%.64s' is not supported "
                   "(%s %s)",
                   model_type, name ? "its nearest relative that is:" : known,
                   name ? name : "are");
}
