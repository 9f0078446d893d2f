/* recipe.c - how a file was made, as metadata of GGUF: see convert.h.
 *
 * Keys of GGUF's own where it has them (general.*, with those of model.c); the others
 * begin with "forge.", and readers pass over what they do not know. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/made.h"
#include "gguf/convert.h"

static void known_text(struct gguf *g, const char *key, const char *s)
{
    if (s && *s)
        gguf_string(g, key, s);
}

static void known_count(struct gguf *g, const char *key, int64_t n)
{
    if (n > 0 && n <= UINT32_MAX)
        gguf_u32(g, key, (uint64_t)n);
}

/* The model that the checkpoint was made of: "ORG/NAME" or a directory's name. */
static void put_base(struct gguf *g, const char *base)
{
    const char *slash = strchr(base, '/');
    char org[MADE_TEXT];

    if (!*base)
        return;
    gguf_u32(g, "general.base_model.count", 1);
    gguf_string(g, "general.base_model.0.name", slash ? slash + 1 : base);
    if (slash) {
        memcpy(org, base, (size_t)(slash - base));
        org[slash - base] = '\0';
        known_text(g, "general.base_model.0.organization", org);
    }
}

/* The steps of the checkpoint, if it has them, and ours.  Divides lines. */
static int put_recipe(struct gguf *g, char *lines, bool q8, struct err *e)
{
    const char **step;
    size_t n = 1, k = 0;

    for (const char *p = lines; p; p = strchr(p, '\n'), p += p != NULL)
        n++;
    step = mem_alloc(n * sizeof(*step), "recipe", e);
    if (!step)
        return e->code;
    for (char *p = lines, *end; p; p = end) {
        step[k++] = p;
        end = strchr(p, '\n');
        if (end)
            *end++ = '\0';
    }
    step[k++] = q8 ? "forge-gguf --rest=q8_0" : "forge-gguf --rest=stored";
    gguf_strings(g, "forge.recipe", step, k);
    free(step);
    return 0;
}

int gguf_put_made(struct gguf_plan *p, struct err *e)
{
    struct gguf *g = &p->head;
    struct made m;
    int rc = made_read(&m, p->c, e);

    put_base(g, m.base);
    gguf_string(g, "forge.version", FORGE_VERSION);
    if (checkpoint_storage(p->c) != STORAGE_PLAIN || p->q8)
        gguf_u32(g, "forge.block_size", GGUF_BLOCK);
    known_count(g, "forge.bits", checkpoint_bits(p->c));
    known_count(g, "forge.group_size", checkpoint_group(p->c));
    known_text(g, "forge.repacked_from", m.layout);
    if (!rc)
        rc = put_recipe(g, m.recipe, p->q8, e);
    known_text(g, "forge.method", m.method);
    known_text(g, "forge.loss", m.loss);
    known_text(g, "forge.calibration_text_sha256", m.text_sha256);
    known_count(g, "forge.calibration_sequences", m.sequences);
    known_count(g, "forge.calibration_tokens", m.tokens);
    made_release(&m);
    return rc;
}
