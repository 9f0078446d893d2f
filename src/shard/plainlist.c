/* plainlist.c - see plainlist.h. */
#include "shard/plainlist.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/complete.h"

enum { PATH_MAX_LEN = 1024 };

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && !strcmp(s + n - m, end);
}

/* ---- lists of names ---- */

static int names_add(struct names *l, const char *name, size_t len,
                     struct err *e)
{
    char *copy;

    if (l->n == l->cap) {
        size_t cap = 2 * l->cap + 16;

        if (mem_grow(&l->item, cap * sizeof(*l->item), "names", e))
            return e->code;
        l->cap = cap;
    }
    copy = mem_alloc(len + 1, "names", e);
    if (!copy)
        return e->code;
    memcpy(copy, name, len);
    copy[len] = 0;
    l->item[l->n++] = copy;
    return 0;
}

static bool names_have(const struct names *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->item[i], name))
            return true;
    return false;
}

/* Names come sorted: an equal one is the last. */
static int names_add_once(struct names *l, const char *name, struct err *e)
{
    if (l->n && !strcmp(l->item[l->n - 1], name))
        return 0;
    return names_add(l, name, strlen(name), e);
}

static void names_release(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->item[i]);
    free(l->item);
}

/* ---- paths ---- */

/* "self_attn.q_proj" of "model.layers.3.self_attn.q_proj"; *layer: 3.  NULL:
 * not inside a layer. */
static const char *inside_layer(const char *module, int64_t *layer)
{
    static const char prefix[] = "model.layers.";
    const char *p = module + sizeof(prefix) - 1;
    char *end;

    if (strncmp(module, prefix, sizeof(prefix) - 1) != 0 ||
        !isdigit((unsigned char)*p))
        return NULL;
    *layer = (int64_t)strtoll(p, &end, 10);
    return *end == '.' ? end + 1 : NULL;
}

/* The dot before an expert's number, in "....experts.17.up_proj". */
static const char *expert_dot(const char *module)
{
    static const char part[] = ".experts.";
    const char *p = strstr(module, part);

    p = p ? p + sizeof(part) - 2 : NULL;
    return p && isdigit((unsigned char)p[1]) ? p : NULL;
}

/* Copy with a text in place of the expert's number, if there is one. */
static void without_expert(char *to, const char *path, const char *number)
{
    const char *dot = expert_dot(path), *rest;

    if (!dot) {
        snprintf(to, PATH_MAX_LEN, "%s", path);
        return;
    }
    rest = dot + 1 + strspn(dot + 1, "0123456789");
    snprintf(to, PATH_MAX_LEN, "%.*s%s%s", (int)(dot + 1 - path), path, number,
             rest);
}

/* ---- collecting ---- */

/* A matrix that a loader would take for a linear's; embeddings are none. */
static bool is_plain_matrix(const struct named *t)
{
    return t->ndim == 2 && ends_with(t->name, ".weight") &&
           !ends_with(t->name, "embed_tokens.weight") &&
           !ends_with(t->name, "wte.weight") && strlen(t->name) < PATH_MAX_LEN;
}

/* Into p->below or p->module. */
static int add_module(struct plain_list *p, const char *module,
                      const struct named_set *out,
                      const struct model_config *config,
                      const struct run_facts *facts, struct err *e)
{
    char path[PATH_MAX_LEN];
    const char *dot = expert_dot(module);
    int64_t layer = -1;

    if (inside_layer(module, &layer))
        p->in_layers = true;
    if (layer >= config->n_layers) {
        snprintf(path, sizeof(path), "model.layers.%lld", (long long)layer);
        return names_add_once(&p->below, path, e);
    }
    without_expert(path, module, "0");
    if (dot && !complete_is_packed(out, path, facts)) {
        /* loaders treat all experts of a layer alike, as the first */
        path[dot - module] = 0;
        return names_add_once(&p->below, path, e);
    }
    return names_add(&p->module, module, strlen(module), e);
}

/* The paths inside a layer of what is packed: few, as all layers are much
 * the same. */
static int packed_kinds(struct names *kinds, const struct named_set *out,
                        const struct run_facts *facts, struct err *e)
{
    const char *part = layout_part(facts->layout, facts->symmetric, 0);

    for (size_t i = 0; i < out->n; i++) {
        const char *name = out->item[i].name, *inside;
        char kind[PATH_MAX_LEN];
        size_t n = strlen(name);
        int64_t layer;

        if (n >= sizeof(kind) || !ends_with(name, part) ||
            !(inside = inside_layer(name, &layer)))
            continue;
        without_expert(kind, inside, "*");
        kind[strlen(kind) - strlen(part) - 1] = 0;
        if (!names_have(kinds, kind) && names_add(kinds, kind, strlen(kind), e))
            return e->code;
    }
    return 0;
}

static size_t count_kind(const struct names *modules, const char *kind)
{
    size_t n = 0;

    for (size_t i = 0; i < modules->n; i++) {
        char other[PATH_MAX_LEN];
        int64_t layer;
        const char *inside = inside_layer(modules->item[i], &layer);

        if (!inside)
            continue;
        without_expert(other, inside, "*");
        n += !strcmp(other, kind);
    }
    return n;
}

static int find_kinds(struct plain_list *p, const struct named_set *out,
                      const struct run_facts *facts, struct err *e)
{
    struct names packed = { 0 };
    int rc = packed_kinds(&packed, out, facts, e);

    p->common = mem_zero(p->module.n, sizeof(*p->common), "names", e);
    if (!p->common)
        rc = e->code;
    for (size_t i = 0; i < p->module.n && !rc; i++) {
        char kind[PATH_MAX_LEN];
        int64_t layer;
        const char *inside = inside_layer(p->module.item[i], &layer);

        if (!inside)
            continue;
        without_expert(kind, inside, "*");
        p->common[i] = names_have(&p->kind, kind);
        if (p->common[i] || names_have(&packed, kind) ||
            count_kind(&p->module, kind) < 2)
            continue;
        p->common[i] = true;
        rc = names_add(&p->kind, kind, strlen(kind), e);
    }
    names_release(&packed);
    return rc;
}

/* ---- the quantized ones of a layer ---- */

/* Are the same linears packed in all layers as in layer 0? */
static bool same_layers(const struct named_set *out,
                        const struct model_config *config,
                        const struct run_facts *facts)
{
    int64_t n = model_linear_count(config, 0);

    for (int64_t layer = 1; layer < config->n_layers; layer++) {
        if (model_linear_count(config, layer) != n)
            return false;
        for (int64_t i = 0; i < n; i++) {
            struct linear a, b;

            model_linear(config, 0, i, &a);
            model_linear(config, layer, i, &b);
            if (complete_is_packed(out, a.module, facts) !=
                complete_is_packed(out, b.module, facts))
                return false;
        }
    }
    return true;
}

static int find_suffixes(struct plain_list *p, const struct named_set *out,
                         const struct model_config *config,
                         const struct run_facts *facts, struct err *e)
{
    if (config->moe.n_experts || !same_layers(out, config, facts))
        return 0;
    for (int64_t i = 0; i < model_linear_count(config, 0); i++) {
        const char *inside;
        struct linear l;
        int64_t layer;

        model_linear(config, 0, i, &l);
        inside = inside_layer(l.module, &layer);
        if (inside && complete_is_packed(out, l.module, facts) &&
            names_add(&p->suffix, inside, strlen(inside), e))
            return e->code;
    }
    return 0;
}

/* ---- the interface ---- */

int plain_collect(struct plain_list *p, const struct named_set *out,
                  const struct model_config *config,
                  const struct run_facts *facts, struct err *e)
{
    /* always named: transformers' is a Linear like any other, and without
     * the entry its weights would be sought in packed form */
    static const char head[] = "lm_head";

    *p = (struct plain_list){ 0 };
    if (names_add(&p->module, head, strlen(head), e))
        return e->code;
    for (size_t i = 0; i < out->n; i++) {
        char module[PATH_MAX_LEN];

        if (!is_plain_matrix(&out->item[i]))
            continue;
        snprintf(module, sizeof(module), "%.*s",
                 (int)(strlen(out->item[i].name) - strlen(".weight")),
                 out->item[i].name);
        if (strcmp(module, head) != 0 &&
            add_module(p, module, out, config, facts, e))
            return e->code;
    }
    if (find_kinds(p, out, facts, e))
        return e->code;
    return find_suffixes(p, out, config, facts, e);
}

void plain_release(struct plain_list *p)
{
    names_release(&p->below);
    names_release(&p->module);
    names_release(&p->kind);
    names_release(&p->suffix);
    free(p->common);
}
