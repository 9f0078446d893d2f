/* quantconfig.c - the three dialects of quantization_config. */
#include "checkpoint/quantconfig.h"

#include <string.h>

/* The string at the first of these keys that is there, or fallback. */
static const char *word(const struct json *q, const char *key,
                        const char *other, const char *fallback)
{
    const char *s;

    if (json_string(json_get(q, key), &s) ||
        (other && json_string(json_get(q, other), &s)))
        return s;
    return fallback;
}

static bool number(const struct json *q, const char *key, const char *other,
                   int64_t *out)
{
    return json_int(json_get(q, key), out) ||
           (other && json_int(json_get(q, other), out));
}

static int check_bits(int64_t bits, const char *what, struct err *e)
{
    if (bits == 4)
        return 0;
    return err_set(e, E_CONFIG,
                   "%s: quantization_config: %lld-bit weights are not read, "
                   "4-bit ones are",
                   what, (long long)bits);
}

static int check_group(int64_t group, const char *what, struct err *e)
{
    if (group == -1 || (group > 0 && group <= (int64_t)1 << 31))
        return 0;
    return err_set(e, E_DATA, "%s: quantization_config: a group size of %lld",
                   what, (long long)group);
}

static int not_read(const char *what, const char *key, const char *value,
                    struct err *e)
{
    return err_set(e, E_CONFIG,
                   "%s: quantization_config: %s '%.60s' is not supported", what,
                   key, value);
}

/* AWQ and GPTQ: bits and group_size beside the method. */
static int flat(struct quant_spec *s, const struct json *q, const char *what,
                struct err *e)
{
    int64_t bits;
    int r;

    if (!number(q, "bits", "w_bit", &bits))
        return err_set(e, E_DATA, "%s: quantization_config: no 'bits'", what);
    if ((r = check_bits(bits, what, e)))
        return r;
    if (!number(q, "group_size", "q_group_size", &s->group))
        s->group = 128;
    return check_group(s->group, what, e);
}

static int parse_awq(struct quant_spec *s, const struct json *q,
                     const char *what, struct err *e)
{
    const char *v = word(q, "version", "checkpoint_format",
                         word(q, "format", NULL, "gemm"));

    s->storage = STORAGE_AWQ;
    if (strcasecmp(v, "gemm") != 0)
        return not_read(what, "AWQ version", v, e);
    return flat(s, q, what, e);
}

static int parse_gptq(struct quant_spec *s, const struct json *q,
                      const char *what, struct err *e)
{
    const char *v = word(q, "checkpoint_format", "format", "gptq");

    if (strcmp(v, "gptq") != 0 && strcmp(v, "gptq_v2") != 0)
        return not_read(what, "checkpoint_format", v, e);
    s->storage = strcmp(v, "gptq") == 0 ? STORAGE_GPTQ : STORAGE_GPTQ_V2;
    return flat(s, q, what, e);
}

/* One of the config_groups.  Groups may differ in their group size: the
 * shape of each module's scales decides, s->group is the last one's. */
static int parse_ct_group(struct quant_spec *s, const struct json *g,
                          const char *fallback, const char *what, struct err *e)
{
    const struct json *w = json_get(g, "weights");
    const char *v = word(g, "format", NULL, fallback);
    int64_t bits;
    int r;

    if (strcmp(v, "pack-quantized") != 0)
        return not_read(what, "format", v, e);
    if (!number(w, "num_bits", NULL, &bits))
        return err_set(e, E_DATA,
                       "%s: quantization_config: '%.60s' has no "
                       "weights.num_bits",
                       what, json_key(g));
    if ((r = check_bits(bits, what, e)))
        return r;
    v = word(w, "type", NULL, "int");
    if (strcmp(v, "int") != 0)
        return not_read(what, "weights.type", v, e);
    v = word(w, "strategy", NULL, "group");
    if (strcmp(v, "channel") == 0 || !number(w, "group_size", NULL, &s->group))
        s->group = -1;
    else if (strcmp(v, "group") != 0)
        return not_read(what, "weights.strategy", v, e);
    return check_group(s->group, what, e);
}

static int parse_ct(struct quant_spec *s, const struct json *q,
                    const char *what, struct err *e)
{
    const struct json *groups = json_get(q, "config_groups"), *g;
    const char *format = word(q, "format", NULL, "");
    int r = 0;

    s->storage = STORAGE_CT;
    if (!groups || json_type(groups) != JSON_OBJECT || !json_count(groups))
        return err_set(e, E_DATA, "%s: quantization_config: no 'config_groups'",
                       what);
    for (g = json_first(groups); g && !r; g = json_after(g))
        r = parse_ct_group(s, g, format, what, e);
    return r;
}

int quant_spec_parse(struct quant_spec *s, const struct json *q,
                     const char *method, const char *what, struct err *e)
{
    s->storage = STORAGE_PLAIN;
    s->group = 0;
    if (!q || json_type(q) == JSON_NULL)
        return 0;
    if (json_type(q) != JSON_OBJECT)
        return err_set(e, E_DATA, "%s: quantization_config is no object", what);
    method = word(q, "quant_method", NULL, method);
    if (strcmp(method, "awq") == 0)
        return parse_awq(s, q, what, e);
    if (strcmp(method, "gptq") == 0)
        return parse_gptq(s, q, what, e);
    if (strcmp(method, "compressed-tensors") == 0)
        return parse_ct(s, q, what, e);
    return not_read(what, "quant_method", method, e);
}
