/* complete.c - see complete.h. */
#include "shard/complete.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/math/quant.h"
#include "layout/unpack.h"

enum { NAME_MAX_LEN = 1024 };

static int by_name(const void *a, const void *b)
{
    const struct named *x = a, *y = b;

    return strcmp(x->name, y->name);
}

void named_sort(struct named_set *set)
{
    if (set->n)
        qsort(set->item, set->n, sizeof(*set->item), by_name);
}

int named_from_checkpoint(struct named_set *set, const struct checkpoint *c,
                          struct err *e)
{
    set->n = checkpoint_count(c);
    set->item = mem_alloc(set->n * sizeof(*set->item), "names", e);
    if (!set->item)
        return e->code;
    for (size_t i = 0; i < set->n; i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);

        set->item[i] = (struct named){ t->name, t->dtype, t->ndim, t->dims };
    }
    named_sort(set);
    return 0;
}

static const struct named *find(const struct named_set *set, const char *name)
{
    struct named key = { .name = name };

    return set->n ? bsearch(&key, set->item, set->n, sizeof(key), by_name) :
                    NULL;
}

static const struct named *find2(const struct named_set *set,
                                 const char *module, const char *part)
{
    char name[NAME_MAX_LEN];

    if ((size_t)snprintf(name, sizeof(name), "%s.%s", module, part) >=
        sizeof(name))
        return NULL;
    return find(set, name);
}

bool complete_is_packed(const struct named_set *out, const char *module,
                        const struct run_facts *facts)
{
    return facts &&
           find2(out, module, layout_part(facts->layout, true, false, 0));
}

struct module_grid complete_grid(const struct named_set *out,
                                 const char *module, uint64_t cols,
                                 const struct run_facts *facts)
{
    struct module_grid g = { facts->group, facts->symmetric, facts->bits };
    bool ct = facts->layout == LAYOUT_CT;
    const struct named *codes, *scales;
    uint64_t groups;

    if (!facts->mixed)
        return g;
    codes = find2(out, module, layout_part(facts->layout, true, false, 0));
    scales = find2(out, module, ct ? "weight_scale" : "scales");
    if (ct)
        g.symmetric = !find2(out, module, "weight_zero_point");
    if (!codes || !scales || codes->ndim != 2 || scales->ndim != 2)
        return g;
    for (int bits = 4; bits <= 8; bits += 4)
        if (layout_takes_bits(facts->layout, bits) &&
            unpack_words(cols, bits) == codes->dims[ct ? 1 : 0])
            g.bits = bits;
    groups = scales->dims[ct ? 1 : 0];
    if (groups && quant_groups(cols, facts->group) != groups &&
        cols % groups == 0)
        g.group = cols / groups;
    return g;
}

bool packed_next(struct packed_walk *w)
{
    for (; w->layer < w->config->n_layers; w->layer++, w->number = 0)
        while (w->number < model_linear_count(w->config, w->layer)) {
            model_linear(w->config, w->layer, w->number++, &w->l);
            if (!complete_is_packed(w->out, w->l.module, w->facts))
                continue;
            w->grid = complete_grid(w->out, w->l.module, (uint64_t)w->l.cols,
                                    w->facts);
            return true;
        }
    return false;
}

/* ---- one module ---- */

/* The tensor that a part of a linear [rows, cols] must be. */
static struct named expected(const struct run_facts *f, const char *part,
                             struct module_grid g, uint64_t rows, uint64_t cols,
                             uint64_t dims[3])
{
    uint64_t groups = quant_groups(cols, g.group);
    struct named x = { part, DT_I32, 2, dims };
    bool awq = f->layout == LAYOUT_AWQ, cpu = f->layout == LAYOUT_INT4PACK;

    if (!strcmp(part, "qweight")) {
        dims[0] = awq ? cols : unpack_words(cols, g.bits);
        dims[1] = awq ? rows / 8 : rows;
    } else if (!strcmp(part, "qzeros")) {
        dims[0] = groups;
        dims[1] = unpack_words(rows, g.bits);
    } else if (!strcmp(part, "scales")) {
        x.dtype = f->scale_dtype;
        dims[0] = groups;
        dims[1] = rows;
    } else if (!strcmp(part, "g_idx") || !strcmp(part, "weight_g_idx") ||
               !strcmp(part, "input_perm")) {
        x.ndim = 1;
        dims[0] = cols;
    } else if (!strcmp(part, "weight_packed")) {
        dims[0] = rows;
        dims[1] = unpack_words(cols, g.bits);
    } else if (!strcmp(part, "weight_scale")) {
        x.dtype = f->scale_dtype;
        dims[0] = rows;
        dims[1] = groups;
    } else if (!strcmp(part, "weight_zero_point")) {
        dims[0] = unpack_words(rows, g.bits);
        dims[1] = groups;
    } else if (!strcmp(part, "weight_int4pack")) {
        x.dtype = cpu ? DT_U8 : DT_I32;
        dims[0] = rows;
        dims[1] = cpu ? cols / 2 : cols / 8;
    } else if (!strcmp(part, "scales_and_zeros")) {
        x.dtype = f->scale_dtype;
        x.ndim = 3;
        dims[0] = groups;
        dims[1] = rows;
        dims[2] = 2;
    } else if (!strcmp(part, "zeros")) {
        x.dtype = DT_I8;
        dims[0] = groups;
        dims[1] = rows;
    } else { /* weight_shape */
        x.dtype = DT_I64;
        x.ndim = 1;
        dims[0] = 2;
    }
    return x;
}

static bool same_shape(const struct named *a, const struct named *b)
{
    return a->ndim == b->ndim &&
           !memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof(*a->dims));
}

static int check_packed(const struct completeness *c,
                        const struct named_set *out, const char *module,
                        uint64_t rows, uint64_t cols, struct err *e)
{
    struct module_grid g = complete_grid(out, module, cols, c->facts);
    const char *part;

    for (int i = 0; (part = layout_part(c->facts->layout, g.symmetric,
                                        c->facts->act_order, i));
         i++) {
        const struct named *t = find2(out, module, part);
        uint64_t dims[3];
        struct named want = expected(c->facts, part, g, rows, cols, dims);

        if (!t)
            return err_set(e, E_DATA, "'%s.%s' is missing", module, part);
        if (t->dtype != want.dtype || !same_shape(t, &want))
            return err_set(e, E_DATA,
                           "'%s.%s' is no %s of the shape that a %" PRIu64
                           " x %" PRIu64 " linear needs in layout %s, %d bits, "
                           "group %" PRIu64,
                           module, part, dtype_name(want.dtype), rows, cols,
                           layout_name(c->facts->layout), g.bits, g.group);
    }
    return 0;
}

static int check_linear(const struct completeness *c,
                        const struct named_set *out, const struct linear *l,
                        struct err *e)
{
    uint64_t dims[2] = { (uint64_t)l->rows, (uint64_t)l->cols };
    struct named want = { NULL, DT_NONE, 2, dims };
    const struct named *plain = find2(out, l->module, "weight");
    bool packed = complete_is_packed(out, l->module, c->facts);

    if (plain && packed)
        return err_set(e, E_DATA, "'%s' is there twice: quantized and plain",
                       l->module);
    if (!plain && !packed)
        return err_set(e, E_DATA,
                       "'%s.weight' is missing, and so is its "
                       "quantized form",
                       l->module);
    if (plain && (!dtype_is_float(plain->dtype) || !same_shape(plain, &want)))
        return err_set(e, E_DATA,
                       "'%s.weight' is no float tensor of %" PRId64
                       " x %" PRId64,
                       l->module, l->rows, l->cols);
    if (l->bias && !find2(out, l->module, "bias"))
        return err_set(e, E_DATA, "'%s.bias' is missing", l->module);
    return packed ? check_packed(c, out, l->module, dims[0], dims[1], e) : 0;
}

static int check_linears(const struct completeness *c,
                         const struct named_set *out, struct err *e)
{
    struct linear l;

    for (int64_t layer = 0; layer < c->config->n_layers; layer++) {
        int64_t n = model_linear_count(c->config, layer);

        for (int64_t i = 0; i < n; i++) {
            model_linear(c->config, layer, i, &l);
            if (check_linear(c, out, &l, e))
                return e->code;
        }
    }
    return 0;
}

/* Warn of linears that vLLM fuses into one (q, k, v; gate and up), but that are
 * not all plain or all packed.  Other loaders accept that. */
static void advise_fused(const struct completeness *c,
                         const struct named_set *out, int64_t layer)
{
    static const struct {
        int first, last; /* enum linear_part, inclusive */
    } fused[] = { { PART_Q, PART_V },
                  { PART_Q_A, PART_KV_A },
                  { PART_GATE, PART_UP } };
    struct linear a, b;

    for (int64_t i = 0; i < model_linear_common(c->config, layer); i++) {
        bool packed;

        model_linear(c->config, layer, i, &a);
        packed = complete_is_packed(out, a.module, c->facts);
        for (int64_t k = 0; k < i; k++) {
            model_linear(c->config, layer, k, &b);
            for (size_t f = 0; f < ARRAY_LEN(fused); f++)
                if ((int)a.part >= fused[f].first &&
                    (int)a.part <= fused[f].last &&
                    (int)b.part >= fused[f].first &&
                    (int)b.part <= fused[f].last &&
                    packed != complete_is_packed(out, b.module, c->facts))
                    warning("%s and %s: one is quantized and the other is "
                            "not, and vLLM wants both alike",
                            b.module, a.module);
        }
    }
}

/* E_DATA: some experts of a layer are packed and some not.  Runtimes look at
 * the first expert only. */
static int check_experts(const struct completeness *c,
                         const struct named_set *out, int64_t layer,
                         struct err *e)
{
    int64_t first = model_linear_common(c->config, layer);
    int64_t n = model_linear_count(c->config, layer);
    struct linear a, b;

    for (int64_t i = first + 1; i < n; i++) {
        model_linear(c->config, layer, first, &a);
        model_linear(c->config, layer, i, &b);
        if (complete_is_packed(out, a.module, c->facts) !=
            complete_is_packed(out, b.module, c->facts))
            return err_set(e, E_DATA,
                           "%s and %s: one is quantized and the other is not: "
                           "no runtime loads experts of two kinds",
                           a.module, b.module);
    }
    return 0;
}

static int check_alike(const struct completeness *c,
                       const struct named_set *out, struct err *e)
{
    for (int64_t layer = 0; c->facts && layer < c->config->n_layers; layer++) {
        if (check_experts(c, out, layer, e))
            return e->code;
        advise_fused(c, out, layer);
    }
    return 0;
}

/* ---- nothing lost, nothing extra ---- */

/* module = MODULE of a tensor that is a linear's weight or a part of it:
 * MODULE.weight, parts of any layout, scales of fp8 checkpoints.  False:
 * another tensor. */
static bool module_of(const char *name, char *module)
{
    static const char *const other[] = { ".weight", ".weight_scale_inv",
                                         ".input_scale", ".activation_scale" };
    size_t n = strlen(name), k = 0;
    bool found = layout_is_part(name, &k);

    for (size_t i = 0; i < ARRAY_LEN(other) && !found; i++) {
        size_t m = strlen(other[i]);

        found = n > m && !strcmp(name + n - m, other[i]);
        k = n - m;
    }
    if (!found || k >= NAME_MAX_LEN)
        return false;
    memcpy(module, name, k);
    module[k] = 0;
    return true;
}

/* Whether the set has the module's weight, plain or in parts. */
static bool has_module(const struct named_set *set, const char *module)
{
    if (find2(set, module, "weight"))
        return true;
    for (int l = 0; l < LAYOUT_COUNT; l++)
        if (find2(set, module, layout_part((enum layout)l, true, false, 0)))
            return true;
    return false;
}

/* Whether a tensor of the source that is not in the set has nothing there for it, which
 * runtimes would miss. */
static bool is_lost(const struct completeness *c, const struct named_set *out,
                    const char *name)
{
    char module[NAME_MAX_LEN];

    if (module_of(name, module) && has_module(out, module))
        return false; /* replaced by parts */
    if (c->config->tied && !strcmp(name, "lm_head.weight"))
        return false; /* tied to the embedding */
    return !tensor_name_is_table(name);
}

/* Whether t has the shape of the tensor s of the source, or is a part in its place. */
static bool is_kept(const struct completeness *c, const struct named_set *out,
                    const struct named *s, const struct named *t)
{
    char module[NAME_MAX_LEN];

    return same_shape(t, s) || (module_of(s->name, module) &&
                                complete_is_packed(out, module, c->facts));
}

static int nothing_lost(const struct completeness *c,
                        const struct named_set *out, struct err *e)
{
    const char *first = NULL;
    size_t lost = 0;

    for (size_t i = 0; i < c->source->n; i++) {
        const struct named *s = &c->source->item[i];
        const struct named *t = find(out, s->name);

        if (t && !is_kept(c, out, s, t))
            return err_set(e, E_DATA,
                           "'%s' has another shape than in the "
                           "source",
                           s->name);
        if (!t && is_lost(c, out, s->name) && !lost++)
            first = s->name;
    }
    if (lost > 1)
        return err_set(e, E_DATA, "'%s' of the source is missing, and %zu more",
                       first, lost - 1);
    return lost ? err_set(e, E_DATA, "'%s' of the source is missing", first) :
                  0;
}

static int nothing_extra(const struct completeness *c,
                         const struct named_set *out, struct err *e)
{
    const struct run_facts *f = c->facts;
    bool symmetric = f && f->symmetric && !f->mixed;

    for (size_t i = 0; i < out->n; i++) {
        const char *name = out->item[i].name;
        char module[NAME_MAX_LEN];
        size_t k;

        if (layout_is_part(name, &k)) {
            const char *part = NULL;

            if (f)
                for (int p = 0; (part = layout_part(f->layout, symmetric,
                                                    f->act_order, p));
                     p++)
                    if (!strcmp(part, name + k + 1))
                        break;
            if (!part)
                return err_set(e, E_DATA,
                               "'%s' has no place in this checkpoint", name);
        }
        if (!c->source || find(c->source, name))
            continue;
        if (module_of(name, module) && has_module(c->source, module) &&
            (layout_is_part(name, &k) || !find2(c->source, module, "weight")))
            continue;
        return err_set(e, E_DATA,
                       "'%s' is extra: the source has nothing like "
                       "it",
                       name);
    }
    return 0;
}

/* Check the parts of modules that the config does not know, against sizes from
 * the source. */
static int check_others(const struct completeness *c,
                        const struct named_set *out, struct err *e)
{
    for (size_t i = 0; i < out->n; i++) {
        const struct named *s;
        char module[NAME_MAX_LEN];
        struct linear l;
        size_t k;

        if (!layout_is_part(out->item[i].name, &k) || k >= sizeof(module))
            continue;
        memcpy(module, out->item[i].name, k);
        module[k] = 0;
        if (model_find_linear(c->config, module, &l))
            continue;
        s = c->source ? find2(c->source, module, "weight") : NULL;
        if (!s || s->ndim != 2)
            return err_set(e, E_DATA,
                           "'%s' is quantized, but no linear of "
                           "the model",
                           module);
        if (check_packed(c, out, module, s->dims[0], s->dims[1], e))
            return e->code;
    }
    return 0;
}

/* Without a source: check the tensors that every model of these families
 * has. */
static int check_rest(const struct completeness *c, const struct named_set *out,
                      struct err *e)
{
    static const char *const always[] = { "model.embed_tokens.weight",
                                          "model.norm.weight" };
    const struct layer_norms *n = model_norms(c->config);
    bool heads = c->config->qk_norm;
    const char *const norms[] = { n->attn_in,
                                  n->attn_out,
                                  n->mlp_in,
                                  n->mlp_out,
                                  heads ? "self_attn.q_norm" : NULL,
                                  heads ? "self_attn.k_norm" : NULL };

    for (size_t i = 0; i < ARRAY_LEN(always); i++)
        if (!find(out, always[i]))
            return err_set(e, E_DATA, "'%s' is missing", always[i]);
    if (!c->config->tied && !c->headless && !find(out, "lm_head.weight"))
        return err_set(e, E_DATA, "'lm_head.weight' is missing");
    for (int64_t layer = 0; layer < c->config->n_layers; layer++)
        for (size_t i = 0; i < ARRAY_LEN(norms); i++) {
            char name[TENSOR_NAME_MAX];

            if (!norms[i])
                continue;
            layer_tensor_name(layer, norms[i], name);
            if (!find2(out, name, "weight"))
                return err_set(e, E_DATA, "'%s.weight' is missing", name);
        }
    return 0;
}

int complete_check(const struct completeness *c, const struct named_set *out,
                   struct err *e)
{
    if (check_linears(c, out, e) || check_alike(c, out, e) ||
        check_others(c, out, e) ||
        (c->source ? nothing_lost(c, out, e) : check_rest(c, out, e)))
        return e->code;
    return nothing_extra(c, out, e);
}
