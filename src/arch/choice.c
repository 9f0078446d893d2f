/* choice.c - see choice.h. */
#include "arch/choice.h"

#include <fnmatch.h>

static bool any(const char *const *glob, int n, const char *module)
{
    for (int i = 0; i < n; i++)
        if (fnmatch(glob[i], module, 0) == 0)
            return true;
    return false;
}

bool module_chosen(const struct module_choice *ch, const char *module)
{
    return (!ch->n_modules || any(ch->modules, ch->n_modules, module)) &&
           !any(ch->skip, ch->n_skip, module);
}

void module_choice_apply(const struct module_choice *ch, struct model_config *c)
{
    struct linear l;

    for (int64_t i = 0; i < c->n_layers && c->mla.kv_lora && ch->n_modules;
         i++) {
        model_kv_b(c, i, &l);
        c->kv_b |= module_chosen(ch, l.module);
    }
}

static bool chosen(const struct module_choice *ch, const struct model_config *c,
                   int64_t layer, int64_t i, struct linear *l)
{
    model_linear(c, layer, i, l);
    return module_chosen(ch, l->module);
}

int64_t module_chosen_count(const struct module_choice *ch,
                            const struct model_config *c, int64_t layer)
{
    int64_t n = 0;
    struct linear l;

    for (int64_t i = 0; i < model_linear_count(c, layer); i++)
        n += chosen(ch, c, layer, i, &l);
    return n;
}

bool module_choice_uniform(const struct module_choice *ch,
                           const struct model_config *c)
{
    int64_t n = model_linear_count(c, 0);
    struct linear a, b;

    for (int64_t layer = 1; layer < c->n_layers; layer++) {
        if (model_linear_count(c, layer) != n)
            return false;
        for (int64_t i = 0; i < n; i++)
            if (chosen(ch, c, 0, i, &a) != chosen(ch, c, layer, i, &b))
                return false;
    }
    return true;
}

/* ---- checks ---- */

/* kv_b: kv_b_proj may be meant, too. */
static bool matches(const char *glob, const struct model_config *c, bool kv_b)
{
    struct model_config all = *c;
    struct linear l;

    all.kv_b = c->mla.kv_lora && kv_b;
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        for (int64_t i = 0; i < model_linear_count(&all, layer); i++) {
            model_linear(&all, layer, i, &l);
            if (fnmatch(glob, l.module, 0) == 0)
                return true;
        }
    return false;
}

static int check_globs(const char *option, const char *const *glob, int n,
                       const struct model_config *c, bool kv_b, struct err *e)
{
    struct linear l;

    model_linear(c, 0, 0, &l);
    for (int i = 0; i < n; i++)
        if (!matches(glob[i], c, kv_b))
            return err_set(e, E_CONFIG,
                           "%s: '%.200s' matches none of the linears that are "
                           "quantized, such as '%s'",
                           option, glob[i], l.module);
    return 0;
}

enum fused linear_fused(const struct linear *l)
{
    if (l->expert >= 0)
        return FUSED_EXPERTS;
    switch (l->part) {
    case PART_Q:
    case PART_K:
    case PART_V:
    case PART_MIX:
    case PART_Z: return FUSED_QKV;
    case PART_Q_A:
    case PART_KV_A: return FUSED_LATENT;
    case PART_GATE:
    case PART_UP: return FUSED_GATE_UP;
    default: return FUSED_NONE;
    }
}

const char *fused_words(enum fused kind)
{
    return kind == FUSED_EXPERTS ? "all experts of a layer as one" :
                                   "both as one matrix";
}

static int refuse(const struct linear *a, const struct linear *b, bool first,
                  struct err *e)
{
    const struct linear *in = first ? a : b, *out = first ? b : a;

    return err_set(e, E_CONFIG,
                   "--modules, --skip: '%s' is quantized and '%s' is not: "
                   "runtimes load %s, and want them alike",
                   in->module, out->module, fused_words(linear_fused(a)));
}

/* *n += the number of the layer's linears that are quantized. */
static int check_layer(const struct module_choice *ch,
                       const struct model_config *c, int64_t layer, int64_t *n,
                       struct err *e)
{
    struct linear first[FUSED_KINDS], l; /* the first linear of each kind */
    bool seen[FUSED_KINDS] = { false }, quantized[FUSED_KINDS];

    for (int64_t i = 0; i < model_linear_count(c, layer); i++) {
        bool is = chosen(ch, c, layer, i, &l);
        enum fused kind = linear_fused(&l);

        *n += is;
        if (kind != FUSED_NONE && seen[kind] && quantized[kind] != is)
            return refuse(&first[kind], &l, quantized[kind], e);
        if (!seen[kind])
            first[kind] = l;
        quantized[kind] = is;
        seen[kind] = true;
    }
    return 0;
}

int module_choice_check(const struct module_choice *ch,
                        const struct model_config *c, struct err *e)
{
    int64_t n = 0;

    if (check_globs("--modules", ch->modules, ch->n_modules, c, true, e) < 0 ||
        check_globs("--skip", ch->skip, ch->n_skip, c, ch->n_modules, e) < 0)
        return e->code;
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        if (check_layer(ch, c, layer, &n, e) < 0)
            return e->code;
    return n ? 0 :
               err_set(e, E_CONFIG,
                       "--modules, --skip: no linear is left to quantize");
}
