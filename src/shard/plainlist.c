/* plainlist.c - which modules stay as they are: complete.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/complete.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && !strcmp(s + n - m, end);
}

/* A matrix that a loader would take for a linear's; embeddings are none. */
static bool is_plain_matrix(const struct named *t)
{
    return t->ndim == 2 && ends_with(t->name, ".weight") &&
           !ends_with(t->name, "embed_tokens.weight") &&
           !ends_with(t->name, "wte.weight");
}

static int add(struct plain_list *p, const char *name, struct err *e)
{
    size_t n = strlen(name) - strlen(".weight");
    char *copy;

    if (mem_grow(&p->module, (p->n + 1) * sizeof(*p->module), "names", e))
        return e->code;
    copy = mem_alloc(n + 1, "names", e);
    if (!copy)
        return e->code;
    memcpy(copy, name, n);
    copy[n] = 0;
    p->module[p->n++] = copy;
    return 0;
}

/* "self_attn.q_proj" of "model.layers.3.self_attn.q_proj". */
static const char *suffix_of(const char *module)
{
    for (int dots = 0; *module; module++)
        if (*module == '.' && ++dots == 3)
            return module + 1;
    return "";
}

/* Which of layer 0's n linears are packed; false: another layer differs. */
static bool same_layers(struct plain_list *p, const struct named_set *out,
                        const struct model_config *config,
                        const struct run_facts *facts, int64_t n, bool *first)
{
    struct linear l;
    bool same = true;

    for (int64_t layer = 0; layer < config->n_layers; layer++) {
        int64_t count = model_linear_count(config, layer);

        same &= count == n;
        for (int64_t i = 0; i < count; i++) {
            bool packed;

            model_linear(config, layer, i, &l);
            packed = complete_is_packed(out, l.module, facts);
            p->linears |= !packed;
            if (!layer)
                first[i] = packed;
            else if (same && first[i] != packed)
                same = false;
        }
    }
    return same;
}

static int add_suffixes(struct plain_list *p, const struct model_config *config,
                        int64_t n, const bool *first, struct err *e)
{
    const char **list = mem_zero((size_t)n, sizeof(*list), "names", e);
    struct linear l;

    if (!list)
        return e->code;
    p->suffix = list;
    for (int64_t i = 0; i < n; i++) {
        if (!first[i])
            continue;
        model_linear(config, 0, i, &l);
        list[p->n_suffix] = strdup(suffix_of(l.module));
        if (!list[p->n_suffix])
            return err_set(e, E_TEMP, "names: out of memory");
        p->n_suffix++;
    }
    return 0;
}

/* The quantized linears of layer 0, if every layer has the same. */
static int suffixes(struct plain_list *p, const struct named_set *out,
                    const struct model_config *config,
                    const struct run_facts *facts, struct err *e)
{
    int64_t n = model_linear_count(config, 0);
    bool *first = mem_zero((size_t)n, sizeof(*first), "names", e);
    int rc = 0;

    if (!first)
        return e->code;
    if (same_layers(p, out, config, facts, n, first))
        rc = add_suffixes(p, config, n, first, e);
    else
        p->linears = true;
    free(first);
    return rc;
}

int plain_collect(struct plain_list *p, const struct named_set *out,
                  const struct model_config *config,
                  const struct run_facts *facts, struct err *e)
{
    *p = (struct plain_list){ 0 };
    for (size_t i = 0; i < out->n; i++)
        if (is_plain_matrix(&out->item[i]) && add(p, out->item[i].name, e))
            return e->code;
    return suffixes(p, out, config, facts, e);
}

void plain_release(struct plain_list *p)
{
    for (size_t i = 0; i < p->n; i++)
        free((void *)(uintptr_t)p->module[i]);
    for (size_t i = 0; i < p->n_suffix; i++)
        free((void *)(uintptr_t)p->suffix[i]);
    free(p->module);
    free((void *)(uintptr_t)p->suffix);
}
