/* card.c - see card.h. */
#include "shard/card.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/sidecar.h"
#include "common/cli/units.h"

enum { STEP_MAX = 4096 };

static const char mark[] = CARD_MARK;

/* ---- the card of the model ---- */

/* *text = the model's card; NULL: it has none, or it is no text. */
static int read_card(const struct modeldir *model, char **text, struct err *e)
{
    size_t len;

    *text = NULL;
    if (!modeldir_has(model, CARD_FILE))
        return 0;
    if (modeldir_slurp(model, CARD_FILE, SIDECAR_MAX, text, &len, e))
        return e->code;
    if (strlen(*text) != len) {
        free(*text);
        *text = NULL;
    }
    return 0;
}

/* The front matter, the lines between two "---"; *end: its end.  NULL: there is
 * none. */
static const char *front_matter(const char *card, const char **end)
{
    if (!card || strncmp(card, "---\n", 4) != 0)
        return NULL;
    *end = strstr(card + 3, "\n---");
    if (*end)
        (*end)++;
    return *end ? card + 4 : NULL;
}

/* Whether the line at p continues the entry of the line before. */
static bool goes_on(const char *p, const char *end)
{
    return p < end && (*p == ' ' || *p == '-' || *p == '\t' || *p == '\n');
}

/* The end of the front matter's entry at p, continuation lines included. */
static const char *entry_end(const char *p, const char *end)
{
    do {
        p = memchr(p, '\n', (size_t)(end - p));
        p = p ? p + 1 : end;
    } while (goes_on(p, end));
    return p;
}

static bool has_key(const char *p, const char *key)
{
    size_t n = strlen(key);

    return !strncmp(p, key, n) && p[n] == ':';
}

static void copy_front(FILE *out, const char *card)
{
    static const char *const kept[] = { "license",      "license_name",
                                        "license_link", "language",
                                        "pipeline_tag", "library_name" };
    const char *end, *p = front_matter(card, &end);

    for (; p && p < end;) {
        const char *next = entry_end(p, end);

        for (size_t i = 0; i < ARRAY_LEN(kept); i++)
            if (has_key(p, kept[i]))
                fwrite(p, 1, (size_t)(next - p), out);
        p = next;
    }
}

/* ---- names ---- */

/* The base model that a card of ours names; NULL: none. */
static char *named_by_card(const char *card, struct err *e)
{
    const char *end, *p = front_matter(card, &end);

    if (!p || !strstr(end, mark))
        return NULL;
    for (; p < end; p = entry_end(p, end))
        if (has_key(p, "base_model")) {
            p += strlen("base_model: ");
            return mem_text(p, strcspn(p, "\n"), "model's name", e);
        }
    return NULL;
}

/* Replace characters that mean something to YAML, Markdown or a shell. */
static void plain_letters(char *name)
{
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && !strchr("-_./+", *name))
            *name = '_';
}

char *card_base(const struct modeldir *model, struct err *e)
{
    char path[PATH_MAX], title[PATH_MAX] = "model", *card, *name;

    if (read_card(model, &card, e))
        return NULL;
    e->code = 0;
    name = named_by_card(card, e);
    free(card);
    if (!name && !e->code) {
        if (realpath(model->path, path))
            path_title(title, sizeof(title), path);
        name = mem_text(title, strlen(title), "model's name", e);
    }
    if (name)
        plain_letters(name);
    return name;
}

/* ---- the recipe ---- */

static const char recipe_begin[] = "## How it was made\n\n```\n";

/* Whether a line is a step as we write it, without characters of Markdown or a
 * shell. */
static bool is_step(const char *line, size_t n)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789 -_=.,:/+%";

    return n > 6 && n < STEP_MAX && !strncmp(line, "forge-", 6) &&
           strspn(line, allowed) >= n;
}

static size_t recipe_length(const char *text)
{
    const char *p = text;

    for (size_t n; (n = strcspn(p, "\n")), p[n] && is_step(p, n); p += n + 1)
        ;
    return (size_t)(p - text);
}

char *card_recipe(const struct modeldir *model, struct err *e)
{
    char *card, *text = NULL;
    const char *at;
    size_t n;

    e->code = 0;
    if (read_card(model, &card, e) || !card)
        return NULL;
    at = strstr(card, mark) ? strstr(card, recipe_begin) : NULL;
    n = at ? recipe_length(at + strlen(recipe_begin)) : 0;
    if (n)
        text = mem_text(at + strlen(recipe_begin), n - 1, "recipe", e);
    free(card);
    return text;
}

/* ---- our card ---- */

static bool is_int4pack(const struct run_facts *f)
{
    return f->layout == LAYOUT_INT4PACK || f->layout == LAYOUT_INT4PACK_XPU;
}

static void put_front(FILE *out, const struct card *c, const char *own)
{
    fprintf(out, "---\nbase_model: %s\n", c->base);
    if (c->facts)
        fprintf(out, "base_model_relation: quantized\n");
    copy_front(out, own);
    fprintf(out, "tags:\n- 4bit-forge\n");
    if (c->facts)
        fprintf(out, "%s%s- %s\n", c->linears.four ? "- 4-bit\n- w4a16\n" : "",
                c->linears.eight ? "- 8-bit\n- w8a16\n" : "",
                c->facts->layout == LAYOUT_CT  ? "compressed-tensors" :
                c->facts->layout == LAYOUT_AWQ ? "awq" :
                is_int4pack(c->facts)          ? "int4pack" :
                                                 "gptq");
    fprintf(out, "---\n\n");
}

static void put_facts(FILE *out, const struct card *c)
{
    const struct provenance *p = c->about;

    char size[UNIT_TEXT], kinds[64];

    fprintf(out, "| | |\n|---|---|\n| made of | %s |\n", c->base);
    fprintf(out, "| size | %" PRIu64 " tensors, %s |\n", c->tensors,
            size_text(size, (double)c->bytes));
    if (c->facts)
        fprintf(out,
                "| layout | %s: %d bits, a scale for %" PRIu64
                " inputs (%s), %ssymmetric%s |\n",
                layout_name(c->facts->layout), c->facts->bits, c->facts->group,
                dtype_name(c->facts->scale_dtype),
                c->facts->symmetric ? "" : "a",
                c->facts->mixed ? "; of some linears otherwise" : "");
    if (c->linears.weights)
        fprintf(out,
                "| linears | %s; %.3f bits for each weight, scales included "
                "|\n",
                layout_kinds_text(kinds, c->linears.four, c->linears.eight),
                8 * (double)c->linears.bytes / (double)c->linears.weights);
    if (p->modules)
        fprintf(out,
                "| method | %s%s%s; of %" PRIu64 " linears %" PRIu64
                " rounded to nearest |\n",
                p->nearest < p->modules ? "GPTQ" : "round to nearest",
                *p->effort ? ", effort " : "", p->effort, p->modules,
                p->nearest);
    if (p->measured && p->loss_rtn > 0)
        fprintf(out,
                "| loss | %.3f of rounding to nearest (sums of squared errors "
                "of %" PRIu64 " linears' outputs) |\n",
                p->loss / p->loss_rtn, p->measured);
    if (*p->text.sha256)
        fprintf(out,
                "| calibration | %" PRId64 " sequences, %" PRId64
                " tokens, of the text with SHA-256 `%s` |\n",
                p->text.sequences, p->text.ids, p->text.sha256);
    fprintf(out, "| program | 4bit-forge " FORGE_VERSION " |\n\n");
}

/* Commands to serve it: those in README's table of layouts and engines. */
static void put_serving(FILE *out, const struct card *c)
{
    bool ct = c->facts->layout == LAYOUT_CT;

    fprintf(out, "## Serve it\n\n```sh\n"
                 "vllm serve DIRECTORY\n"
                 "python -m sglang.launch_server --model-path DIRECTORY\n"
                 "```\n\n");
    if (!ct && c->experts) {
        fprintf(out, "transformers 5.23 leaves the experts of this layout "
                     "as they are initialized, without an error: not there.\n");
        return;
    }
    if (c->zeros && c->facts->mixed) {
        fprintf(out, "transformers 5.23 reads all linears of this checkpoint "
                     "by the first kind of grid, and fails, or with 8 bits "
                     "for some computes nonsense without an error: not "
                     "there.\n");
        return;
    }
    if (!ct && c->linears.differ) {
        fprintf(out, "transformers 5.23 does not load this layout where "
                     "linears differ in bits or group (mismatched sizes): not "
                     "there, but in GPTQModel.\n");
        return;
    }
    fprintf(out, "In transformers, with `pip install %s`:\n\n```python\n",
            ct                             ? "compressed-tensors" :
            c->facts->layout == LAYOUT_AWQ ? "gptqmodel" :
                                             "gptqmodel optimum");
    fprintf(out,
            "from transformers import AutoModelForCausalLM%s\n"
            "model = AutoModelForCausalLM.from_pretrained(\"DIRECTORY\"%s)\n"
            "```\n",
            c->zeros ? ", CompressedTensorsConfig" : "",
            c->zeros ? ",\n    quantization_config=CompressedTensorsConfig("
                       "dequantize=True)" :
                       "");
}

/* How to use tensors for torch's own operators. */
static void put_int4pack(FILE *out, const struct card *c)
{
    bool cpu = c->facts->layout == LAYOUT_INT4PACK;

    fprintf(out,
            "## Use it\n\nEach linear's tensors are what an operator of torch "
            "reads as they are%s%s; `x` is of their type.\n\n```python\n"
            "from safetensors.torch import load_file\n"
            "t = load_file(\"DIRECTORY/model.safetensors\")\n"
            "y = torch.ops.aten.%s(\n    x, t[m + \".weight_int4pack\"], "
            "%" PRIu64 ", %s)\n```\n",
            cpu ? ", on CPUs of the capability " : "",
            cpu ? int4pack_name(c->facts->capability) : "",
            cpu ? "_weight_int4pack_mm_for_cpu" :
                  "_weight_int4pack_mm_with_scales_and_zeros",
            c->facts->group,
            cpu ? "t[m + \".scales_and_zeros\"]" :
                  "t[m + \".scales\"], t[m + \".zeros\"]");
}

static void put_card(FILE *out, const struct card *c, const char *own)
{
    const char *bits = !c->linears.eight ? "4" :
                       c->linears.four   ? "4 and 8" :
                                           "8";

    put_front(out, c, own);
    if (c->facts)
        fprintf(out,
                "# %s, %s bits\n\n%s: weights of %s bits, activations of 16 "
                "(%s).\n\n",
                c->base, bits, mark, bits,
                !c->linears.eight ? "W4A16" :
                c->linears.four   ? "W4A16, W8A16" :
                                    "W8A16");
    else
        fprintf(out, "# %s\n\n%s.\n\n", c->base, mark);
    put_facts(out, c);
    if (c->facts)
        (is_int4pack(c->facts) ? put_int4pack : put_serving)(out, c);
    fprintf(out, "\n%s%s\n```\n\n## Check it\n\n", recipe_begin, c->recipe);
    fprintf(out, "`forge verify DIRECTORY`, or `sha256sum -c SHA256SUMS` in "
                 "it.\n");
}

int card_write(const struct card *c, const struct modeldir *model, char **text,
               size_t *len, struct err *e)
{
    char *own;
    FILE *out;
    bool failed;

    if (read_card(model, &own, e))
        return e->code;
    out = open_memstream(text, len);
    if (out)
        put_card(out, c, own);
    free(own);
    if (!out)
        return err_set(e, E_TEMP, "model card: out of memory");
    failed = ferror(out);
    if (!fclose(out) && !failed)
        return 0;
    free(*text);
    return err_set(e, E_TEMP, "model card: out of memory");
}
