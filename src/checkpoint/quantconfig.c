/* quantconfig.c - see quantconfig.h: the variants of quantization_config. */
#include "checkpoint/quantconfig.h"

#include <stdio.h>
#include <string.h>

/* The string under the first of two keys that is present, or fallback. */
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

/* eight: whether this storage has 8 bits, too. */
static int check_bits(int64_t bits, bool eight, const char *what, struct err *e)
{
    if (bits == 4 || (bits == 8 && eight))
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

/* AWQ and GPTQ: bits and group_size are members of q itself. */
static int flat(struct quant_spec *s, const struct json *q, const char *what,
                struct err *e)
{
    int64_t bits;
    int r;

    if (!number(q, "bits", "w_bit", &bits))
        return err_set(e, E_DATA, "%s: quantization_config: no 'bits'", what);
    if ((r = check_bits(
             bits, s->storage == STORAGE_GPTQ || s->storage == STORAGE_GPTQ_V2,
             what, e)))
        return r;
    s->bits = (int)bits;
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

/* AutoRound's own config around words of AutoAWQ or GPTQ.  What zeros are is in
 * packing_format: its "auto_gptq" stores them minus one, "gptqmodel" and the plain
 * "auto_round", which it writes where zeros are not 8, as they are. */
static int parse_auto_round(struct quant_spec *s, const struct json *q,
                            const char *what, struct err *e)
{
    const char *v = word(q, "packing_format", NULL, "auto_round:auto_gptq");
    const char *type = word(q, "data_type", NULL, "int");
    int64_t inputs = 16;

    if (strcmp(type, "int") != 0)
        return not_read(what, "data_type", type, e);
    if (number(q, "act_bits", NULL, &inputs) && inputs < 16)
        return err_set(e, E_CONFIG,
                       "%s: quantization_config: activations of %lld bits are "
                       "not supported",
                       what, (long long)inputs);
    if (strstr(v, "awq"))
        s->storage = STORAGE_AWQ;
    else if (strstr(v, "gptqmodel") || !strcmp(v, "auto_round"))
        s->storage = STORAGE_GPTQ_V2;
    else if (strstr(v, "gptq"))
        s->storage = STORAGE_GPTQ;
    else
        return not_read(what, "packing_format", v, e);
    return flat(s, q, what, e);
}

/* Ours: torch has no file format for it. */
static int parse_int4pack(struct quant_spec *s, const struct json *q,
                          const char *what, struct err *e)
{
    const char *device = word(q, "device", NULL, "cpu");
    const char *v = word(q, "capability", NULL, "");

    if (strcmp(device, "cpu") != 0 && strcmp(device, "xpu") != 0)
        return not_read(what, "device", device, e);
    s->storage = *device == 'c' ? STORAGE_INT4PACK : STORAGE_INT4PACK_XPU;
    s->capability = int4pack_parse(v);
    if (*device == 'c' && s->capability == INT4PACK_UNKNOWN)
        return not_read(what, "capability", v, e);
    return flat(s, q, what, e);
}

/* weight_block_size: [128, 128], "128x128" or absent. */
static int read_block(struct quant_spec *s, const struct json *v,
                      const char *what, struct err *e)
{
    long long b[2] = { 0, 0 };
    int64_t n = 0;
    const char *text;

    if (!v || json_type(v) == JSON_NULL)
        return 0;
    if (json_type(v) == JSON_ARRAY && json_count(v) == 2)
        for (const struct json *x = json_first(v); x; x = json_after(x))
            b[x == json_first(v) ? 0 : 1] = json_int(x, &n) ? n : 0;
    else if (json_string(v, &text)) /* compressed-tensors before 0.11 */
        sscanf(text, "%7lldx%7lld", &b[0], &b[1]);
    if (b[0] < 1 || b[1] < 1 || b[0] > 1 << 20 || b[1] > 1 << 20)
        return err_set(e, E_DATA,
                       "%s: quantization_config: '%.60s' is no pair of sizes",
                       what, json_key(v));
    s->block[0] = b[0];
    s->block[1] = b[1];
    return 0;
}

/* DeepSeek's (block scales), AutoFP8's and FBGEMM's. */
static int parse_fp8(struct quant_spec *s, const struct json *q,
                     const char *what, struct err *e)
{
    static const char *const known[] = { "e4m3", "e4m3fn", "float8_e4m3fn",
                                         "e5m2" };
    const char *v = word(q, "fmt", NULL, "e4m3");
    size_t i = 0;

    while (i < ARRAY_LEN(known) && strcmp(v, known[i]) != 0)
        i++;
    if (i == ARRAY_LEN(known))
        return not_read(what, "fmt", v, e);
    s->fp8 = true;
    return read_block(s, json_get(q, "weight_block_size"), what, e);
}

/* A config group of compressed-tensors with fp8 weights. */
static int parse_ct_float(struct quant_spec *s, const struct json *w,
                          const char *what, struct err *e)
{
    const char *v = word(w, "strategy", NULL, "tensor");
    int64_t bits = 8;

    if (number(w, "num_bits", NULL, &bits) && bits != 8)
        return err_set(e, E_CONFIG,
                       "%s: quantization_config: floats of %lld bits are not "
                       "read, 8-bit ones are",
                       what, (long long)bits);
    s->fp8 = true;
    if (strcmp(v, "block") == 0)
        return read_block(s, json_get(w, "block_structure"), what, e);
    if (strcmp(v, "tensor") != 0 && strcmp(v, "channel") != 0)
        return not_read(what, "weights.strategy", v, e);
    return 0;
}

static bool is_given(const struct json *q, const char *key)
{
    const struct json *v = json_get(q, key);

    return v && json_type(v) != JSON_NULL;
}

/* One of config_groups, the first of them with integers where s->group is 0.
 * Their bits and group sizes may differ: the shapes of each module's tensors
 * decide, and s has the first one's. */
static int parse_ct_group(struct quant_spec *s, const struct json *g,
                          const char *fallback, const char *what, struct err *e)
{
    int64_t group;
    const struct json *w = json_get(g, "weights");
    const char *v = word(g, "format", NULL, fallback);
    int64_t bits;
    int r;

    if (strcmp(v, "float-quantized") == 0 ||
        (strcmp(v, "naive-quantized") == 0 &&
         strcmp(word(w, "type", NULL, "int"), "float") == 0))
        return parse_ct_float(s, w, what, e);
    if (strcmp(v, "pack-quantized") != 0)
        return not_read(what, "format", v, e);
    s->storage = STORAGE_CT;
    s->activations |= is_given(g, "input_activations");
    if (!number(w, "num_bits", NULL, &bits))
        return err_set(e, E_DATA,
                       "%s: quantization_config: '%.60s' has no "
                       "weights.num_bits",
                       what, json_key(g));
    if ((r = check_bits(bits, true, what, e)))
        return r;
    s->bits = s->bits ? s->bits : (int)bits;
    v = word(w, "type", NULL, "int");
    if (strcmp(v, "int") != 0)
        return not_read(what, "weights.type", v, e);
    if (!number(w, "group_size", NULL, &group))
        group = -1;
    v = word(w, "strategy", NULL, group < 0 ? "channel" : "group");
    if (strcmp(v, "channel") == 0)
        group = -1;
    else if (strcmp(v, "group") != 0)
        return not_read(what, "weights.strategy", v, e);
    s->group = s->group ? s->group : group;
    return check_group(group, what, e);
}

static int parse_ct(struct quant_spec *s, const struct json *q,
                    const char *what, struct err *e)
{
    const struct json *inner = json_get(q, "quantization_config");
    const struct json *groups, *g;
    const char *format;
    int r = 0;

    if (inner) /* which transformers unwraps, too */
        q = inner;
    groups = json_get(q, "config_groups");
    format = word(q, "format", NULL, "");
    s->cache = is_given(q, "kv_cache_scheme");
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
    *s = (struct quant_spec){ .storage = STORAGE_PLAIN };
    if (!q || json_type(q) == JSON_NULL)
        return 0;
    if (json_type(q) != JSON_OBJECT)
        return err_set(e, E_DATA, "%s: quantization_config is no object", what);
    method = word(q, "quant_method", NULL, method);
    if (strcmp(method, "awq") == 0)
        return parse_awq(s, q, what, e);
    if (strcmp(method, "gptq") == 0)
        return parse_gptq(s, q, what, e);
    if (strcmp(method, "auto-round") == 0 ||
        strcmp(method, "intel/auto-round") == 0)
        return parse_auto_round(s, q, what, e);
    if (strcmp(method, "int4pack") == 0)
        return parse_int4pack(s, q, what, e);
    if (strcmp(method, "compressed-tensors") == 0)
        return parse_ct(s, q, what, e);
    if (strcmp(method, "fp8") == 0 || strcmp(method, "fbgemm_fp8") == 0)
        return parse_fp8(s, q, what, e);
    if (strcmp(method, "mxfp4") == 0) /* fused.h */
        return 0;
    return not_read(what, "quant_method", method, e);
}
