/* wrapped.c - see wrapped.h. */
#include "checkpoint/wrapped.h"

#include <stdio.h>
#include <string.h>

/* What the names of the language model's tensors begin with. */
struct wrapping {
    const char *model, *head;
};

static const struct wrapping alone = { "model.", "lm_head." };
static const struct wrapping known[] = {
    { "language_model.model.", "language_model.lm_head." },
    { "model.language_model.", "lm_head." },
};

static bool begins(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

/* to[cap] = name with the beginning of `from` replaced by that of `into`; a
 * name that is not the language model's stays. */
static void translate(const char *name, const struct wrapping *from,
                      const struct wrapping *into, char *to, size_t cap)
{
    static const char *const parts[] = { "layers.", "embed_tokens.", "norm." };

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

static const struct wrapping *find(const struct checkpoint *c)
{
    char name[64];

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        snprintf(name, sizeof(name), "%sembed_tokens.weight", known[i].model);
        if (checkpoint_find(c, name))
            return &known[i];
    }
    return NULL;
}

int wrapped_rename(struct checkpoint *c, struct err *e)
{
    char name[1024];

    c->wrapping = find(c);
    for (size_t i = 0; c->wrapping && i < c->list.count; i++) {
        struct ck_entry *en = &c->list.item[i];
        size_t n = strlen(en->name);

        translate(en->name, c->wrapping, &alone, name, sizeof(name));
        if (strlen(name) <= n) /* the view's names are not longer */
            memcpy(en->name, name, strlen(name) + 1);
        else
            return err_set(e, E_BUG, "'%.200s': a longer name", en->name);
    }
    return c->wrapping ? 1 : 0;
}

void checkpoint_stored_name(const struct checkpoint *c, const char *name,
                            char *to, size_t cap)
{
    if (c->wrapping)
        translate(name, &alone, c->wrapping, to, cap);
    else
        snprintf(to, cap, "%s", name);
}
