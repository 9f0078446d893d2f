/* tensor_name.c - see tensor_name.h. */
#include "arch/tensor_name.h"

#include <stdio.h>
#include <string.h>

static const char layers[] = "model.layers.";
static const char experts[] = "experts.";
static const char *const suffixes[COMPANIONS] = { "",          ".drift",
                                                  ".output",   ".gap",
                                                  ".gradient", ".original" };

const char *companion_suffix(enum companion c)
{
    return suffixes[c];
}

enum companion companion_of(const char *name, size_t *len)
{
    size_t n = strlen(name);

    for (int c = COMPANION_NONE + 1; c < COMPANIONS; c++) {
        size_t k = strlen(suffixes[c]);

        if (n > k && !strcmp(name + n - k, suffixes[c])) {
            *len = n - k;
            return (enum companion)c;
        }
    }
    *len = n;
    return COMPANION_NONE;
}

static const char rows[] = ".rows-";

/* A number without leading zeros, then `behind`; *p moves there.  False: no such
 * thing. */
static bool take_number(const char **p, const char *behind, uint64_t *to)
{
    const char *s = *p;

    *to = 0;
    for (; *s >= '0' && *s <= '9' && s - *p < 18; s++)
        *to = 10 * *to + (uint64_t)(*s - '0');
    if (s == *p || (**p == '0' && s > *p + 1) ||
        strncmp(s, behind, strlen(behind)) != 0)
        return false;
    *p = s + strlen(behind);
    return true;
}

bool name_rows_of(const char *name, size_t *len, struct name_rows *r)
{
    const char *at = NULL, *p = name;

    *len = strlen(name);
    while ((p = strstr(p, rows)))
        at = p++;
    if (!at)
        return false;
    p = at + sizeof(rows) - 1;
    if (!take_number(&p, "-", &r->first) || !take_number(&p, "-of-", &r->end) ||
        !take_number(&p, "", &r->of) || *p || r->first >= r->end ||
        r->end > r->of)
        return false;
    *len = (size_t)(at - name);
    return true;
}

void name_rows_format(const char *module, const struct name_rows *r,
                      char to[TENSOR_NAME_MAX])
{
    snprintf(to, TENSOR_NAME_MAX, "%s%s%llu-%llu-of-%llu", module, rows,
             (unsigned long long)r->first, (unsigned long long)r->end,
             (unsigned long long)r->of);
}

/* The number at p, if it ends at `end` or at a dot with something behind it;
 * *rest: what follows the dot.  -1: none. */
static int64_t number(const char *p, const char *end, const char **rest)
{
    const char *s = p;
    int64_t n = 0;

    for (; s < end && *s >= '0' && *s <= '9' && n < TENSOR_NUMBER_END; s++)
        n = 10 * n + (*s - '0');
    if (s == p || (*p == '0' && s > p + 1) || n >= TENSOR_NUMBER_END ||
        (s < end && (*s != '.' || s + 1 == end)))
        return -1;
    *rest = s < end ? s + 1 : s;
    return n;
}

/* Parse what follows the layer, such as "mlp.experts.17.up_proj". */
static void parse_inside(struct tensor_name *n, const char *p, const char *end)
{
    const char *rest = p;
    size_t k = sizeof(experts) - 1;

    for (const char *s = p; n->expert < 0 && (size_t)(end - s) > k; s++)
        if ((s == p || s[-1] == '.') && !strncmp(s, experts, k)) {
            n->expert = number(s + k, end, &rest);
            n->experts = (struct name_text){ p, (size_t)(s - p) + k - 1 };
        }
    if (n->expert < 0)
        n->experts.len = 0;
    n->part = (struct name_text){ rest, (size_t)(end - rest) };
}

void tensor_name_parse(struct tensor_name *n, const char *name)
{
    const char *end, *rest = name;
    size_t len;

    *n = (struct tensor_name){ .layer = -1, .expert = -1 };
    n->companion = companion_of(name, &len);
    end = name + len;
    if (!strncmp(name, layers, sizeof(layers) - 1))
        n->layer = number(name + sizeof(layers) - 1, end, &rest);
    parse_inside(n, rest, end);
}

int64_t tensor_name_layer(const char *name)
{
    struct tensor_name n;

    tensor_name_parse(&n, name);
    return n.layer;
}

bool tensor_name_is_expert(const char *name)
{
    struct tensor_name n;

    tensor_name_parse(&n, name);
    return n.expert >= 0;
}

bool tensor_name_is_table(const char *name)
{
    return strstr(name, "rotary_emb.inv_freq") != NULL;
}

bool tensor_name_is_other_scale(const char *name)
{
    static const char *const last[] = { ".input_scale",      ".output_scale",
                                        ".activation_scale", ".k_scale",
                                        ".v_scale",          ".q_scale",
                                        ".kv_scale",         ".prob_scale" };
    const char *dot = strrchr(name, '.');

    for (size_t i = 0; dot && i < ARRAY_LEN(last); i++)
        if (!strcmp(dot, last[i]))
            return true;
    return false;
}

/* ---- and together ---- */

struct joined {
    char *to;
    size_t cap, len;
};

static void join(struct joined *j, const char *text, size_t len)
{
    size_t at = j->len < j->cap ? j->len : j->cap;

    j->len += (size_t)snprintf(j->to + at, j->cap - at, "%s%.*s",
                               j->len ? "." : "", (int)len, text);
}

static void join_number(struct joined *j, const char *text, size_t len,
                        int64_t number)
{
    char digits[24] = "*";

    if (number >= 0)
        snprintf(digits, sizeof(digits), "%lld", (long long)number);
    join(j, text, len);
    join(j, digits, strlen(digits));
}

size_t tensor_name_format(const struct tensor_name *n, char *to, size_t cap)
{
    struct joined j = { to, cap, 0 };
    const char *suffix = suffixes[n->companion];

    if (cap)
        *to = 0;
    if (n->layer >= 0)
        join_number(&j, layers, sizeof(layers) - 2, n->layer);
    if (n->expert != -1)
        join_number(&j, n->experts.at, n->experts.len, n->expert);
    if (n->part.len)
        join(&j, n->part.at, n->part.len);
    if (*suffix)
        join(&j, suffix + 1, strlen(suffix + 1));
    return j.len;
}

void layer_tensor_name(int64_t layer, const char *part,
                       char to[TENSOR_NAME_MAX])
{
    const struct tensor_name n = { .layer = layer,
                                   .expert = -1,
                                   .part = { part, strlen(part) } };

    tensor_name_format(&n, to, TENSOR_NAME_MAX);
}
