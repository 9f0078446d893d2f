/* quantout.c - see quantout.h. */
#include "shard/quantout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

/* ---- the dictionaries ---- */

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

/* lm_head is always named: transformers' is a Linear like any other, and
 * without the entry its weights would be sought in packed form. */
static void plain_names(struct json_writer *j, const char *key,
                        const struct plain_list *plain)
{
    jw_key(j, key);
    jw_begin(j, '[');
    jw_string(j, "lm_head");
    for (size_t i = 0; i < plain->n; i++)
        if (strcmp(plain->module[i], "lm_head"))
            jw_string(j, plain->module[i]);
    jw_end(j, ']');
}

static void awq_dict(struct json_writer *j, const struct run_facts *facts,
                     const struct plain_list *plain)
{
    pair_string(j, "quant_method", "awq");
    pair_int(j, "bits", 4);
    pair_int(j, "group_size", facts->group);
    pair_bool(j, "zero_point", true); /* symmetric: all of them are 8 */
    pair_string(j, "version", "gemm");
    plain_names(j, "modules_to_not_convert", plain);
}

/* "model.layers.0.x" as a regular expression that matches it alone. */
static void dynamic_entry(struct json_writer *j, const char *module)
{
    char key[1100];
    size_t n = 0;

    n += (size_t)snprintf(key, sizeof(key), "-:^");
    for (const char *p = module; *p && n < sizeof(key) - 4; p++) {
        if (*p == '.')
            key[n++] = '\\';
        key[n++] = *p;
    }
    key[n++] = '$';
    key[n] = 0;
    jw_key(j, key);
    jw_begin(j, '{');
    jw_end(j, '}');
}

/* Linears that stay plain: GPTQModel and vLLM read "dynamic", transformers
 * the list of what is quantized. */
static void gptq_plain(struct json_writer *j, const struct plain_list *plain)
{
    if (!plain->linears)
        return;
    jw_key(j, "dynamic");
    jw_begin(j, '{');
    for (size_t i = 0; i < plain->n; i++)
        if (strcmp(plain->module[i], "lm_head"))
            dynamic_entry(j, plain->module[i]);
    jw_end(j, '}');
    if (!plain->suffix)
        return;
    jw_key(j, "modules_in_block_to_quantize");
    jw_begin(j, '[');
    for (size_t i = 0; i < plain->n_suffix; i++) {
        jw_begin(j, '[');
        jw_string(j, plain->suffix[i]);
        jw_end(j, ']');
    }
    jw_end(j, ']');
}

static void gptq_dict(struct json_writer *j, const struct run_facts *facts,
                      const struct plain_list *plain)
{
    const char *format = layout_name(facts->layout);

    pair_string(j, "quant_method", "gptq");
    pair_string(j, "method", "gptq");
    pair_int(j, "bits", 4);
    pair_int(j, "group_size", facts->group);
    pair_bool(j, "desc_act", false);
    pair_bool(j, "sym", facts->symmetric);
    pair_bool(j, "lm_head", false);
    pair_string(j, "checkpoint_format", format); /* the older name */
    pair_string(j, "format", format);            /* the newer one */
    pair_string(j, "pack_dtype", "int32");
    gptq_plain(j, plain);
    jw_key(j, "meta");
    jw_begin(j, '{');
    jw_key(j, "quantizer");
    jw_begin(j, '[');
    jw_string(j, "4bit-forge:" FORGE_VERSION);
    jw_end(j, ']');
    jw_end(j, '}');
}

/* No key beyond these inside the group: its readers refuse unknown ones. */
static void ct_group(struct json_writer *j, const struct run_facts *facts)
{
    jw_key(j, "targets");
    jw_begin(j, '[');
    jw_string(j, "Linear");
    jw_end(j, ']');
    pair_null(j, "input_activations");
    pair_null(j, "output_activations");
    pair_string(j, "format", "pack-quantized");
    jw_key(j, "weights");
    jw_begin(j, '{');
    pair_int(j, "num_bits", 4);
    pair_string(j, "type", "int");
    pair_bool(j, "symmetric", facts->symmetric);
    pair_string(j, "strategy", "group");
    pair_int(j, "group_size", facts->group);
    pair_bool(j, "dynamic", false);
    pair_null(j, "actorder");
    pair_null(j, "block_structure");
    pair_string(j, "observer", "minmax");
    jw_key(j, "observer_kwargs");
    jw_begin(j, '{');
    jw_end(j, '}');
    jw_end(j, '}');
}

static void ct_dict(struct json_writer *j, const struct run_facts *facts,
                    const struct plain_list *plain)
{
    pair_string(j, "quant_method", "compressed-tensors");
    pair_string(j, "format", "pack-quantized");
    pair_string(j, "quantization_status", "compressed");
    pair_null(j, "global_compression_ratio");
    pair_null(j, "kv_cache_scheme");
    plain_names(j, "ignore", plain);
    jw_key(j, "config_groups");
    jw_begin(j, '{');
    jw_key(j, "group_0");
    jw_begin(j, '{');
    ct_group(j, facts);
    jw_end(j, '}');
    jw_end(j, '}');
}

int quant_dict(const struct run_facts *facts, const struct plain_list *plain,
               char **json, struct err *e)
{
    struct json_writer j;

    jw_init(&j, 2);
    jw_begin(&j, '{');
    switch (facts->layout) {
    case LAYOUT_CT: ct_dict(&j, facts, plain); break;
    case LAYOUT_AWQ: awq_dict(&j, facts, plain); break;
    case LAYOUT_GPTQ:
    case LAYOUT_GPTQ_V2: gptq_dict(&j, facts, plain); break;
    }
    jw_end(&j, '}');
    if (j.failed) {
        free(j.text);
        return err_set(e, E_TEMP, "quantization_config: out of memory");
    }
    *json = j.text;
    return 0;
}

/* ---- splicing ---- */

static const char *blank(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* Past a string, whose opening quote p is at. */
static const char *past_string(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p + 1 : p;
}

/* Past a value; its text is valid JSON. */
static const char *past_value(const char *p)
{
    int depth = 0;

    do {
        if (*p == '"') {
            p = past_string(p);
        } else if (*p == '{' || *p == '[') {
            depth++;
            p++;
        } else if (*p == '}' || *p == ']') {
            depth--;
            p++;
        } else {
            size_t n = strcspn(p, ",\"{}[] \t\r\n");

            p += n ? n : 1;
        }
    } while (*p && depth);
    return p;
}

struct text {
    char *s;
    size_t len, cap;
    bool failed;
};

static void add(struct text *t, const char *s, size_t n)
{
    struct err e;

    if (t->failed)
        return;
    if (t->len + n + 1 > t->cap) {
        size_t cap = 2 * (t->len + n + 1);

        if (mem_grow(&t->s, cap, "config", &e)) {
            t->failed = true;
            return;
        }
        t->cap = cap;
    }
    memcpy(t->s + t->len, s, n);
    t->len += n;
    t->s[t->len] = 0;
}

/* dict was written at depth 0; in the config it is one level down. */
static void add_dict(struct text *t, const char *dict)
{
    const char *key = "\"quantization_config\": ";

    add(t, key, strlen(key));
    for (; *dict; dict++) {
        add(t, dict, 1);
        if (*dict == '\n')
            add(t, "  ", 2);
    }
}

/* Before each member: a comma unless it is the first, and a new line. */
static void separate(struct text *t, int *members)
{
    add(t, ",\n  ", *members ? 4 : 0);
    add(t, "\n  ", *members ? 0 : 3);
    ++*members;
}

static bool is_ours(const char *key, size_t len)
{
    static const char *const ours[] = { "\"quantization_config\"",
                                        "\"compression_config\"" };

    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        if (len == strlen(ours[i]) && !memcmp(key, ours[i], len))
            return true;
    return false;
}

int config_splice(const char *config, size_t len, const char *dict, char **out,
                  struct err *e)
{
    struct text t = { 0 };
    struct json_doc *d;
    const char *p;
    int members = 0;

    if (json_parse(&d, config, len, "'config.json'", e))
        return e->code;
    json_free(d);
    p = blank(config);
    if (*p != '{')
        return err_set(e, E_DATA, "'config.json': no object");
    add(&t, "{", 1);
    for (p = blank(p + 1); *p == '"'; p = blank(*p == ',' ? p + 1 : p)) {
        const char *key = p, *end = past_string(p), *value;
        bool ours = is_ours(key, (size_t)(end - key));

        value = blank(blank(end) + 1);
        p = past_value(value);
        if (!ours || dict)
            separate(&t, &members);
        if (!ours) {
            add(&t, key, (size_t)(end - key));
            add(&t, ": ", 2);
            add(&t, value, (size_t)(p - value));
        } else if (dict) {
            add_dict(&t, dict);
            dict = NULL;
        }
        p = blank(p);
    }
    if (dict) {
        separate(&t, &members);
        add_dict(&t, dict);
    }
    add(&t, "\n}\n", 3);
    if (t.failed) {
        free(t.s);
        return err_set(e, E_TEMP, "config: out of memory");
    }
    *out = t.s;
    return 0;
}
