/* splice.c - see splice.h. */
#include "shard/splice.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"

static const char *blank(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* The end of the string whose opening quote is at p. */
static const char *past_string(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p + 1 : p;
}

/* The end of the value at p, in valid JSON. */
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

/* Append a member, whose value is indented by one level more. */
static void add_member(struct text *t, const struct config_edit *edit)
{
    add(t, "\"", 1);
    add(t, edit->key, strlen(edit->key));
    add(t, "\": ", 3);
    for (const char *p = edit->value; *p; p++) {
        add(t, p, 1);
        if (*p == '\n')
            add(t, "  ", 2);
    }
}

/* Append what precedes a member: a comma unless it is the first, and a
 * newline. */
static void separate(struct text *t, int *members)
{
    add(t, ",\n  ", *members ? 4 : 0);
    add(t, "\n  ", *members ? 0 : 3);
    ++*members;
}

/* The edit of a member; key has its quotes.  NULL: the member stays. */
static const struct config_edit *find(const struct config_edit *edit, size_t n,
                                      const char *key, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (len == strlen(edit[i].key) + 2 &&
            !memcmp(key + 1, edit[i].key, len - 2))
            return &edit[i];
    return NULL;
}

/* Copy the members from p on (behind the opening brace), replacing those that
 * are edited; done[i]: edit i has found its member. */
static void splice(struct text *t, const char *p,
                   const struct config_edit *edit, size_t n, bool *done,
                   int *members)
{
    for (p = blank(p); *p == '"'; p = blank(*p == ',' ? p + 1 : p)) {
        const char *key = p, *end = past_string(p), *value;
        const struct config_edit *x = find(edit, n, key, (size_t)(end - key));

        value = blank(blank(end) + 1);
        p = past_value(value);
        if (!x || x->value)
            separate(t, members);
        if (x && x->value) {
            add_member(t, x);
        } else if (!x) {
            add(t, key, (size_t)(end - key));
            add(t, ": ", 2);
            add(t, value, (size_t)(p - value));
        }
        if (x)
            done[x - edit] = true;
        p = blank(p);
    }
}

int config_edit(const char *config, size_t len, const struct config_edit *edit,
                size_t n, char **out, struct err *e)
{
    struct text t = { 0 };
    struct json_doc *d;
    bool done[CONFIG_EDITS_MAX] = { false };
    const char *p;
    int members = 0;

    if (n > CONFIG_EDITS_MAX)
        return err_set(e, E_BUG, "%zu changes of a config", n);
    if (json_parse(&d, config, len, "'config.json'", e))
        return e->code;
    json_free(d);
    p = blank(config);
    if (*p != '{')
        return err_set(e, E_DATA, "'config.json': no object");
    add(&t, "{", 1);
    splice(&t, p + 1, edit, n, done, &members);
    for (size_t i = 0; i < n; i++)
        if (!done[i] && edit[i].value) {
            separate(&t, &members);
            add_member(&t, &edit[i]);
        }
    add(&t, "\n}\n", 3);
    if (t.failed) {
        free(t.s);
        return err_set(e, E_TEMP, "config: out of memory");
    }
    *out = t.s;
    return 0;
}

int config_splice(const char *config, size_t len, const char *dict, char **out,
                  struct err *e)
{
    const struct config_edit edit[] = { { "quantization_config", dict },
                                        { "compression_config", NULL } };

    return config_edit(config, len, edit, ARRAY_LEN(edit), out, e);
}
