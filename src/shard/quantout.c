/* quantout.c - see quantout.h. */
#include "shard/quantout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/io/json.h"

static void pair_string(struct json_writer *j, const char *key,
                        const char *value)
{
    jw_key(j, key);
    jw_string(j, value);
}

static void pair_int(struct json_writer *j, const char *key, uint64_t value)
{
    jw_key(j, key);
    jw_int(j, (int64_t)value);
}

static void pair_group(struct json_writer *j, uint64_t group)
{
    jw_key(j, "group_size");
    jw_int(j, group == GROUP_WHOLE ? -1 : (int64_t)group);
}

static void pair_bool(struct json_writer *j, const char *key, bool value)
{
    jw_key(j, key);
    jw_bool(j, value);
}

static void pair_null(struct json_writer *j, const char *key)
{
    jw_key(j, key);
    jw_null(j);
}

/* ---- the modules that are not quantized, in each loader's form ---- */

/* A path inside the layers, in a multimodal model without what comes before
 * "layers". */
static const char *inside(const struct plain_list *plain, const char *path)
{
    static const char model[] = "model.";
    size_t n = sizeof(model) - 1;

    return plain->wrapped && !strncmp(path, model, n) ? path + n : path;
}

/* What a regular expression of a path inside the layers begins with. */
static void before(const struct plain_list *plain, const char *head, char *to,
                   size_t cap)
{
    snprintf(to, cap, "%s%s", head, plain->wrapped ? "(.*\\.)?" : "");
}

/* AWQ, modules_to_not_convert: paths that vLLM and SGLang search anywhere in a
 * module's path, transformers at its beginning.  A trailing dot delimits a
 * layer's number. */
static void awq_names(struct json_writer *j, const struct plain_list *plain)
{
    jw_key(j, "modules_to_not_convert");
    jw_begin(j, '[');
    for (size_t i = 0; i < plain->module.n; i++)
        jw_string(j, inside(plain, plain->module.item[i]));
    for (size_t i = 0; i < plain->outside.n; i++) {
        char text[1100];

        snprintf(text, sizeof(text), "model.%s", plain->outside.item[i]);
        jw_string(j, plain->outside.item[i]);
        jw_string(j, text); /* transformers looks at the beginning */
    }
    for (size_t i = 0; i < plain->below.n; i++) {
        struct tensor_name name;
        char text[1100];

        tensor_name_parse(&name, plain->below.item[i]);
        snprintf(text, sizeof(text), "%s%s",
                 inside(plain, plain->below.item[i]), name.part.len ? "" : ".");
        jw_string(j, text);
    }
    jw_end(j, ']');
}

/* to = HEAD, the path as a regular expression (dots escaped, "*" as any
 * number), TAIL. */
static char *regex_of(char *to, size_t cap, const char *head, const char *path,
                      const char *tail)
{
    size_t n = (size_t)snprintf(to, cap, "%s", head);

    for (const char *p = path; *p && n + 16 < cap; p++) {
        const char *as = *p == '.' ? "\\." : *p == '*' ? "[0-9]+" : NULL;

        if (as)
            n += (size_t)snprintf(to + n, cap - n, "%s", as);
        else
            to[n++] = *p;
    }
    snprintf(to + n, cap - n, "%s", tail);
    return to;
}

/* compressed-tensors, ignore: paths, or "re:" with regular expressions that
 * match from the beginning of a path. */
static void ct_names(struct json_writer *j, const struct plain_list *plain)
{
    char text[2200], head[16];

    jw_key(j, "ignore");
    jw_begin(j, '[');
    before(plain, "re:", head, sizeof(head));
    for (size_t i = 0; i < plain->module.n; i++)
        if (!plain->common[i])
            jw_string(j,
                      plain->wrapped ?
                          regex_of(text, sizeof(text), head,
                                   inside(plain, plain->module.item[i]), "$") :
                          plain->module.item[i]);
    for (size_t i = 0; i < plain->outside.n; i++)
        jw_string(j, regex_of(text, sizeof(text), head, plain->outside.item[i],
                              "\\..*"));
    for (size_t i = 0; i < plain->kind.n; i++)
        jw_string(j, regex_of(text, sizeof(text), "re:.*\\.",
                              plain->kind.item[i], "$"));
    for (size_t i = 0; i < plain->below.n; i++)
        jw_string(j, regex_of(text, sizeof(text), head,
                              inside(plain, plain->below.item[i]), "\\..*"));
    jw_end(j, ']');
}

/* vLLM looks up a fused linear (qkv_proj, gate_up_proj) by that name of its own:
 * to = the fused path of a linear that stands for it; false: none. */
static bool fused_path(char *to, size_t cap, const char *path)
{
    static const char *const fused[][2] = {
        { "q_proj", "qkv_proj" },
        { "gate_proj", "gate_up_proj" },
        { "q_a_proj", "fused_qkv_a_proj" },
    };
    const char *dot = strrchr(path, '.');

    for (size_t i = 0; dot && i < ARRAY_LEN(fused); i++)
        if (!strcmp(dot + 1, fused[i][0])) {
            snprintf(to, cap, "%.*s.%s", (int)(dot - path), path, fused[i][1]);
            return true;
        }
    return false;
}

/* An entry "HEAD path TAIL", and one of the fused path.  grid: what it has instead
 * of the others; NULL: it is not quantized. */
static void dynamic_entry(struct json_writer *j, const char *head,
                          const char *path, const char *tail,
                          const struct module_grid *grid)
{
    char text[2200], fused[1100];

    jw_key(j, regex_of(text, sizeof(text), head, path, tail));
    jw_begin(j, '{');
    if (grid) {
        pair_int(j, "bits", (uint64_t)grid->bits);
        pair_group(j, grid->group);
    }
    jw_end(j, '}');
    if (fused_path(fused, sizeof(fused), path)) /* which has none itself */
        dynamic_entry(j, head, fused, tail, grid);
}

/* "dynamic": regular expressions of modules that are not quantized, or have
 * other bits or another group, for vLLM's GPTQ and for GPTQModel, which reads it in AWQ
 * checkpoints too (and no other list there). */
static void dynamic(struct json_writer *j, const struct plain_list *plain,
                    const struct mixed_grids *mixed)
{
    const char *all = plain->wrapped ? "-:^(.*\\.)?layers\\.[0-9]+\\." :
                                       "-:^model\\.layers\\.[0-9]+\\.";
    char head[16];

    before(plain, "-:^", head, sizeof(head));
    if (!plain->in_layers && !plain->outside.n && !mixed->n)
        return;
    jw_key(j, "dynamic");
    jw_begin(j, '{');
    for (size_t i = 1; plain->in_layers && i < plain->module.n; i++)
        if (!plain->common[i])
            dynamic_entry(j, head, inside(plain, plain->module.item[i]), "$",
                          NULL);
    for (size_t i = 0; i < plain->outside.n; i++)
        dynamic_entry(j, head, plain->outside.item[i], "\\..*", NULL);
    for (size_t i = 0; i < plain->kind.n; i++)
        dynamic_entry(j, all, plain->kind.item[i], "$", NULL);
    for (size_t i = 0; i < plain->below.n; i++)
        dynamic_entry(j, head, inside(plain, plain->below.item[i]), "(\\..*)?$",
                      NULL);
    before(plain, "+:^", head, sizeof(head));
    for (size_t k = 0; k < mixed->n; k++)
        for (size_t i = 0; i < mixed->kind[k].modules.n; i++)
            dynamic_entry(j, head,
                          inside(plain, mixed->kind[k].modules.item[i]),
                          "(\\..*)?$", &mixed->kind[k].grid);
    jw_end(j, '}');
}

/* GPTQ in transformers: a list of the modules that are quantized; it has none
 * of the others. */
static void gptq_quantized(struct json_writer *j,
                           const struct plain_list *plain)
{
    if (!plain->in_layers || !plain->suffix.n)
        return;
    jw_key(j, "modules_in_block_to_quantize");
    jw_begin(j, '[');
    for (size_t i = 0; i < plain->suffix.n; i++) {
        jw_begin(j, '[');
        jw_string(j, plain->suffix.item[i]);
        jw_end(j, ']');
    }
    jw_end(j, ']');
}

/* ---- the dictionaries ---- */

static void awq_dict(struct json_writer *j, const struct plain_list *plain,
                     const struct mixed_grids *mixed)
{
    pair_string(j, "quant_method", "awq");
    pair_int(j, "bits", 4);
    pair_group(j, mixed->group);
    pair_bool(j, "zero_point", true); /* symmetric: all zeros are 8 */
    pair_string(j, "version", "gemm");
    awq_names(j, plain);
    dynamic(j, plain, mixed);
}

static void gptq_dict(struct json_writer *j, const struct run_facts *facts,
                      const struct plain_list *plain,
                      const struct mixed_grids *mixed)
{
    const char *format = layout_name(facts->layout);

    pair_string(j, "quant_method", "gptq");
    pair_string(j, "method", "gptq");
    pair_int(j, "bits", (uint64_t)facts->bits);
    pair_group(j, mixed->group);
    pair_bool(j, "desc_act", facts->act_order);
    pair_bool(j, "sym", facts->symmetric);
    pair_bool(j, "lm_head", false);
    pair_string(j, "checkpoint_format", format); /* the older key */
    pair_string(j, "format", format);            /* the newer key */
    pair_string(j, "pack_dtype", "int32");
    dynamic(j, plain, mixed);
    gptq_quantized(j, plain);
    jw_key(j, "meta");
    jw_begin(j, '{');
    jw_key(j, "quantizer");
    jw_begin(j, '[');
    jw_string(j, "4bit-forge:" FORGE_VERSION);
    jw_end(j, ']');
    jw_end(j, '}');
}

/* Regular expressions of modules, which match from the beginning of a path, each
 * with its fused path. */
static void ct_targets(struct json_writer *j, const struct plain_list *plain,
                       const struct names *modules)
{
    static const char tail[] = "(\\..*)?$";
    char text[2200], fused[1100], head[16];

    before(plain, "re:", head, sizeof(head));
    for (size_t i = 0; i < modules->n; i++) {
        const char *path = inside(plain, modules->item[i]);

        jw_string(j, regex_of(text, sizeof(text), head, path, tail));
        if (fused_path(fused, sizeof(fused), path))
            jw_string(j, regex_of(text, sizeof(text), head, fused, tail));
    }
}

/* A config group of compressed-tensors.  Its readers refuse unknown keys.  modules
 * NULL: those that no other group names. */
static void ct_group(struct json_writer *j, const struct run_facts *facts,
                     const struct plain_list *plain,
                     const struct module_grid *grid,
                     const struct names *modules)
{
    jw_begin(j, '{');
    jw_key(j, "targets");
    jw_begin(j, '[');
    if (modules)
        ct_targets(j, plain, modules);
    else
        jw_string(j, "Linear");
    jw_end(j, ']');
    pair_null(j, "input_activations");
    pair_null(j, "output_activations");
    pair_string(j, "format", "pack-quantized");
    jw_key(j, "weights");
    jw_begin(j, '{');
    pair_int(j, "num_bits", (uint64_t)grid->bits);
    pair_string(j, "type", "int");
    pair_bool(j, "symmetric", grid->symmetric);
    if (grid->group == GROUP_WHOLE) {
        pair_string(j, "strategy", "channel");
        pair_null(j, "group_size");
    } else {
        pair_string(j, "strategy", "group");
        pair_int(j, "group_size", grid->group);
    }
    pair_bool(j, "dynamic", false);
    if (facts->act_order && grid->group != GROUP_WHOLE)
        pair_string(j, "actorder", "group");
    else
        pair_null(j, "actorder");
    pair_null(j, "block_structure");
    pair_string(j, "observer", "minmax");
    jw_key(j, "observer_kwargs");
    jw_begin(j, '{');
    jw_end(j, '}');
    jw_end(j, '}');
    jw_end(j, '}');
}

static void ct_dict(struct json_writer *j, const struct run_facts *facts,
                    const struct plain_list *plain,
                    const struct mixed_grids *mixed)
{
    const struct module_grid most = { mixed->group, facts->symmetric,
                                      facts->bits };
    char name[32];

    pair_string(j, "quant_method", "compressed-tensors");
    pair_string(j, "format", "pack-quantized");
    pair_string(j, "quantization_status", "compressed");
    pair_null(j, "global_compression_ratio");
    pair_null(j, "kv_cache_scheme");
    ct_names(j, plain);
    jw_key(j, "config_groups");
    jw_begin(j, '{');
    jw_key(j, "group_0");
    ct_group(j, facts, plain, &most, NULL);
    for (size_t i = 0; i < mixed->n; i++) {
        snprintf(name, sizeof(name), "group_%zu", i + 1);
        jw_key(j, name);
        ct_group(j, facts, plain, &mixed->kind[i].grid,
                 &mixed->kind[i].modules);
    }
    jw_end(j, '}');
}

/* int4pack: a format of our own, with what a program needs to call torch's
 * operators. */
static void int4pack_dict(struct json_writer *j, const struct run_facts *facts,
                          const struct plain_list *plain)
{
    bool cpu = facts->layout == LAYOUT_INT4PACK;

    pair_string(j, "quant_method", "int4pack");
    pair_int(j, "bits", 4);
    pair_int(j, "group_size", facts->group);
    pair_string(j, "device", cpu ? "cpu" : "xpu");
    if (cpu)
        pair_string(j, "capability", int4pack_name(facts->capability));
    awq_names(j, plain);
}

int quant_dict(const struct run_facts *facts, const struct plain_list *plain,
               const struct mixed_grids *mixed, char **json, struct err *e)
{
    struct json_writer j;

    jw_init(&j, 2);
    jw_begin(&j, '{');
    switch (facts->layout) {
    case LAYOUT_CT: ct_dict(&j, facts, plain, mixed); break;
    case LAYOUT_AWQ: awq_dict(&j, plain, mixed); break;
    case LAYOUT_GPTQ:
    case LAYOUT_GPTQ_V2: gptq_dict(&j, facts, plain, mixed); break;
    case LAYOUT_INT4PACK:
    case LAYOUT_INT4PACK_XPU: int4pack_dict(&j, facts, plain); break;
    }
    jw_end(&j, '}');
    if (j.failed) {
        free(j.text);
        return err_set(e, E_TEMP, "quantization_config: out of memory");
    }
    *json = j.text;
    return 0;
}
