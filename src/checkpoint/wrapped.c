/* wrapped.c - see wrapped.h. */
#include "checkpoint/wrapped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The view's names, and what the files may call them. */
static const struct wrapping alone = { "model.", "lm_head." };
static const char *const models[] = { "language_model.model.",
                                      "model.language_model.", "" };
static const char head[] = "language_model.lm_head.";

static bool begins(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

/* to[cap] = name with the beginning of `from` replaced by that of `into`; a
 * name that is not the language model's stays. */
static void translate(const char *name, const struct wrapping *from,
                      const struct wrapping *into, char *to, size_t cap)
{
    static const char *const parts[] = {
        "layers.",
        "embed_tokens.",
        "norm.",
        "embed_tokens_per_layer.",
        "altup_projections.",
        "altup_unembed_projections.",
        "per_layer_model_projection.",
        "per_layer_projection_norm.",
    };

    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (begins(name, from->model) &&
            begins(name + strlen(from->model), parts[i])) {
            snprintf(to, cap, "%s%s", into->model, name + strlen(from->model));
            return;
        }
    if (begins(name, from->head))
        snprintf(to, cap, "%s%s", into->head, name + strlen(from->head));
    else
        snprintf(to, cap, "%s", name);
}

static void find(struct checkpoint *c)
{
    char name[64];

    c->wrapping = alone;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        snprintf(name, sizeof(name), "%sembed_tokens.weight", models[i]);
        if (checkpoint_find(c, name))
            c->wrapping.model = models[i];
    }
    for (size_t i = 0; i < c->list.count; i++)
        if (begins(c->list.item[i].name, head))
            c->wrapping.head = head;
}

int wrapped_rename(struct checkpoint *c, struct err *e)
{
    char name[1024];

    find(c);
    if (c->wrapping.model == alone.model && c->wrapping.head == alone.head)
        return 0;
    for (size_t i = 0; i < c->list.count; i++) {
        struct ck_entry *en = &c->list.item[i];
        char *own;

        translate(en->name, &c->wrapping, &alone, name, sizeof(name));
        own = mem_text(name, strlen(name), "checkpoint", e);
        if (!own)
            return e->code;
        free(en->name);
        en->name = own;
    }
    return 1;
}

bool checkpoint_bare(const struct checkpoint *c)
{
    return c->wrapping.model && !*c->wrapping.model;
}

bool checkpoint_headless(const struct checkpoint *c)
{
    return checkpoint_bare(c) && !checkpoint_find(c, "lm_head.weight");
}

void checkpoint_stored_name(const struct checkpoint *c, const char *name,
                            char *to, size_t cap)
{
    const struct wrapping *w = c->wrapping.model ? &c->wrapping : &alone;

    translate(name, &alone, w, to, cap);
}
