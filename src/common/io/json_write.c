/* json_write.c - see json.h: writing. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "common/io/utf8.h"

void jw_init(struct json_writer *w, int indent)
{
    *w = (struct json_writer){ .indent = indent };
}

static void put(struct json_writer *w, const char *text, size_t n)
{
    struct err e;

    if (w->failed)
        return;
    if (w->len + n + 1 > w->cap) {
        size_t cap = (w->len + n + 1) * 2;

        if (mem_grow(&w->text, cap, "json", &e) < 0) {
            w->failed = true;
            return;
        }
        w->cap = cap;
    }
    memcpy(w->text + w->len, text, n);
    w->len += n;
    w->text[w->len] = 0;
}

static void put_text(struct json_writer *w, const char *text)
{
    put(w, text, strlen(text));
}

static void new_line(struct json_writer *w)
{
    if (!w->indent)
        return;
    put(w, "\n", 1);
    for (int i = 0; i < w->depth * w->indent; i++)
        put(w, " ", 1);
}

/* Write the separator before a value or key: a comma after a sibling, a line
 * break. */
static void before(struct json_writer *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->comma)
        put(w, ",", 1);
    if (w->depth)
        new_line(w);
    w->comma = true;
}

void jw_begin(struct json_writer *w, char bracket)
{
    before(w);
    put(w, &bracket, 1);
    w->depth++;
    w->comma = false;
}

void jw_end(struct json_writer *w, char bracket)
{
    w->depth--;
    if (w->comma)
        new_line(w);
    put(w, &bracket, 1);
    w->comma = true;
}

/* Bytes that are not valid UTF-8, as in a file name, become U+FFFD. */
static void put_string(struct json_writer *w, const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + len;

    put(w, "\"", 1);
    while (p < end) {
        size_t n = utf8_length(p, end);
        char esc[8];

        if (!n) {
            put_text(w, "\xef\xbf\xbd");
            n = 1;
        } else if (*p == '"' || *p == '\\') {
            put(w, "\\", 1);
            put(w, (const char *)p, 1);
        } else if (*p == '\n') {
            put(w, "\\n", 2);
        } else if (*p < 0x20 || *p == 0x7f) {
            snprintf(esc, sizeof(esc), "\\u%04x", *p);
            put_text(w, esc);
        } else {
            put(w, (const char *)p, n);
        }
        p += n;
    }
    put(w, "\"", 1);
}

void jw_key(struct json_writer *w, const char *key)
{
    before(w);
    put_string(w, key, strlen(key));
    put_text(w, w->indent ? ": " : ":");
    w->after_key = true;
}

void jw_string(struct json_writer *w, const char *s)
{
    jw_text(w, s, strlen(s));
}

void jw_text(struct json_writer *w, const char *s, size_t n)
{
    before(w);
    put_string(w, s, n);
}

void jw_int(struct json_writer *w, int64_t v)
{
    char text[32];

    before(w);
    snprintf(text, sizeof(text), "%" PRId64, v);
    put_text(w, text);
}

void jw_number(struct json_writer *w, double v)
{
    char text[40] = "null"; /* JSON has no infinity and no NaN */

    before(w);
    if (v == floor(v) && fabs(v) < 1e36) /* integers without exponent */
        snprintf(text, sizeof(text), "%.0f", v);
    else
        for (int digits = 15; isfinite(v) && digits <= 17; digits++) {
            snprintf(text, sizeof(text), "%.*g", digits, v);
            if (strtod(text, NULL) == v)
                break;
        }
    put_text(w, text);
}

void jw_bool(struct json_writer *w, bool v)
{
    before(w);
    put_text(w, v ? "true" : "false");
}

void jw_null(struct json_writer *w)
{
    before(w);
    put_text(w, "null");
}

void jw_raw(struct json_writer *w, const char *json)
{
    before(w);
    put_text(w, json);
}

static void put_container(struct json_writer *w, const struct json *v)
{
    bool object = json_type(v) == JSON_OBJECT;

    jw_begin(w, object ? '{' : '[');
    for (const struct json *m = json_first(v); m; m = json_after(m)) {
        if (object)
            jw_key(w, json_key(m));
        jw_value(w, m);
    }
    jw_end(w, object ? '}' : ']');
}

void jw_value(struct json_writer *w, const struct json *v)
{
    const char *s = "";
    bool b = false;
    double d = 0;

    switch (v ? json_type(v) : JSON_NULL) {
    case JSON_NULL: jw_null(w); break;
    case JSON_BOOL: jw_bool(w, json_bool(v, &b) && b); break;
    case JSON_NUMBER: jw_number(w, json_number(v, &d) ? d : 0); break;
    case JSON_STRING: jw_string(w, json_string(v, &s) ? s : ""); break;
    case JSON_ARRAY:
    case JSON_OBJECT: put_container(w, v); break;
    }
}

void jw_known_text(struct json_writer *w, const char *key, const char *s)
{
    if (s && *s)
        jw_key(w, key), jw_string(w, s);
}

void jw_known_number(struct json_writer *w, const char *key, double v)
{
    if (isfinite(v))
        jw_key(w, key), jw_number(w, v);
}

void jw_known_count(struct json_writer *w, const char *key, int64_t n)
{
    if (n >= 0)
        jw_key(w, key), jw_int(w, n);
}
