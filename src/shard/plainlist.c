/* plainlist.c - see plainlist.h. */
#include "shard/plainlist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "shard/complete.h"

enum { PATH_MAX_LEN = 1024 };

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && !strcmp(s + n - m, end);
}

/* ---- lists of names ---- */

int names_add(struct names *l, const char *name, size_t len, struct err *e)
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

size_t names_find(const struct names *l, const char *name)
{
    size_t i = 0;

    while (i < l->n && strcmp(l->item[i], name) != 0)
        i++;
    return i;
}

static bool names_have(const struct names *l, const char *name)
{
    return names_find(l, name) < l->n;
}

/* Add a name unless it is the last one: names come sorted. */
static int names_add_once(struct names *l, const char *name, struct err *e)
{
    if (l->n && !strcmp(l->item[l->n - 1], name))
        return 0;
    return names_add(l, name, strlen(name), e);
}

void names_release(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->item[i]);
    free(l->item);
}

/* ---- paths ---- */

/* kind = the module's path inside its layer, with "*" for an expert's number.
 * False: it is not inside a layer. */
static bool kind_of(const char *module, char kind[PATH_MAX_LEN])
{
    struct tensor_name n;

    tensor_name_parse(&n, module);
    if (n.layer < 0)
        return false;
    n.layer = -1;
    if (n.expert >= 0)
        n.expert = EXPERT_ANY;
    tensor_name_format(&n, kind, PATH_MAX_LEN);
    return true;
}

/* ---- collecting ---- */

/* Whether a loader would take this tensor for a linear's weight: a matrix, no
 * embedding. */
static bool is_plain_matrix(const struct named *t)
{
    return t->ndim == 2 && ends_with(t->name, ".weight") &&
           !ends_with(t->name, "embed_tokens.weight") &&
           !ends_with(t->name, "wte.weight") && strlen(t->name) < PATH_MAX_LEN;
}

/* Add a module to p->below or p->module. */
static int add_module(struct plain_list *p, const char *module,
                      const struct named_set *out,
                      const struct model_config *config,
                      const struct run_facts *facts, struct err *e)
{
    char path[PATH_MAX_LEN];
    struct tensor_name n;
    bool expert;

    tensor_name_parse(&n, module);
    if (p->wrapped && n.layer < 0) {
        const char *part = module;

        if (!strncmp(part, "model.", strlen("model.")))
            part += strlen("model.");
        snprintf(path, sizeof(path), "%.*s", (int)strcspn(part, "."), part);
        return names_have(&p->outside, path) ?
                   0 :
                   names_add(&p->outside, path, strlen(path), e);
    }
    expert = n.expert >= 0;
    p->in_layers |= n.layer >= 0;
    if (n.layer >= config->n_layers) {
        layer_tensor_name(n.layer, "", path);
        return names_add_once(&p->below, path, e);
    }
    n.expert = expert ? 0 : -1;
    tensor_name_format(&n, path, sizeof(path));
    if (expert && !complete_is_packed(out, path, facts)) {
        /* loaders treat all experts of a layer like the first one */
        n.expert = -1;
        n.part = n.experts;
        tensor_name_format(&n, path, sizeof(path));
        return names_add_once(&p->below, path, e);
    }
    return names_add(&p->module, module, strlen(module), e);
}

/* kinds = the paths inside a layer of all packed modules, each once. */
static int packed_kinds(struct names *kinds, const struct named_set *out,
                        const struct run_facts *facts, struct err *e)
{
    const char *part = layout_part(facts->layout, true, false, 0);

    for (size_t i = 0; i < out->n; i++) {
        const char *name = out->item[i].name;
        char kind[PATH_MAX_LEN];

        if (strlen(name) >= sizeof(kind) || !ends_with(name, part) ||
            !kind_of(name, kind))
            continue;
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

        n += kind_of(modules->item[i], other) && !strcmp(other, kind);
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

        if (!kind_of(p->module.item[i], kind))
            continue;
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

/* ---- the quantized modules of a layer ---- */

/* Whether the same linears are packed in all layers as in layer 0. */
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
        char kind[PATH_MAX_LEN];
        struct linear l;

        model_linear(config, 0, i, &l);
        if (kind_of(l.module, kind) &&
            complete_is_packed(out, l.module, facts) &&
            names_add(&p->suffix, kind, strlen(kind), e))
            return e->code;
    }
    return 0;
}

/* ---- plain_collect() ---- */

int plain_collect(struct plain_list *p, const struct named_set *out,
                  const struct model_config *config, bool bare,
                  const struct run_facts *facts, struct err *e)
{
    /* always in the list: for transformers lm_head is a Linear like any other,
     * and without the entry its weight would be expected in packed form */
    static const char head[] = "lm_head";

    *p = (struct plain_list){ .wrapped = config->wrapper || bare };
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
    names_release(&p->outside);
    names_release(&p->module);
    names_release(&p->kind);
    names_release(&p->suffix);
    free(p->common);
}
