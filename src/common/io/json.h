/* json.h - strict JSON, over cJSON: the only file that includes it is json.c.
 *
 * Refused, with line and column: anything after the value, duplicate keys,
 * \u0000 anywhere, invalid UTF-8, raw control characters, a byte order mark,
 * numbers such as 01, integers that a double cannot hold exactly (beyond
 * 2^53), depth over 64, text longer than the caller allows. */
#ifndef FORGE_JSON_H
#define FORGE_JSON_H

#include "common/base.h"

enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

struct json;     /* one value inside a document */
struct json_doc; /* owns the values */

/* what: for messages, e.g. "'config.json'".  text need not end in NUL. */
MUST_CHECK int json_parse(struct json_doc **d, const char *text, size_t len,
                          const char *what, struct err *e);
/* Read the whole file (at most max bytes; E_DATA beyond) and parse it. */
MUST_CHECK int json_read_file(struct json_doc **d, const char *path, size_t max,
                              struct err *e);
void json_free(struct json_doc *d); /* NULL is allowed */
const struct json *json_root(const struct json_doc *d);

enum json_type json_type(const struct json *v);
/* Member of an object by exact name; NULL when absent or v is NULL or no
 * object.  O(1) for large objects. */
const struct json *json_get(const struct json *v, const char *key);
/* Elements of an array, members of an object, in the order of the text. */
const struct json *json_first(const struct json *v);
const struct json *json_after(const struct json *v);
const char *json_key(const struct json *v); /* "" outside an object */
size_t json_count(const struct json *v);

/* Each returns false, and leaves *out alone, when v is NULL, JSON null, or of
 * another type (json_int: or no integer). */
MUST_CHECK bool json_string(const struct json *v, const char **out);
MUST_CHECK bool json_number(const struct json *v, double *out);
MUST_CHECK bool json_int(const struct json *v, int64_t *out);
MUST_CHECK bool json_bool(const struct json *v, bool *out);

/* ---- writing: a growing buffer, commas put by themselves ---- */

struct json_writer {
    char *text; /* NUL-terminated; free() it */
    size_t len, cap;
    int depth, indent;  /* indent: spaces per level, 0 = one line */
    bool comma, failed; /* failed: out of memory, check once at the end */
    bool after_key;
};

void jw_init(struct json_writer *w, int indent);
void jw_begin(struct json_writer *w, char bracket); /* '{' or '[' */
void jw_end(struct json_writer *w, char bracket);   /* '}' or ']' */
void jw_key(struct json_writer *w, const char *key);
void jw_string(struct json_writer *w, const char *s);
/* n bytes, NULs among them. */
void jw_text(struct json_writer *w, const char *s, size_t n);
void jw_int(struct json_writer *w, int64_t v);
void jw_number(struct json_writer *w, double v); /* shortest that reads back */
void jw_bool(struct json_writer *w, bool v);
void jw_null(struct json_writer *w);
void jw_value(struct json_writer *w, const struct json *v); /* copied whole */
void jw_raw(struct json_writer *w, const char *json);       /* trusted text */

#endif
