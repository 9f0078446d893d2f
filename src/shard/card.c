/* card.c - see card.h. */
#include "shard/card.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cli/units.h"

static void copy_front(FILE *out, const char *card)
{
    static const char *const kept[] = { "license",      "license_name",
                                        "license_link", "language",
                                        "pipeline_tag", "library_name" };
    const char *end, *p = card_front(card, &end);

    for (; p && p < end;) {
        const char *next = card_entry_end(p, end);

        for (size_t i = 0; i < ARRAY_LEN(kept); i++)
            if (card_entry_is(p, kept[i]))
                fwrite(p, 1, (size_t)(next - p), out);
        p = next;
    }
}

/* ---- names ---- */

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

    if (card_read(model, &card, e))
        return NULL;
    e->code = 0;
    name = card_base_name(card, e);
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

/* How the codes were made, and of what text. */
static void put_making(FILE *out, const struct provenance *p)
{
    const struct text_note *t = &p->text;

    if (p->modules)
        fprintf(out,
                "| method | %s%s%s; of %" PRIu64 " linears %" PRIu64
                " rounded to nearest |\n",
                p->nearest < p->modules ? "GPTQ" : "round to nearest",
                *p->effort ? ", effort " : "", p->effort, p->modules,
                p->nearest);
    else if (*p->made.method)
        fprintf(out, "| method | %s |\n", p->made.method);
    if (p->measured && p->loss_rtn > 0)
        fprintf(out,
                "| loss | %.3f of rounding to nearest (sums of squared errors "
                "of %" PRIu64 " linears' outputs) |\n",
                p->loss / p->loss_rtn, p->measured);
    else if (!p->modules && *p->made.loss)
        fprintf(out, "| loss | %s |\n", p->made.loss);
    if (*t->sha256 && t->ids)
        fprintf(out,
                "| calibration | %" PRId64 " sequences, %" PRId64
                " tokens, of the text with SHA-256 `%s` |\n",
                t->sequences, t->ids, t->sha256);
    else if (*t->sha256)
        fprintf(out, "| calibration | the text with SHA-256 `%s` |\n",
                t->sha256);
    if (*p->made.layout)
        fprintf(out, "| repacked | from layout %s, with its codes |\n",
                p->made.layout);
}

static void put_facts(FILE *out, const struct card *c)
{
    char size[UNIT_TEXT], kinds[64], group[32];

    fprintf(out, "| | |\n|---|---|\n| made of | %s |\n", c->base);
    fprintf(out, "| size | %" PRIu64 " tensors, %s |\n", c->tensors,
            size_text(size, (double)c->bytes));
    if (c->facts) {
        if (c->linears.whole == c->linears.four + c->linears.eight)
            snprintf(group, sizeof(group), "each output");
        else
            snprintf(group, sizeof(group), "%" PRIu64 " inputs",
                     c->facts->group);
        fprintf(out,
                "| layout | %s: %d bits, a scale for %s (%s), %ssymmetric%s "
                "|\n",
                layout_name(c->facts->layout), c->facts->bits, group,
                dtype_name(c->facts->scale_dtype),
                c->facts->symmetric ? "" : "a",
                c->linears.differ ? "; of some linears otherwise" : "");
    }
    if (c->linears.weights)
        fprintf(out,
                "| linears | %s; %.3f bits for each weight, scales included "
                "|\n",
                layout_kinds_text(kinds, c->linears.four, c->linears.eight),
                8 * (double)c->linears.bytes / (double)c->linears.weights);
    put_making(out, c->about);
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
                c->base, bits, CARD_MARK, bits,
                !c->linears.eight ? "W4A16" :
                c->linears.four   ? "W4A16, W8A16" :
                                    "W8A16");
    else
        fprintf(out, "# %s\n\n%s.\n\n", c->base, CARD_MARK);
    put_facts(out, c);
    if (c->facts)
        (is_int4pack(c->facts) ? put_int4pack : put_serving)(out, c);
    fprintf(out, "\n%s%s\n```\n\n## Check it\n\n", CARD_RECIPE, c->recipe);
    fprintf(out, "`forge verify DIRECTORY`, or `sha256sum -c SHA256SUMS` in "
                 "it.\n");
}

int card_write(const struct card *c, const struct modeldir *model, char **text,
               size_t *len, struct err *e)
{
    char *own;
    FILE *out;
    bool failed;

    if (card_read(model, &own, e))
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
